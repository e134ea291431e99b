"""What the engine tests do again and again: wait, kill an operator, ask the rig."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable

from facts.endpoint import Answer, Endpoint, ask
from lab import incidents
from lab.core import LabHost
from tests.system.rehearsal import PYINFRA, ROOT, Done, Lab


def first(lab: Lab) -> LabHost:
    """The lab's head."""
    return next(iter(lab.hosts.values()))


def head(lab: Lab) -> Endpoint:
    """The endpoint of the lab's head."""
    return Endpoint(f"http://{first(lab).address}:8000", "tiny")


def infra(lab: Lab) -> tuple[int, str]:
    """tests/infra against the lab: exit status and what it printed."""
    done = lab.run(sys.executable, "-m", "pytest", "-q", "tests/infra", "--rig", "inventory/lab.py")
    return done.rc, done.text


def wait_until(what: str, budget_s: float, true: Callable[[], object], poll_s: float = 1) -> float:
    """Polls until `true()` holds; the seconds it took. Fails naming `what` after the budget."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < budget_s, f"{what}: not within {budget_s:.0f} s"
        time.sleep(poll_s)
    return time.monotonic() - started


def wait_for_completion(lab: Lab, budget_s: float = 300) -> float:
    """Seconds until the rig answers a real completion, with nobody mending it."""

    def answers() -> bool:
        answer: Answer = ask(head(lab), 20)
        return answer.ok

    seconds = wait_until("a real completion", budget_s, answers, poll_s=3)
    print(f"REPLAY answers again after {seconds:.0f} s")
    return seconds


def doctor(lab: Lab) -> list[dict[str, object]]:
    """The doctor's findings as data, without the warnings that every lab has."""
    done = lab.pyinfra("doctor", "--data", "json=true")
    begin = re.search(r"^\[$|^\[\]$", done.text, re.MULTILINE)
    assert begin is not None, done.text
    rows = json.JSONDecoder().raw_decode(done.text[begin.start() :])[0]
    found = [row for row in rows if row["code"] != "driver-stand-in"]
    first = f"{found[0]['code']}: {found[0]['summary']}" if found else "nothing blocks"
    print(f"REPLAY doctor {done.seconds:.1f} s: {first} | {[row['code'] for row in found]}")
    return found


def named(rows: list[dict[str, object]]) -> set[tuple[object, object]]:
    """(code, node) of findings."""
    return {(row["code"], row["node"]) for row in rows}


def mended(done: Done) -> None:
    """A deploy that ended with a real answer."""
    assert done.rc == 0, done.text
    assert "answers at" in done.text
    print(f"REPLAY mended in {done.seconds:.0f} s")


def start(deploy: str, *arguments: str) -> subprocess.Popen[str]:
    """A deploy on the lab that runs on; what it prints is read at its end."""
    return subprocess.Popen(
        [str(PYINFRA), "inventory/lab.py", f"deploys/{deploy}.py", *arguments, "-y"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def killed_operator(lab: Lab, deploy: str, *arguments: str) -> str:
    """The id of a change whose operator was killed -9 once the head had been started."""
    return incidents.killed_operator(lab, first(lab).name, "inventory/lab.py", deploy, *arguments)
