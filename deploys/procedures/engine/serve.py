"""What serve has to do on a rig and how it is proven, whatever the engine runs in."""

from __future__ import annotations

from collections.abc import Sequence

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.common.runtime import Work
from deploys.procedures.engine.runtimes import runtime_of
from gates.core.violation import Violation
from operations.change.run import Run
from operations.rollback.revert import revert_change
from schema.desired.plan import Plan


def ask_in_background(plan: Plan) -> object:
    """Begins to ask for a completion while the hosts are looked at; DeployError when no answer
    could be proven.
    """
    return runtime_of(plan).ask_in_background(plan, "serve")


def must_answer(plan: Plan) -> object:
    """DeployError when no answer of the engine could be proven from here."""
    return runtime_of(plan).ask_in_background(plan, "")


def findings(plan: Plan) -> Sequence[Violation]:
    """What would let a start fail, and stands in no snapshot."""
    return runtime_of(plan).findings(plan)


@once_a_run
def plan(rig: Procedure) -> Work:
    """The work of this run, planned once and shown once; all hosts get the same object."""
    return runtime_of(rig.plan).plan(rig)


def verify(rig: Procedure, patient: bool = False, work: Work | None = None) -> str:
    """A line about a real answer within the start budget; StepFailed says why there is none.

    `patient`: a start that systemd tries again by itself is waited for (after a boot).
    """
    return runtime_of(rig.plan).prove(rig.plan, work, patient)


def revert(run: Run) -> str:
    """Undoes the run's own change on every node that it touched."""
    return revert_change(run.state, run.plan, run.id, run.touched, run=run.owner.token)
