"""An incident on the twin: dealt, told as an operator sees it, judged, timed."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from facts.endpoint.completion import Endpoint, ask
from lab.core import cache, console
from lab.core.settings import LabError, LabSettings
from lab.hosts.consoles import Hosts
from lab.rehearsal.incidents import breaks
from lab.rehearsal.incidents.breaks import ENGINE, ROOT
from lab.rehearsal.incidents.not_held import NOT_HELD
from lab.rehearsal.incidents.table import HEAD, HELD, KEPT_COPY, Incident, Rig

CLIENT_S = 20


def rig_of(settings: LabSettings) -> Rig:
    """The twin that is up; LabError where none is."""
    twin = settings.twin()
    if twin is None:
        raise LabError("there is no twin: make rehearse INVENTORY=inventory/spark.py")
    (recipe,) = (ROOT / twin.inventory).parents[1].glob("recipes/*.yaml")
    text = recipe.read_text()
    found: Mapping[str, Any] = json.loads(text[text.index("{") :])
    return Rig(Hosts(settings), twin.names, twin.inventory, found, twin.user)


def noted(settings: LabSettings) -> Path:
    """Where the incident that is open is noted."""
    return settings.home / "incident.json"


def endpoint(rig: Rig) -> Endpoint:
    """Where the twin's clients ask."""
    serve = rig.recipe["vllm_serve"]
    address = rig.hosts.hosts[rig.head].address
    return Endpoint(f"http://{address}:{serve['port']}", str(serve["served_model_name"]))


def row_of(rig: Rig, code: str) -> Incident:
    """The incident of that code; LabError says why the twin cannot hold it."""
    if code in NOT_HELD:
        raise LabError(f"{code} is not on a twin: {NOT_HELD[code]}")
    row = HELD.get(code)
    if row is None:
        raise LabError(f"no incident {code!r}; a twin holds: {', '.join(HELD)}")
    if not row.on & rig.kinds:
        fit = ", ".join(one.code for one in HELD.values() if one.on & rig.kinds)
        raise LabError(f"{code} needs another rig ({' or '.join(sorted(row.on))}); here: {fit}")
    return row


def deal(settings: LabSettings, code: str) -> None:
    """Breaks the twin, says what somebody noticed, and starts the clock.

    LabError where one is open, or where the twin does not serve: nothing can be told from a rig
    that was down before.
    """
    rig = rig_of(settings)
    row = row_of(rig, code)
    if noted(settings).exists():
        opened = json.loads(noted(settings).read_text())["code"]
        raise LabError(f"{opened} is not mended yet: make incident-check ID={opened}")
    answer = ask(endpoint(rig), CLIENT_S)
    if not answer.ok:
        raise LabError(f"the twin does not serve ({answer.detail}): pyinfra {rig.inventory} "
                       "deploys/serve.py -y")  # fmt: skip
    # noted first: what is half broken is mended as what is broken
    noted(settings).write_text(json.dumps({"code": code, "began": time.time()}) + "\n")
    with console.phase("something happens"):
        row.broken(rig)
    for line in symptom(rig, row):
        console.say(line)
    began = time.time()
    noted(settings).write_text(json.dumps({"code": code, "began": began}) + "\n")
    console.say(f"the clock runs; first look: pyinfra {rig.inventory} deploys/doctor.py -y")
    console.say(f"when it is mended: make incident-check ID={code}")


def symptom(rig: Rig, row: Incident) -> list[str]:
    """What an operator sees before any look at a cause: what was told, a client, the units."""
    answer = ask(endpoint(rig), CLIENT_S)
    lines = [f"told: {row.tells}", f"a client: {answer.detail}"]
    for name in rig.names:
        state, how, status = rig.hosts.unit(name, "ActiveState", "Result", "ExecMainStatus")
        lines.append(f"{name}: {ENGINE} is {state} ({how}, last exit status {status})")
    return lines


