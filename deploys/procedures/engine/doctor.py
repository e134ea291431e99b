"""What the doctor does with the gates: one look at the rig, its findings told, its exit status."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.away import told
from deploys.common.boot_needs import driver_module, load_lists
from deploys.common.known_bad import known, known_xids
from deploys.common.load_and_gate import remedy
from deploys.common.load_and_gate import report as report_finding
from deploys.common.procedure import Procedure
from deploys.common.runtime import Examined
from deploys.procedures.engine import bundle, terminal
from deploys.procedures.engine.runtimes import runtime_of
from facts.backups import TreeBackups
from facts.growth import Growths
from facts.hardware import observe_machines
from facts.host import Hosts
from facts.rignode.context import real
from facts.rignode.together import Together
from gates.core.waiver import blocking
from gates.doctor.examine import examine
from gates.doctor.healthy import went_back_lines
from gates.doctor.rank import Finding
from gates.doctor.strip import Strip, strips
from gates.firmware import checklist
from gates.health.xid import xids
from gates.host import backups, growth, keeps_alive
from gates.host import boots as boot_ends
from gates.kernel.known_bad import boots
from gates.kernel.next_boot import as_warning
from schema.inputs.host_data import HostData
from schema.inputs.runbook_data import DoctorData

_KEYS = (
    "code", "layer", "severity", "node", "summary", "evidence", "cause", "remedy", "explains",
    "unknown",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings about a rig, with what they were made from."""

    findings: Sequence[Finding]
    seen: Examined
    kept: growth.Growing
    hosts: keeps_alive.Hosts
    stored: backups.Stored


def diagnose(rig: Procedure) -> Diagnosis:
    """One look: all hosts, each by one command, and the endpoint at the same time; read-only."""
    plan, here = rig.plan, real(state)
    module, lists = driver_module(plan, rig.data(HostData)), load_lists()
    asked = Together(here, plan.requests)
    growing, hosting = asked.add(Growths()), asked.add(Hosts())
    # Of a rig whose engine rigbook installs.
    storing = asked.add(TreeBackups(), {} if plan.runtime == "deployment" else None)
    seen = runtime_of(plan).examine(
        plan, asked, lambda: observe_machines(here, plan, module, asked=asked)
    )
    hands = (
        *checklist.doctor(lists, time.time()),
        as_warning(boots(known())),
        xids(known_xids()),
    )
    kept, hosts, stored = growing(), hosting(), storing()
    more = (
        *seen.more,
        *growth.findings(plan, seen.observed, kept),
        *backups.findings(plan, seen.observed, stored),
        *keeps_alive.findings(plan, seen.observed, hosts),
        *boot_ends.findings(plan, seen.observed, hosts),
    )
    told(seen.observed)
    found = examine(plan, seen.observed, seen.probe, seen.after, more, hands)
    return Diagnosis(found, seen, kept, hosts, stored)


def strips_of(rig: Procedure, diagnosis: Diagnosis) -> dict[str, Strip]:
    """What was found in each layer of each node."""
    seen = diagnosis.seen
    return strips(rig.plan, seen.observed, diagnosis.findings, probed=seen.probe is not None)


def report(rig: Procedure, diagnosis: Diagnosis) -> None:
    """Tells the findings; DeployError (exit status 1) when one of them blocks serving."""
    findings = diagnosis.findings
    if rig.data(DoctorData).as_json:
        print(json.dumps([as_row(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            report_finding(finding, with_cause=True)
            if finding.explains:
                logger.warning(f"    because of this, ignore: {', '.join(finding.explains)}")
        for line in (
            *went_back_lines(diagnosis.seen.observed),
            *growth.lines(diagnosis.kept),
            *backups.lines(diagnosis.stored, time.time()),
            *boot_ends.lines(diagnosis.hosts),
        ):
            logger.info(f"    {line}")
        terminal.show(strips_of(rig, diagnosis))
    if rig.data(DoctorData).bundle is not None:
        _bundle(rig, diagnosis)
    stops = blocking(findings)
    if stops:
        raise DeployError(
            f"{len(stops)} finding(s) block serving, the likeliest cause first: {findings[0].code} "
            f"on {findings[0].node or 'the rig'}"
        )
    for line in runtime_of(rig.plan).healthy(rig.plan, diagnosis.seen):
        logger.info(f"    {line}")


def _bundle(rig: Procedure, diagnosis: Diagnosis) -> None:
    path = Path(str(rig.data(DoctorData).bundle))
    rows = [as_row(finding) for finding in diagnosis.findings]
    bundle.write(path, rig.plan, diagnosis.seen.observed, rows, bundle.logs(state, rig.plan))
    logger.info(f"    wrote {path}, secrets masked; look through it before you show it to anybody")


def as_row(finding: Finding) -> dict[str, object]:
    """A finding for a machine: the keys of docs/runbooks/doctor.md, in their order."""
    values = {
        **{key: getattr(finding, key) for key in _KEYS},
        "layer": finding.layer.name.lower(),
        "remedy": remedy(finding),
    }
    return {key: values[key] for key in _KEYS}
