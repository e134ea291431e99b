"""What the engine tests do again and again: wait, kill an operator, ask the rig."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from facts.endpoint import Answer, Endpoint, ask
from tests.rehearsal import PYINFRA, ROOT, Lab


def head(lab: Lab) -> Endpoint:
    """The endpoint of the lab's head."""
    return Endpoint(f"http://{lab.hosts['lab1'].address}:8000", "tiny")


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


def killed_operator(lab: Lab, deploy: str, *arguments: str) -> str:
    """The id of a change whose operator was killed -9 once the head had been started."""
    known = {str(change["id"]) for change in lab.changes("lab1")}
    process = subprocess.Popen(
        [str(PYINFRA), "inventory/lab.py", f"deploys/{deploy}.py", *arguments, "-y"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def head_started() -> bool:
        newest = lab.changes("lab1")[0]
        return str(newest["id"]) not in known and any(
            step["op"] == "unit" and step["active"] == "start"
            for step in newest["steps"]  # type: ignore[attr-defined]
        )

    wait_until(f"{deploy} starts the head", 120, head_started)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return str(lab.changes("lab1")[0]["id"])
