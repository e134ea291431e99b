"""Doctor's finding about a pair of which one half is gone while /health says 200."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import Observed, collect, deploy_command, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import (
    engine_state,
    engine_unit,
    head_port,
    is_own,
    own_container,
)
from node.rules.ownership import same_container
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.network import Connection
from schema.observed.snapshot import NodeSnapshot

RANK_TITLES = ("VLLM::Worker", "VLLM::EngineCore")


def wedged_pair(plan: Plan, observed: Observed) -> list[Violation]:
    """Every rank of the head's engine is alive and joined with it.

    With a rank lost, /health and /v1/models stay 200 until a client asks (field notes, vLLM). A
    joined worker keeps a connection to the head's rendezvous port, and further ones for its data.
    """
    if plan.recipe.multi_node is None or len(plan.rig.nodes) < 2:
        return []
    head = plan.rig.head
    # What cannot be read is a finding of gates.host.reachable.
    ups, _ = collect(plan, observed, lambda n, s: _look(plan, n, s))
    seen = {node.name: (node, snapshot, found) for node, (snapshot, found) in ups}
    if head.name not in seen or engine_state(plan, head, seen[head.name][1]) != "running":
        return []
    broken = [reason for worker in plan.rig.workers for reason in _lost(plan, worker, seen)]
    broken += _no_rank(head, seen[head.name][1])
    if not broken:
        return []
    return [
        violation(
            "wedged-pair",
            head.name,
            f"the head says that it serves, but its engine is not whole: {broken[0]}",
            evidence="; ".join((*broken, _starts(seen))),
            remedy=f"{deploy_command(plan, 'restart')} (all nodes as one, workers first; one "
            "alone hangs at the rendezvous)",
        ),
    ]


def _look(
    plan: Plan, node: Node, snapshot: NodeSnapshot
) -> tuple[NodeSnapshot, tuple[Connection, ...]]:
    require(snapshot.engine_processes, "engine_processes")
    return snapshot, require(snapshot.connections, "connections")


Seen = dict[str, tuple[Node, NodeSnapshot, tuple[Connection, ...]]]


def _lost(plan: Plan, worker: Node, seen: Seen) -> Iterator[str]:
    """Why the head cannot count on this worker; nothing for one that was not seen."""
    if worker.name not in seen:
        return
    _, snapshot, _ = seen[worker.name]
    state = engine_state(plan, worker, snapshot)
    if state != "running":
        yield f"the engine of {worker.name} is {state}"
        return
    gone = list(_no_rank(worker, snapshot))
    yield from gone
    if gone:
        return
    joined = [c for c in _between(seen, worker, plan) if _own(seen, c[0], c[1])]
    master = plan.recipe.multi_node.master_port if plan.recipe.multi_node else 0
    at_master = [c for _, c in joined if master in (c.local_port, c.peer_port)]
    api = head_port(plan)
    data = [c for _, c in joined if not {master, api} & {c.local_port, c.peer_port}]
    if not at_master:
        yield f"no ESTABLISHED connection of {worker.name} with the rendezvous (port {master})"
    elif not data and _younger(seen, worker, plan.rig.head):
        yield (
            f"{worker.name} started after the head, and waits at the rendezvous: no connection "
            "carries data"
        )


def _between(seen: Seen, worker: Node, plan: Plan) -> Iterator[tuple[str, Connection]]:
    """The connections of worker and head with each other, each with the node that reports it."""
    head = plan.rig.head
    for name, other in ((worker.name, head), (head.name, worker)):
        addresses = {str(other.fabric_address), str(other.lan_address)}
        for connection in seen[name][2]:
            if connection.peer_address in addresses:
                yield name, connection


def _own(seen: Seen, name: str, connection: Connection) -> bool:
    container = own_container(seen[name][1])
    held = connection.container_id
    return container is not None and held is not None and same_container(held, container.id)


def _no_rank(node: Node, snapshot: NodeSnapshot) -> Iterator[str]:
    """Says so when no process of our engine on the node is a rank."""
    ranks = [
        process
        for process in require(snapshot.engine_processes, "engine_processes")
        if is_own(snapshot, process) and process.argv[0].startswith(RANK_TITLES)
    ]
    if not ranks:
        yield f"no rank lives on {node.name}: none of its processes is a VLLM::Worker"


def _younger(seen: Seen, worker: Node, head: Node) -> bool:
    one, other = engine_unit(seen[worker.name][1]), engine_unit(seen[head.name][1])
    if one is None or other is None or one.since_unix_s is None or other.since_unix_s is None:
        return False
    return one.since_unix_s > other.since_unix_s


def _starts(seen: Seen) -> str:
    """How long each node's unit runs, which tells who came back alone."""
    ages = []
    for name, (_, snapshot, _) in seen.items():
        unit = engine_unit(snapshot)
        if unit is not None and unit.since_unix_s is not None:
            age = snapshot.identity.clock_unix_s - unit.since_unix_s
            ages.append(f"{name} {age:.0f} s ({unit.restarts} restarts)")
    return "units run for: " + (", ".join(ages) or "unknown")


GATES = (wedged_pair,)
