"""Where the watch runs, what has to be done for it, and how it proves that it looks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once
from deploys.common.snapshot_view import files_in, units_in, wider
from facts import unit_state as engine_facts
from facts.observe import fact_of, observe, real
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.engine.engine import Steps
from operations.engine.watch import LOOK_S, install_steps, remove_steps
from schema.desired.plan import Document, Plan
from schema.inputs.runbook_data import WatchData
from schema.observed.snapshot import NodeSnapshot
from schema.render.watch_files import WATCH_SERVICE, WATCH_TIMER, watch_documents

POLL_S = 1.0
UNDO_TIMEOUT_S = 120


@dataclass(frozen=True)
class WatchWork:
    """What one run does: on which node, which steps, and the change that they belong to."""

    node: str
    documents: tuple[Document, ...]
    steps: Steps
    run: Run = field(compare=False)


def watched(plan: Plan, data: WatchData) -> tuple[Plan, str, tuple[Document, ...]]:
    """The plan with the watch's files and timer in the node's snapshot, the node, its documents.

    DeployError when `only` is no node of the rig.
    """
    names = [node.name for node in plan.rig.nodes]
    node = data.only or plan.rig.head.name
    if node not in names:
        raise DeployError(f"--data only={node}: no such node; the rig has: {', '.join(names)}")
    documents = watch_documents(plan, node, data)
    files = (document.path for document in documents)
    return wider(plan, (node,), files, (WATCH_TIMER,)), node, documents


def decide(
    state: State,
    plan: Plan,
    node: str,
    documents: tuple[Document, ...],
    data: WatchData,
    waivers: tuple[tuple[str, str], ...],
) -> WatchWork:
    """The work of this run, decided once for all hosts."""

    def make() -> WatchWork:
        snapshot = observe(state, plan)[node]
        assert isinstance(snapshot, NodeSnapshot)  # the gate has stopped the run otherwise
        paths = {document.path for document in documents}
        files = {path: row for path, row in files_in(snapshot).items() if path in paths}
        timer = units_in(snapshot).get(WATCH_TIMER)
        steps = (
            remove_steps(files, timer) if data.remove else install_steps(documents, files, timer)
        )
        return WatchWork(node, documents, steps, Run(state, "watch", plan, waivers, taken_back))

    return once("watch", make)


def taken_back(run: Run) -> str:
    """The watch's own way back: node's undo; the engine is not touched."""
    for node in sorted(run.touched):
        try:
            call(run.state, run.host(node), "undo", {"change": run.id}, UNDO_TIMEOUT_S)
        except StepFailed as error:
            if error.code != "no_change":
                raise
    return f"change {run.id} ROLLED_BACK; the watch is as it was before"


def proof(state: State, work: WatchWork, data: WatchData) -> str:
    """A line about the first look and the timer; StepFailed says what is wrong with them."""
    if data.remove:
        return f"{work.node} no longer watches"
    state = real(state)
    host = state.inventory.get_host(work.node)
    deadline = time.monotonic() + LOOK_S
    while True:
        look = fact_of(state, host, engine_facts.Unit, WATCH_SERVICE)
        if look is None:
            raise StepFailed(f"{work.node}: systemd does not say how {WATCH_SERVICE} is")
        if look.active not in ("activating", "active") or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if look.result != "success" or look.active != "inactive":
        lines = fact_of(state, host, engine_facts.Log, WATCH_SERVICE, 10, look.invocation) or []
        # Our own line, not systemd's about it.
        said = [line for line in lines if line.startswith("watch: ")] or [look.last_line]
        raise StepFailed(f"{work.node}: the first look failed: {said[-1]}")
    timer = fact_of(state, host, engine_facts.Unit, WATCH_TIMER)
    if timer is None or timer.active != "active":
        raise StepFailed(f"{work.node}: {WATCH_TIMER} is {timer.active if timer else 'unknown'}")
    told = data.webhook_file or ("the webhook" if data.webhook else "the journal alone")
    return f"{work.node} looks every {data.interval} s; {data.misses} misses go to {told}"
