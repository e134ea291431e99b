"""The tower as an operator and as a person at its console, and what its tests do often."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from facts.endpoint import Endpoint, ask
from lab import incidents
from tests.system.rehearsal import Done, Lab

INVENTORY = "inventory/labtower.py"
VENV = "/opt/engine/venv"
UNIT = "rigbook-engine.service"


class Tower(Lab):
    """The lab's tower."""

    @property
    def name(self) -> str:
        """Its host name."""
        return next(host.name for host in self.hosts.values() if host.is_tower)

    @property
    def endpoint(self) -> Endpoint:
        """Where its engine answers."""
        return Endpoint(f"http://{self.hosts[self.name].address}:8000", "tiny")

    def deploy(self, deploy: str, *arguments: str, yes: bool = True) -> Done:
        """Runs a deploy against the tower alone, whatever else is in the lab."""
        return self.pyinfra(deploy, *arguments, yes=yes, inventory=INVENTORY)

    def on(self, command: str, check: bool = True) -> str:
        """A shell command on the tower as the login user; its standard output."""
        return self.ssh(self.name, command, check=check)

    def values(self, *names: str) -> list[str]:
        """Values of properties of the engine's unit."""
        return self.unit(self.name, *names)

    def main_pid(self) -> str:
        """The engine's main process."""
        return self.values("MainPID")[0]

    def started_at(self) -> float:
        """When its engine's process was started, on this machine's monotonic clock, which a host
        of the lab shares."""
        return int(self.values("ExecMainStartTimestampMonotonic")[0]) / 1e6

    def newest(self) -> dict[str, Any]:
        """The newest change of its journal."""
        return self.changes(self.name)[0]

    def infra(self) -> Done:
        """tests/infra against the tower."""
        return self.run(sys.executable, "-m", "pytest", "-q", "tests/infra", "--rig", INVENTORY)

    def answers(self) -> bool:
        """Whether a real completion comes."""
        return ask(self.endpoint, 20).ok

    def killed_operator(self, deploy: str, *arguments: str) -> str:
        """The id of a change whose operator was killed -9 once the engine had been started."""
        return incidents.killed_operator(self, self.name, INVENTORY, deploy, *arguments)


def wait_until(what: str, budget_s: float, true: Callable[[], object], poll_s: float = 2) -> float:
    """Polls until `true()` holds; the seconds it took. Fails naming `what` after the budget."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < budget_s, f"{what}: not within {budget_s:.0f} s"
        time.sleep(poll_s)
    return time.monotonic() - started


def unchanged(done: Done) -> bool:
    """Whether a run changed nothing."""
    return done.rc == 0 and done.counts("Grand total")[1:3] == ("-", "-")
