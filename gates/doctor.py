"""Everything that the doctor asks beyond the serving gates: what serve mends does not block it."""

from __future__ import annotations

from collections.abc import Sequence

from gates import boot, clocks, drifted, launch, leftovers, pair, standing, supervision
from gates.answers import answered
from gates.base import Gate, Observed
from gates.causes import Finding, explain
from gates.serving import SERVING, check
from gates.violation import Violation
from schema.engine import Plan
from schema.kernel import KernelSnapshot
from schema.probe import Probe

DOCTOR: tuple[Gate, ...] = (
    *clocks.GATES,
    *leftovers.GATES,
    *supervision.GATES,
    *launch.GATES,
    *standing.GATES,
    *pair.GATES,
    *drifted.GATES,
)


def examine(
    plan: Plan,
    observed: Observed,
    probe: Probe | None = None,
    after: Observed | None = None,
    more: Sequence[Violation] = (),
    hands: Sequence[Gate] = (),
) -> list[Finding]:
    """All findings about a rig, the likeliest cause first.

    `probe` None: the endpoint was not asked. `after`: the nodes after a probe that failed. `more`:
    what was found in files that no snapshot holds (patches, the table of versions). `hands`:
    gates/firmware.py's, where the hardware was asked for.
    """
    found = [*check(plan, observed, (*SERVING, *DOCTOR)), *more]
    if any(isinstance(snapshot, KernelSnapshot) for snapshot in observed.values()):
        found += check(plan, observed, [boot.softened(gate) for gate in boot.BOOT])
    found += check(plan, observed, hands)
    if probe is not None:
        found += answered(plan, probe, observed, after or observed)
    ranks = {node.name: node.rank for node in plan.rig.nodes}
    return explain(found, ranks)
