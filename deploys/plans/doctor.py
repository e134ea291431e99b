"""What the doctor does with the gates: one look at the rig, its findings told, its exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

import gevent
from pyinfra import logger, state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import driver_module, known, known_xids, load_lists
from deploys.plans.rig import Examined, Procedure, remedy, report_load_and_gate, told
from deploys.plans.serve import runtime_of
from facts import plain
from facts.local import SecretMissing, value_of
from facts.looks import Growths, Hosts, observe_machines
from facts.node import Together, TreeBackups, fact_of, real
from gates import firmware, storage
from gates.core import Observed, blocking
from gates.doctor import Finding, Strip, StripState, examine, strips, went_back_lines
from gates.health import xids
from gates.kernel import as_warning
from gates.known_bad import boots
from gates.recipe import running_profile
from node.rules.secret import MASK, SECRET_FLAG, SECRET_NAME, holds_secret, masked_text
from schema.keys import DoctorData, HostData
from schema.plan import UNIT, Plan
from schema.snapshot import NodeSnapshot

# What leaves for a file on this machine, with every secret masked: by value, by name, by form.

# A variable that a command line or a unit sets; the quotes may be before its name or its value.
_SET = re.compile(
    r"(?P<q>['\"])(?P<quoted>[A-Z][A-Z0-9_]*)=[^'\"]*(?=(?P=q))"
    r"|(?<![\w-])(?P<name>[A-Z][A-Z0-9_]*)=(?:'[^']*'|\"[^\"]*\"|(?!/)[^\s'\"]{6,})"
)


def hidden_values(plan: Plan) -> list[str]:
    """The values of the recipe's secrets that this machine has: no text may hold one."""
    found = []
    for name, source in plan.recipe.secrets.items():
        try:
            secret = value_of(name, source)
        except SecretMissing:
            continue
        found += [secret.reveal()] if secret is not None else []
    return found


def hidden_text(line: str, known: Sequence[str]) -> str:
    """A text without the known values and without what looks like a secret."""
    for value in known:
        line = line.replace(value, MASK)
    return masked_text(_SET.sub(_assigned, line))


def _assigned(found: re.Match[str]) -> str:
    """An assignment, its value masked where its name says that it is a secret."""
    name = found["quoted"] or found["name"]
    if not SECRET_NAME.search(name):
        return found[0]
    return f"{found['q'] or ''}{name}={MASK}"


def as_text(value: object, known: Sequence[str]) -> str:
    """Plain data as JSON text, its secrets masked."""
    return json.dumps(data(value, known), indent=1, sort_keys=True) + "\n"


