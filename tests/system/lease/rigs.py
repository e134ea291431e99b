"""The three rigs of the cells: the pair, the tower and the VM, asked in the same words."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Protocol

from facts.endpoint.completion import Endpoint, ask
from lab.hosts import processes
from tests.system.rehearsal import PYINFRA, ROOT, Lab
from tests.system.vm.conftest import Rig as Vm

# Hosts of the lab share this machine's clock, which no test sets: what a jump leaves there is the
# time of the change's file. The VM's own clock is set.
JUMPS = {
    "lab": "touch -d tomorrow /var/lib/rigbook/journal/*.json; sleep 5; "
    "touch -d 1970-01-02 /var/lib/rigbook/journal/*.json",
    "vm": "timedatectl set-ntp false 2>/dev/null; date -s tomorrow; sleep {s}; date -s yesterday",
}


class Rig(Protocol):
    """A rig under test."""

    names: tuple[str, ...]
    jump: str
    # a change is so short that the operator has to stand still during a look at it
    short: bool

    def start(self, deploy: str, *data: str) -> subprocess.Popen[str]:
        """A deploy under way, in a session of its own."""

    def root(self, name: str, script: str, check: bool = True) -> str:
        """A script as root on a host; what it prints."""

    def changes(self, name: str) -> list[dict[str, Any]]:
        """A host's journal, newest first."""

    def operator(self, name: str) -> str:
        """The operator's address, as the host sees it."""

    def peers(self, name: str) -> list[str]:
        """The addresses of the other hosts."""

    def power(self, name: str, how: str) -> None:
        """A reboot, or a power cut and a start."""

    def answers(self) -> bool:
        """Whether the engine gives a real completion."""


class OnLab:
    """The lab's pair, or its tower."""

    jump = JUMPS["lab"]
    short = True

    def __init__(
        self, lab: Lab, inventory: str, names: tuple[str, ...], endpoint: Endpoint
    ) -> None:
        self.lab, self.inventory, self.names = lab, inventory, names
        self.endpoint = endpoint

    def start(self, deploy: str, *data: str) -> subprocess.Popen[str]:
        words = [str(PYINFRA), self.inventory, f"deploys/{deploy}.py", "-y"]
        for pair in data:
            words += ["--data", pair]
        return started(words, {})

    def root(self, name: str, script: str, check: bool = True) -> str:
        return self.lab.ssh(name, "sudo bash -s", check=check, stdin=script)

    def changes(self, name: str) -> list[dict[str, Any]]:
        return self.lab.changes(name)

    def operator(self, name: str) -> str:
        return self.lab.ssh(name, "echo ${SSH_CLIENT%% *}")

    def peers(self, name: str) -> list[str]:
        others = [self.lab.hosts[other] for other in self.names if other != name]
        return [str(a) for host in others for a in (host.address, host.fabric_address)]

    def power(self, name: str, how: str) -> None:
        if how == "reboot":
            self.lab.verb("reboot", name)
            return
        # all of its processes at once, as a cut ends them
        settings = self.lab.settings
        processes.empty_cgroup(processes.lab_cgroup(settings.home) / name)
        self.lab.verb("stop", name)
        self.lab.verb("start", name)

    def answers(self) -> bool:
        return ask(self.endpoint, 20).ok


class OnVm:
    """The VM with real GRUB, kernels, clock and power, and a stand-in engine."""

    jump = JUMPS["vm"]
    # a look takes seconds there, and a connection that is being made would time out meanwhile
    short = False
    names: tuple[str, ...] = ("tower",)

    def __init__(self, vm: Vm) -> None:
        self.vm = vm

    def start(self, deploy: str, *data: str) -> subprocess.Popen[str]:
        words = [str(PYINFRA), "tests/system/vm/inventory.py", f"deploys/{deploy}.py", "-y"]
        for pair in data:
            words += ["--data", pair]
        return started(words, self.vm.environ())

    def root(self, name: str, script: str, check: bool = True) -> str:
        if check:
            return self.vm.machine.must(script)
        return str(self.vm.machine.sudo(script, 300).stdout)

    def changes(self, name: str) -> list[dict[str, Any]]:
        return list(self.vm.node("journal")["changes"])

    def operator(self, name: str) -> str:
        return "10.0.2.2"  # QEMU's user network: the machine that it runs on

    def peers(self, name: str) -> list[str]:
        return []

    def power(self, name: str, how: str) -> None:
        before = self.vm.machine.boot_id()
        if how == "reboot":
            self.vm.machine.reboot()
            return
        self.vm.machine.power_cut()
        self.vm.machine.start()
        self.vm.machine.wait(other_than=before)

    def answers(self) -> bool:
        state = self.root("tower", "systemctl is-active rigbook-engine.service", check=False)
        return state.strip() == "active"


def started(words: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
    """A command in a session of its own, so that it can be killed or stopped whole."""
    return subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, **more}, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
