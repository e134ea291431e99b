"""What the tests of a take-over do again and again: watch the answers, take, give back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from facts.endpoint.completion import Endpoint, ask
from tests.system.adopt.setups import UNIT, Setup
from tests.system.engine.steps import head, wait_until
from tests.system.rehearsal import Done, Lab

OURS = "rigbook-engine.service"
TAKE = ("--data", "take=true")
# An answer takes a third of a second; an engine that is being ended may hold a question that long.
ASK_S, EVERY_S = 5.0, 0.3


@dataclass
class Gap:
    """The longest time without an answer, in seconds, while it was watched."""

    seconds: float = 0.0
    answered: list[float] = field(default_factory=list)


def watched(endpoint: Endpoint) -> AbstractContextManager[Gap]:
    """Asks for completions again and again, as a client would, and measures the longest gap."""
    return gaps(lambda: ask(endpoint, ASK_S).ok)


@contextmanager
def gaps(answers: Callable[[], bool]) -> Iterator[Gap]:
    """The same with any way to ask for a completion."""
    gap, over = Gap(), threading.Event()

    def watch() -> None:
        last = time.monotonic()
        while not over.is_set():
            if answers():
                gap.seconds = max(gap.seconds, time.monotonic() - last)
                last = time.monotonic()
                gap.answered.append(last)
            over.wait(EVERY_S)
        gap.seconds = max(gap.seconds, time.monotonic() - last)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gap
    finally:
        # one more question after the run's own proof
        time.sleep(2)
        over.set()
        thread.join()


def serves(lab: Lab, setup: Setup) -> None:
    """The former setup answers."""
    for host in ("test2", "test1"):
        setup.start(lab, host)
    answers(lab)


def answers(lab: Lab) -> None:
    """The former setup's head gives a completion, once it has loaded."""
    wait_until("the former setup answers", 300, lambda: ask(head(lab), 20).ok, poll_s=3)


def newest(lab: Lab, host: str = "test1") -> dict[str, Any]:
    """The newest change of a host's journal."""
    return lab.changes(host)[0]


def take(lab: Lab, *more: str) -> tuple[Done, Gap]:
    """A take-over, and the gap in the answers."""
    with watched(head(lab)) as gap:
        done = lab.pyinfra("adopt", *TAKE, *more)
    return done, gap


def give_back(lab: Lab) -> tuple[Done, Gap]:
    """A rollback of the newest change, and the gap in the answers."""
    with watched(head(lab)) as gap:
        done = lab.pyinfra("rollback", "--data", f"change={newest(lab)['id']}")
    return done, gap


def runs(lab: Lab, host: str) -> dict[str, str]:
    """What tells one state of a former setup from another: units, containers, the crontab."""
    states = "; ".join(
        f"echo {unit} $(systemctl is-enabled {unit} 2>/dev/null) $(systemctl is-active {unit})"
        for unit in (UNIT, OURS)
    )
    box = "{{.Name}} {{.State.Running}} {{.HostConfig.RestartPolicy.Name}}"
    return {
        "units": lab.ssh(host, states),
        "boxes": lab.ssh(host, f"sudo docker ps -aq | xargs -r sudo docker inspect -f '{box}'"),
        "crontab": lab.ssh(host, "cat /etc/crontab 2>/dev/null; true"),
        "files": lab.ssh(host, "sudo ls -A /etc/rigbook 2>/dev/null; true"),
    }  # fmt: skip