def data(value: object, known: Sequence[str], name: str = "") -> object:
    """Plain data with its texts masked, and those under a secret's name wholly."""
    if isinstance(value, Mapping):
        return {str(key): data(one, known, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        before = [None, *value]
        return [
            MASK if isinstance(flag, str) and SECRET_FLAG.match(flag) else data(one, known, name)
            for flag, one in zip(before, value, strict=False)
        ]
    if isinstance(value, str):
        # a variable's name is written in capitals; `max_tokens` and its like are no secrets
        whole = name.isupper() and SECRET_NAME.search(name) and len(value) > 5
        return MASK if whole or holds_secret(name, inside=True) else hidden_text(value, known)
    return value


# One archive for a report about a rig: snapshots, findings, logs, versions; secrets masked.

LOG_LINES = 1000


def logs(state: State, plan: Plan) -> dict[str, list[str]]:
    """The last lines of each node's engine unit; none of a node that cannot be asked, and none
    where a chart runs the engine.
    """
    if plan.runtime == "deployment":
        return {}
    state = real(state)
    jobs = {
        node.name: gevent.spawn(
            fact_of, state, state.inventory.get_host(node.name), plain.Log, UNIT, LOG_LINES
        )
        for node in plan.rig.nodes
    }
    gevent.joinall(list(jobs.values()))
    return {name: job.get() or [] for name, job in jobs.items()}


def write_bundle(
    path: Path,
    plan: Plan,
    observed: Observed,
    findings: Sequence[Mapping[str, object]],
    lines: Mapping[str, Sequence[str]],
) -> None:
    """Writes the archive, readable by its owner alone; DeployError when it cannot be written.

    A file that is there is not overwritten.
    """
    known = hidden_values(plan)
    files = {
        "findings.json": as_text(findings, known),
        "versions.json": as_text(_versions(plan, observed), known),
        **{f"snapshots/{name}.json": as_text(one.to_json(), known)
           for name, one in observed.items()},
        **{f"logs/{name}.log": "".join(hidden_text(line, known) + "\n" for line in rows)
           for name, rows in lines.items()},
    }  # fmt: skip
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in sorted(files.items()):
                _add(archive, f"rigbook-{plan.rig.name}/{name}", text.encode())
    except OSError as error:
        raise DeployError(
            f"--data bundle: {path} cannot be written: {error.strerror}; name a new file"
        ) from None


def _add(archive: tarfile.TarFile, name: str, raw: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(raw), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(raw))


def _versions(plan: Plan, observed: Observed) -> dict[str, object]:
    """What runs here and there, for who reads the report."""
    head = observed.get(plan.rig.head.name)
    return {
        "operator": {"python": platform.python_version(), "pyinfra": version("pyinfra")},
        "recipe": plan.recipe.name,
        "profile": running_profile(plan, plan.rig.head, head)
        if isinstance(head, NodeSnapshot)
        else "profile not seen",
        "runtime": plan.runtime,
        "nodes": {
            name: _node(one) if isinstance(one, NodeSnapshot) else one.to_json()
            for name, one in observed.items()
        },
    }


def _node(snapshot: NodeSnapshot) -> dict[str, object]:
    identity, gpus, docker = snapshot.identity, snapshot.gpus, snapshot.docker
    return {
        "os": f"{identity.os_id} {identity.os_version}",
        "kernel": identity.kernel,
        "driver": getattr(gpus, "driver_version", None),
        "docker": getattr(docker, "version", None),
        "node": snapshot.node_version,
    }


# The strip of a rig in a terminal: a line a node, each layer with a sign, so that no colour is
# needed to read it.

SIGNS: dict[StripState, str] = {"ok": "✓", "warn": "!", "unknown": "?", "block": "✗"}
_COLOURS: dict[StripState, str] = {
    "ok": "green", "warn": "yellow", "unknown": "bright_black", "block": "bold red",
}  # fmt: skip


def show(strips: Mapping[str, Strip], to: TextIO | None = None) -> None:
    """Prints the strips; nothing where `to` (none: stdout) is no terminal."""
    out = to or sys.stdout
    if not out.isatty():
        return
    # 30 ms, which no run without a terminal pays
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=out)
    width = max((len(name) for name in strips), default=0)
    for name, strip in strips.items():
        line = Text(name.ljust(width))
        for layer, found in strip.items():
            line.append(" ")
            # a no-break space: a sign stays with its layer
            line.append(f"{SIGNS[found]}\u00a0{layer.name.lower()}", _COLOURS[found])
        console.print(Padding(line, (0, 0, 0, 4)))
    console.print(Text(f"    {SIGNS['ok']} nothing found  {SIGNS['warn']} warns  "
                       f"{SIGNS['unknown']} unknown  {SIGNS['block']} blocks", "dim"))  # fmt: skip


_KEYS = (
    "code", "layer", "severity", "node", "summary", "evidence", "cause", "remedy", "explains",
    "unknown",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings about a rig, with what they were made from."""

    findings: Sequence[Finding]
    seen: Examined
    kept: storage.Growing
    hosts: firmware.Hosts
    stored: storage.Stored


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
        *firmware.doctor(lists, time.time()),
        as_warning(boots(known())),
        xids(known_xids()),
    )
    kept, hosts, stored = growing(), hosting(), storing()
    more = (
        *seen.more,
        *storage.growth_findings(plan, seen.observed, kept),
        *storage.backup_findings(plan, seen.observed, stored),
        *firmware.keeps_alive_findings(plan, seen.observed, hosts),
        *firmware.boot_findings(plan, seen.observed, hosts),
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
            report_load_and_gate(finding, with_cause=True)
            if finding.explains:
                logger.warning(f"    because of this, ignore: {', '.join(finding.explains)}")
        for line in (
            *went_back_lines(diagnosis.seen.observed),
            *storage.growth_lines(diagnosis.kept),
            *storage.backup_lines(diagnosis.stored, time.time()),
            *firmware.boots_lines(diagnosis.hosts),
        ):
            logger.info(f"    {line}")
        show(strips_of(rig, diagnosis))
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
    write_bundle(path, rig.plan, diagnosis.seen.observed, rows, logs(state, rig.plan))
    logger.info(f"    wrote {path}, secrets masked; look through it before you show it to anybody")


def as_row(finding: Finding) -> dict[str, object]:
    """A finding for a machine: the keys of docs/runbooks/doctor.md, in their order."""
    values = {
        **{key: getattr(finding, key) for key in _KEYS},
        "layer": finding.layer.name.lower(),
        "remedy": remedy(finding),
    }
    return {key: values[key] for key in _KEYS}
