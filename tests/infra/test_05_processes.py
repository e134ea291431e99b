"""Process layer: the engine lives, nothing outlived its supervisor, each port has one owner."""

from __future__ import annotations

from gates.engine import processes
from gates.engine.state import head_port, is_own
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, expect, known, no_findings, reached, serve
from tests.infra.plugin import Rig


def test_engine_processes_live(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """A lost worker leaves the head's /health at 200 (lab-notes), so each node is looked at."""
    engine = known(snapshot.engine_processes, node, "engine_processes")
    own = [process for process in engine if is_own(snapshot, process)]
    expect(
        bool(own),
        node,
        f"no engine process of ours lives here ({len(engine)} of others)",
        f"vllm serve, {node.role} (rank {node.rank})",
        serve(rig),
    )


def test_no_engine_process_without_a_supervisor(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """An orphan holds memory, /dev/shm and the rendezvous's port."""
    no_findings(rig, observation, [processes.engine_orphan], node)


def test_no_port_of_ours_is_taken(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """The API's and the rendezvous's ports are held by nobody else."""
    no_findings(rig, observation, [processes.port_taken], node)


def test_api_port(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """The head answers clients; a worker that listens there was started without --headless."""
    port = head_port(rig.plan)
    holders = [p for p in known(snapshot.ports, node, "ports") if p.port == port]
    if node.role == "head":
        own = any(is_own(snapshot, holder) for holder in holders)
        expect(own, node, f"our engine does not listen on {port}", "it listens there", serve(rig))
    else:
        who = ", ".join(f"pid {h.pid} {h.process}" for h in holders)
        expect(not holders, node, f"{port} is held by {who}", "nobody, on a worker", serve(rig))


def test_rendezvous_port(rig: Rig, observation: Observation) -> None:
    """The head holds the port at which the ranks meet, for as long as they live."""
    if rig.plan.recipe.multi_node is None:
        return
    head = rig.plan.rig.head
    snapshot = reached(observation, head)
    port = rig.plan.recipe.multi_node.master_port
    holders = [p for p in known(snapshot.ports, head, "ports") if p.port == port]
    expect(
        any(is_own(snapshot, holder) for holder in holders),
        head,
        f"our engine does not hold {port}, the rendezvous of the ranks",
        "the head holds it",
        serve(rig),
    )
