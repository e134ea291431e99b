"""What a runbook asks of an engine, however it runs: installed by rigbook, or by a chart.

deploys/procedures/engine/installed.py has the containers and venvs,
deploys/procedures/cluster/deployment.py the Deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deploys.common.procedure import NOWHERE, Nodes, Procedure
from facts.rignode.together import Together
from gates.core.check import Observed
from gates.core.violation import Violation
from operations.change.apply import Steps
from operations.engine.engine import AS_RENDERED, Start
from schema.desired.plan import Plan
from schema.observed.endpoint_probe import Probe
from schema.observed.library import PodName


@dataclass(frozen=True)
class Work:
    """The steps of one serve run; everything empty when nothing is to do.

    `steps`, `before` (the texts that are there now) and `notes` (words about a path) are by node,
    `idle` is why a node has no step.
    `how` starts the head's engine (None: its unit). `restarts` are the pods, by uid, that start
    anew, `words` say why, `former` are the uids of those before the run.
    """

    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]
    idle: str = AS_RENDERED
    stop: Nodes = NOWHERE
    start: Nodes = NOWHERE
    needs_proof: bool = False
    how: Start | None = None
    words: Sequence[str] = ()
    restarts: Mapping[str, PodName] = field(default_factory=dict)
    former: frozenset[str] = frozenset()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def to_configure(self) -> frozenset[str]:
        """The nodes on which files or the unit are to be changed."""
        return frozenset(node for node, steps in self.steps.items() if steps)


@dataclass(frozen=True)
class Examined:
    """What the doctor saw of the rig and its engine: the nodes before and after the endpoint was
    asked, the endpoint, findings about what no snapshot holds.
    """

    observed: Observed
    probe: Probe | None = None
    after: Observed | None = None
    more: Sequence[Violation] = ()


class Runtime(Protocol):
    """An engine of one runtime, as the runbooks see it."""

    def ask_in_background(self, plan: Plan, deploy: str) -> object:
        """Begins to ask for a completion, where that helps `deploy`; DeployError when none could
        be proven.
        """

    def findings(self, plan: Plan) -> Sequence[Violation]:
        """What would let a start fail, and stands in no snapshot."""

    def plan(self, rig: Procedure) -> Work:
        """What serve has to do, from one observation."""

    def prove(self, plan: Plan, work: Work | None, patient: bool) -> str:
        """A line about a real answer; StepFailed says why there is none.

        `work` None: nothing was started by this run. `patient`: a start that fails and is tried
        again by itself is waited for (after a boot).
        """

    def verify(self, plan: Plan) -> Sequence[str]:
        """Lines about what answers; DeployError names what does not."""

    def examine(self, plan: Plan, asked: Together, look: Callable[[], Observed]) -> Examined:
        """The nodes, as `look` sees them, and the endpoint at the same time; for the doctor.

        What else is asked of the nodes is added to `asked`, whose command `look` sends.
        """

    def healthy(self, plan: Plan, seen: Examined) -> Sequence[str]:
        """Lines about what is well, for the doctor."""
