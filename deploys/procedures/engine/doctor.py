"""What the doctor does with the gates: one look at the rig, its findings told, its exit status."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence

import gevent
from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError
from pyinfra.api.output import format_text

from deploys.common.load_and_gate import endpoint, operator_data, remedy
from deploys.common.patch_findings import InForce, installed_versions
from deploys.procedures.host.firmware import load_lists
from deploys.procedures.host.kernel import driver_module
from facts.endpoint.probe import probe
from facts.hardware import observe_machines
from facts.kernels import observe_kernels
from facts.observe import observe, real
from gates.core.waiver import blocking
from gates.doctor.examine import examine
from gates.doctor.healthy import at_work
from gates.doctor.rank import Finding
from gates.firmware import checklist
from schema.desired.plan import Plan
from schema.inputs.runbook_data import DoctorData
from schema.observed.endpoint_probe import Probe
from schema.observed.snapshot import NodeSnapshot, Unreadable

# The whole look is to end in seconds, also at an endpoint that hangs.
PROBE_S = 5.0
# An engine that its first request kills takes a moment to die.
DYING_S = 1.0
_KEYS = (
    "code", "layer", "severity", "node", "summary", "evidence", "cause", "remedy", "explains",
    "unknown",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings about a rig, with what they were made from."""

    findings: Sequence[Finding]
    observed: Mapping[str, NodeSnapshot | Unreadable]
    probe: Probe


def diagnose(state: State, plan: Plan) -> Diagnosis:
    """One look: all hosts and the endpoint at the same time, read-only.

    Only an engine that lists its model and fails at a chat is looked at twice: it may be dying.
    """
    state = real(state)
    patches = InForce(state, plan)
    asked = gevent.spawn(probe, endpoint(plan), PROBE_S)
    module, lists = driver_module(plan, operator_data()), load_lists()
    before = observe_machines(state, plan, lambda: observe_kernels(state, plan, module))
    answer = asked.get()
    after = None
    if answer.models == 200 and answer.failure in ("status", "disconnected"):
        gevent.sleep(DYING_S)
        after = observe(state, plan, fresh=True)
    more = [*patches.findings(before), *installed_versions(plan, before, answer.failure is None)]
    hands = checklist.doctor(lists, time.time())
    return Diagnosis(examine(plan, before, answer, after, more, hands), before, answer)


def print_report(plan: Plan, diagnosis: Diagnosis) -> None:
    """Tells the findings; DeployError (exit status 1) when one of them blocks serving."""
    findings = diagnosis.findings
    if operator_data(DoctorData).as_json:
        print(json.dumps([as_row(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            tell(finding)
    stops = blocking(findings)
    if stops:
        raise DeployError(
            f"{len(stops)} finding(s) block serving, the likeliest cause first: {findings[0].code} "
            f"on {findings[0].node or 'the rig'}"
        )
    for node in plan.rig.nodes:
        snapshot = diagnosis.observed[node.name]
        if isinstance(snapshot, NodeSnapshot):
            logger.info(f"    {at_work(plan, node, snapshot)}")
    names = ", ".join(node.name for node in plan.rig.nodes)
    logger.info(
        f"    {names}: {plan.recipe.name} ({plan.profile}) serves; nothing blocks; "
        f"{diagnosis.probe.detail}"
    )


def as_row(finding: Finding) -> dict[str, object]:
    """A finding for a machine: the keys of docs/runbooks/doctor.md, in their order."""
    values = {
        **{key: getattr(finding, key) for key in _KEYS},
        "layer": finding.layer.name.lower(),
        "remedy": remedy(finding),
    }
    return {key: values[key] for key in _KEYS}


def tell(finding: Finding) -> None:
    """A finding for a person: code, place, summary, evidence, cause, command, what it explains."""
    colour = "red" if finding.severity == "block" else "yellow"
    where = f" [{finding.node}]" if finding.node else ""
    head = format_text(f"{finding.severity} {finding.code}", colour, bold=True)
    logger.warning(f"{head}{where} {finding.layer.name.lower()}: {finding.summary}")
    logger.warning(f"    evidence: {finding.evidence}")
    logger.warning(f"    cause:    {finding.cause}")
    logger.warning(f"    mend:     {remedy(finding)}")
    if finding.explains:
        logger.warning(f"    because of this, ignore: {', '.join(finding.explains)}")
