"""Which nodes a reboot takes down, and what has to be started again on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once
from deploys.common.snapshot_view import engine_may_run
from operations.change.run import Run
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot


@dataclass(frozen=True)
class RebootWork:
    """The steps of one reboot; node names in sets, boot ids by node."""

    run: Run
    nodes: frozenset[str]
    head_up: frozenset[str]
    workers_up: frozenset[str]
    to_start: frozenset[str]
    boots: Mapping[str, str]


def decide(
    plan: Plan,
    snapshots: Mapping[str, NodeSnapshot],
    only: str | None,
    make: Callable[[], Run],
) -> RebootWork:
    """The work of this run; DeployError when `only` is no node of the rig."""

    def work() -> RebootWork:
        names = frozenset(node.name for node in plan.rig.nodes)
        if only is not None and only not in names:
            known = ", ".join(sorted(names))
            raise DeployError(f"--data only={only}: no such node; the rig has: {known}")
        nodes = frozenset({only}) if only is not None else names
        up = frozenset(n for n, s in snapshots.items() if engine_may_run(s))
        head = frozenset({plan.rig.head.name})
        return RebootWork(
            run=make(),
            nodes=nodes,
            head_up=head & up,
            workers_up=up - head,
            to_start=up - nodes,
            boots={name: s.identity.boot_id for name, s in snapshots.items()},
        )

    return once("reboot", work)