def doctor(rig: Rig) -> list[dict[str, Any]]:
    """The doctor's findings as data; LabError where it could not look."""
    done = pyinfra(rig, "doctor", "--data", "json=true")
    begin = re.search(r"^\[$|^\[\]$", done.stdout, re.MULTILINE)
    if begin is None:
        raise LabError(f"the doctor said nothing: {(done.stdout.strip().splitlines() or [''])[-1]}")
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(done.stdout[begin.start() :])[0]
    return found


def pyinfra(rig: Rig, deploy: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A runbook on the twin, as the operator would type it."""
    return breaks.run_deploy(rig.inventory, deploy, *arguments)


def faults(rig: Rig, row: Incident) -> list[str]:
    """What is still wrong: the doctor's findings, no answer of our own engine, what was left."""
    found = doctor(rig)
    wrong = [
        f"the doctor still says {one['code']} of {one['node']}: {one['summary']}"
        for one in found
        if one["severity"] == "block" or (one["code"] in row.codes and not row.warns)
    ]
    verified = pyinfra(rig, "verify")
    if verified.returncode != 0:
        wrong.append(f"verify fails: {reason(verified.stdout)}")
    for name in rig.names:
        left = rig.hosts.ssh(name, row.left)
        if left:
            wrong.append(f"left behind on {name}: {' '.join(left.split())}")
        (change, *_) = rig.hosts.changes(name) or [{"status": "COMMITTED", "id": ""}]
        if change["status"] == "OPEN":
            wrong.append(f"change {change['id']} is open on {name}")
    return wrong


def reason(text: str) -> str:
    """The last line of a runbook's output that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if "rror" in line or "not answer" in line]
    return (lines or text.strip().splitlines() or ["no word"])[-1]


def check(settings: LabSettings, code: str) -> int:
    """Judges the open incident; 0 and its seconds when it is mended, else 1 and what is not."""
    rig = rig_of(settings)
    row = row_of(rig, code)
    try:
        opened = json.loads(noted(settings).read_text())
    except FileNotFoundError:
        raise LabError(f"no incident is open: make incident ID={code}") from None
    if opened["code"] != code:
        raise LabError(f"the open incident is {opened['code']}")
    seconds = time.time() - opened["began"]
    wrong = faults(rig, row)
    for line in wrong:
        console.say(f"{code}: {line}")
    if wrong:
        console.say(f"{code}: not mended after {seconds:.0f} s; the clock runs on")
        return 1
    row.after(rig)
    cache.remove(noted(settings))
    console.say(f"{code}: mended in {seconds:.0f} s: the doctor finds none of it, our own engine "
                "answered, nothing is left behind")  # fmt: skip
    return 0


def mend(rig: Rig, row: Incident) -> Sequence[str]:
    """Mends by what the row names; a line a step. For who checks the table, not for practice."""
    said = []
    for step in row.mends:
        if KEPT_COPY in step:
            copies = rig.hosts.ssh(rig.head, f"sudo ls {breaks.DISK}/rigbook/{rig.head}")
            step = step.replace(KEPT_COPY, copies.split()[-1])
        step = step.replace(HEAD, rig.head)
        word, *rest = step.split()
        if word == "remedy":
            where, command = by_hand(next(one for one in doctor(rig) if one["code"] == rest[0]))
            rig.hosts.ssh(where, command)
            said.append(f"by hand on {where}: {command}")
            continue
        done = pyinfra(rig, word, *rest)
        said.append(f"{step}: exit status {done.returncode}")
        if done.returncode != 0:
            raise LabError(f"{row.code}: {step} failed: {reason(done.stdout)}\n{done.stdout}")
    return said


def by_hand(finding: Mapping[str, Any]) -> tuple[str, str]:
    """The host and the command of a remedy that is typed on a node (`on NODE: COMMAND`)."""
    node = str(finding["node"])
    return node, str(finding["remedy"]).split(f"on {node}: ")[1]
