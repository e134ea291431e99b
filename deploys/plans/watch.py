"""Where the watch runs, what has to be done for it, and how it proves that it looks."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, files_in, once_a_run, units_in, wider
from facts import plain
from facts.node import fact_of
from operations.apply import Steps, folder_steps, unit_step
from operations.engine import install_steps, prove_timer, remove_steps
from operations.rollback import undo_only
from operations.run import StepFailed
from schema.keys import ClusterWatchData, WatchData
from schema.plan import Document, Plan
from schema.render_engine import WATCH_PATH, WATCH_SERVICE, WATCH_TIMER, watch_documents

POLL_S = 1.0
# One look of the service: an answer and its notices (its own limit is 240 s).
LOOK_S = 270
UNDO_TIMEOUT_S = 120


@dataclass(frozen=True)
class Want:
    """Which node watches, by which files; `plan` has them and the timer in its snapshot."""

    plan: Plan
    node: str
    documents: tuple[Document, ...]


revert = undo_only("the watch is as it was before", UNDO_TIMEOUT_S)


def _data(rig: Procedure) -> WatchData | ClusterWatchData:
    """The checked data, of the kind of rig that this is."""
    if rig.plan.deployment is not None:
        return rig.plan.chart_as(ClusterWatchData)
    return rig.data(WatchData)


@once_a_run
def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError when `only` is no node of the rig."""
    plan, data = rig.plan, _data(rig)
    if isinstance(data, ClusterWatchData) and data.model is None and not data.remove:
        raise DeployError(
            "the watch has nothing to ask; allowed: --data model=NAME with one of url, service and "
            "port"
        )
    only = data.only if isinstance(data, WatchData) else None
    (node,) = rig.asked_nodes(only or plan.rig.head.name)
    documents = watch_documents(plan, node, data)
    files = (document.path for document in documents)
    return Want(wider(plan, (node,), files, (WATCH_TIMER,)), node, documents)


def plan(rig: Procedure, want: Want) -> Steps:
    """What to do on the node that watches."""
    snapshot = rig.snapshots[want.node]
    paths = {document.path for document in want.documents}
    files = {path: row for path, row in files_in(snapshot).items() if path in paths}
    timer = units_in(snapshot).get(WATCH_TIMER)
    if _data(rig).remove:
        return remove_steps(WATCH_TIMER, files, timer)
    steps = install_steps(WATCH_TIMER, want.documents, files, timer)
    if steps:
        # no engine of ours made it on a Kubernetes node
        steps = [*folder_steps([WATCH_PATH.rpartition("/")[0]], files_in(snapshot)), *steps]
        # One look at once: it proves the configuration, the program and the webhook's file.
        steps.append(unit_step(WATCH_SERVICE, "start", reload=False))
    return steps


def verify(rig: Procedure, want: Want) -> str:
    """A line about the first look and the timer; StepFailed says what is wrong with them."""
    data, state = _data(rig), rig.run.state
    if data.remove:
        is_now = prove_timer(state, want.node, WATCH_TIMER, runs=False)
        return f"{want.node} no longer watches: {WATCH_TIMER} is {is_now}"
    host = state.inventory.get_host(want.node)
    deadline = time.monotonic() + LOOK_S
    while True:
        look = fact_of(state, host, plain.Unit, WATCH_SERVICE)
        if look is None:
            raise StepFailed(f"{want.node}: systemd does not say how {WATCH_SERVICE} is")
        if look.active not in ("activating", "active") or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if look.result != "success" or look.active != "inactive":
        lines = fact_of(state, host, plain.Log, WATCH_SERVICE, 10, look.invocation) or []
        # Our own line, not systemd's about it.
        said = [line for line in lines if line.startswith("watch: ")] or [look.last_line]
        raise StepFailed(f"{want.node}: the first look failed: {said[-1]}")
    prove_timer(state, want.node, WATCH_TIMER, runs=True)
    told = data.webhook_file or ("the webhook" if data.webhook else "the journal alone")
    silent = "; a silent engine is restarted" if data.restart else ""
    return f"{want.node} looks every {data.interval} s; {data.misses} misses go to {told}{silent}"
