"""Everything that the doctor asks beyond the serving gates: what serve mends does not block it."""

from __future__ import annotations

from collections.abc import Sequence

from gates.core.check import Gate, Observed
from gates.core.violation import Violation
from gates.doctor.endpoint import answered
from gates.doctor.rank import Finding, explain
from gates.drift import findings
from gates.engine import foreign_engine, peers, silence
from gates.gate_sets import SERVING, check
from gates.health import gpu, host, links, part
from gates.host import clock
from gates.kernel import next_boot
from gates.unit import crash_loop, launch_script, supervision
from schema.desired.plan import Plan
from schema.observed.endpoint_probe import Probe
from schema.observed.kernel import KernelSnapshot

DOCTOR: tuple[Gate, ...] = (
    *part.GATES,
    *gpu.GATES,
    *links.GATES,
    *host.GATES,
    *clock.GATES,
    *foreign_engine.GATES,
    *supervision.GATES,
    *launch_script.GATES,
    *crash_loop.GATES,
    *peers.GATES,
    *silence.GATES,
    *findings.GATES,
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
    gates with tables of the catalog: gates/firmware/checklist.py's, gates/kernel/known_bad.py's,
    gates/health/xid.py's.
    """
    found = [*check(plan, observed, (*SERVING, *DOCTOR)), *more]
    if any(isinstance(snapshot, KernelSnapshot) for snapshot in observed.values()):
        found += check(plan, observed, [next_boot.as_warning(gate) for gate in next_boot.BOOT])
    found += check(plan, observed, hands)
    if probe is not None:
        found += answered(plan, probe, observed, after or observed)
    ranks = {node.name: node.rank for node in plan.rig.nodes}
    return explain(found, ranks)
