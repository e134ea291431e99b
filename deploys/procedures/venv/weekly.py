"""The weekly reading of the backups: which node lacks its timer, and how it is proven."""

from __future__ import annotations

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in, units_in, wider
from operations.change.apply import Steps
from operations.engine.timed import install_steps, prove_timer, remove_steps
from schema.desired.plan import Plan
from schema.inputs.runbook_data import BackupData
from schema.render.verify_files import PATHS, VERIFY_TIMER, verify_documents


def wanted(rig: Procedure) -> Plan:
    """The plan whose snapshots look at the files and the timer, too."""
    return wider(rig.plan, rig.asked_nodes(None), PATHS, (VERIFY_TIMER,))


@once_a_run
def plan(rig: Procedure) -> dict[str, Steps]:
    """What to do on each node."""
    steps: dict[str, Steps] = {}
    for name, snapshot in rig.snapshots.items():
        files = {path: row for path, row in files_in(snapshot).items() if path in PATHS}
        timer = units_in(snapshot).get(VERIFY_TIMER)
        if rig.data(BackupData).weekly:
            steps[name] = install_steps(VERIFY_TIMER, verify_documents(), files, timer)
        else:
            steps[name] = remove_steps(VERIFY_TIMER, files, timer)
    return steps


def verify(rig: Procedure) -> str:
    """A line about the timers; StepFailed names one that does not run."""
    weekly = bool(rig.data(BackupData).weekly)
    for name in rig.snapshots:
        prove_timer(rig.run.state, name, VERIFY_TIMER, runs=weekly)
    return f"the backups are {'read' if weekly else 'no longer read'} each week"
