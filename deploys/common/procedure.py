"""Load, gate and run: one object that all hosts of a runbook's run share.

pyinfra runs a deploy file once a host. `gated` gives the same Procedure to each of them:

    rig = gated("stop", CHANGING)
    work = stop.plan(rig)
    engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.away import told
from deploys.common.load_and_gate import (
    INSTALLED,
    gate,
    gate_here,
    host_here,
    load,
    once,
    operator_data,
)
from deploys.common.snapshot_view import engine_may_run
from deploys.common.take_up import TakenUp, rollback, take_up
from facts.observe import observe
from gates.core.check import Gate, Observed
from gates.core.violation import Violation
from operations.change.run import Run
from schema.desired.plan import Plan, Runtime
from schema.inputs.host_data import HostData
from schema.observed.snapshot import NodeSnapshot

Revert = Callable[[Run], str]
Waivers = tuple[tuple[str, str], ...]
D = TypeVar("D", bound=HostData)


@dataclass(frozen=True)
class Nodes:
    """Names of nodes, the head apart from the workers: a rig stops and starts them in order."""

    head: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """The head and the workers."""
        return self.head | self.workers

    def among(self, names: Collection[str]) -> Nodes:
        """Those of them that are in `names`."""
        return Nodes(self.head & frozenset(names), self.workers & frozenset(names))


NOWHERE = Nodes()


class Procedure:
    """A runbook's run on a rig. `plan` is what is wanted; once `gate` has let it pass,
    `snapshots` are what is, by node, and `waivers` the (code, reason) pairs that were used.

    `revert` brings the rig back when a step of the run fails, and gives a line about it.
    """

    def __init__(self, deploy: str, plan: Plan, revert: Revert | None = None) -> None:
        self.deploy = deploy
        self.plan = plan
        self.snapshots: Mapping[str, NodeSnapshot] = {}
        self.waivers: Waivers = ()
        self._taken: TakenUp | None = None
        self._revert = revert

    def data(self, kind: type[D]) -> D:
        """The checked data of the host in context, as the runbook's type `kind`."""
        return operator_data(kind)

    def asked_nodes(self, only: str | None, key: str = "only") -> tuple[str, ...]:
        """The node that --data `key` names, or all of them by rank where it names none; DeployError
        when it is no node of the rig.
        """
        names = tuple(node.name for node in self.plan.rig.nodes)
        if only is not None and only not in names:
            raise DeployError(f"--data {key}={only}: no such node; the rig has: {', '.join(names)}")
        return (only,) if only is not None else names

    @property
    def at_head(self) -> bool:
        """Whether the host in context is the rig's head, where a run is proven."""
        return host_here() == self.plan.rig.head.name

    def gate(
        self,
        gates: Sequence[Gate],
        plan: Plan | None = None,
        look: Callable[[], Observed] | None = None,
        more: Callable[[], Sequence[Violation]] | None = None,
    ) -> None:
        """Whether: observes the rig and asks the gates, once; DeployError when a finding blocks.
        What a dead run of this runbook left open is taken up before (deploys/common/take_up.py).

        `plan` takes the place of the rig's (one that looks at more); `look` observes more; `more`
        gives findings about what no snapshot holds.
        """
        self.plan = plan or self.plan

        def seen() -> Observed:
            found, self._taken = take_up(
                self.deploy, self.plan, lambda: told(look() if look else observe(state, self.plan))
            )
            return found

        with self._left_open():
            self.snapshots, self.waivers = gate(self.plan, gates, seen, more)

    def gate_more(self, found: Sequence[Violation]) -> None:
        """Whether, of findings that only the plan could ask for: DeployError when one blocks; the
        run has the waivers that were used.
        """
        with self._left_open():
            self.run.waivers = (*self.run.waivers, *gate_here(found))

    @contextmanager
    def _left_open(self) -> Iterator[None]:
        """A refusal says what it leaves open, where a dead run's change was taken up before."""
        try:
            yield
        except DeployError as error:
            if self._taken is None:
                raise
            left = self._taken.owner
            left.end(settled=False)
            raise DeployError(
                f"{str(error).removeprefix('nothing was changed: ')}; change {left.change} was "
                f"taken back and stays open; to start again what served before: "
                f"{rollback(left.change)}"
            ) from None

    @cached_property
    def run(self) -> Run:
        """The one change of this run."""
        owner = self._taken.owner if self._taken else None
        data = operator_data()
        lease_s = None if "lease" in data.unused else data.lease
        run = Run(state, self.deploy, self.plan, self.waivers, self._revert, owner, lease_s)
        run.context.update(self._taken.context if self._taken else {})
        return run

    @property
    def nodes(self) -> Nodes:
        """All nodes of the rig."""
        workers = frozenset(node.name for node in self.plan.rig.workers)
        return Nodes(frozenset({self.plan.rig.head.name}), workers)

    @property
    def up(self) -> Nodes:
        """The nodes on which the engine runs, is about to, or cannot be told to be down."""
        return self.nodes.among([n for n, s in self.snapshots.items() if engine_may_run(s)])


def loaded(
    deploy: str, revert: Revert | None = None, runtimes: Collection[Runtime] = INSTALLED
) -> Procedure:
    """Load: what inventory, group_data and --data ask for; DeployError says what is wrong there.

    `runtimes`: those that the runbook can do something for.
    """
    return once(f"procedure {deploy}", lambda: Procedure(deploy, load(runtimes), revert))


def gated(
    deploy: str,
    gates: Sequence[Gate],
    revert: Revert | None = None,
    meanwhile: Callable[[Plan], object] | None = None,
    more: Callable[[Plan], Sequence[Violation]] | None = None,
    runtimes: Collection[Runtime] = INSTALLED,
) -> Procedure:
    """Load and gate: nothing has been changed on any host when a finding blocks.

    `meanwhile` begins what takes its time (a question to the endpoint) before the hosts are asked;
    `more` gives findings about what no snapshot holds.
    """
    procedure = loaded(deploy, revert, runtimes)
    if meanwhile is not None:
        once("meanwhile", lambda: meanwhile(procedure.plan))
    procedure.gate(gates, more=partial(more, procedure.plan) if more else None)
    return procedure
