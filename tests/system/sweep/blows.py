"""What interrupts a change, each made for real on a rig of the lab or on the VM."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.core.settings import SSH_USER, LabHost
from lab.hosts import lifecycle, processes, state
from lab.hosts.ssh import wait_ready
from schema.desired.plan import PAIR_SERVICE
from tests.system.lease.rigs import OnLab, OnVm, Rig

# how long a process that is to be hit is waited for: node comes and goes within a second
THERE_S = 15
BOOT_S = 120
MISSED = "nothing to hit"


def end(process: subprocess.Popen[str]) -> None:
    """An operator's machine that loses its power: all of the command's group."""
    os.killpg(process.pid, signal.SIGKILL)


def strike(
    rig: Rig, kind: str, name: str, begin: Callable[[], object], over: Callable[[], bool]
) -> str:
    """Makes an interrupt on a host; what was hit, or MISSED. `begin` starts a second operator.

    What is not there yet is waited for until the run is `over`. "operator killed" is the caller's,
    who has the process.
    """
    if kind == "two operators":
        begin()
        return "the same command"
    if kind == "the pair's timer":
        rig.root(name, f"systemctl start --no-block {PAIR_SERVICE}", check=False)
        return name
    if isinstance(rig, OnVm):
        return _on_vm(rig, kind, name)
    assert isinstance(rig, OnLab)
    if kind == "reboot -ff":
        _reboot(rig, rig.lab.hosts[name])
        return name
    if kind == "power cut":
        rig.lab.hang_up(name)
        rig.power(name, "cut")
        return name
    killed = _kill(rig.lab.hosts[name], rig, IS[kind], over)
    return f"{name}: {killed} killed" if killed else MISSED


def _is_node(argv: list[str], cgroup: str) -> bool:
    """node runs below a login's session, in the lab below sshd; a host's own programs do not."""
    of_a_login = "user.slice" in cgroup or "ssh.service" in cgroup
    return of_a_login and Path(argv[0]).name.startswith("python3")


def _is_connection(argv: list[str], cgroup: str) -> bool:
    return argv[0].startswith(f"sshd: {SSH_USER}")


def _is_dockerd(argv: list[str], cgroup: str) -> bool:
    return Path(argv[0]).name == "dockerd"


IS: dict[str, Callable[[list[str], str], bool]] = {
    "node killed": _is_node,
    "connection killed": _is_connection,
    "dockerd killed": _is_dockerd,
}


def _running(rig: OnLab, host: LabHost) -> Iterator[tuple[processes.Process, list[str], str]]:
    """A host's processes as this machine sees them: identity, arguments, cgroup."""
    top = processes.lab_cgroup(rig.lab.settings.home) / host.name
    for file in top.rglob("cgroup.procs"):
        try:
            pids = file.read_text().split()
        except OSError:
            continue  # the session has ended
        for pid in pids:
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            process = processes.identify(int(pid))
            if argv and process:
                yield process, argv.rstrip("\0").split("\0"), str(file)


def _kill(
    host: LabHost, rig: OnLab, hit: Callable[[list[str], str], bool], over: Callable[[], bool]
) -> int:
    """Kills -9 a host's processes of a kind as soon as there are some; how many."""
    until = time.monotonic() + THERE_S
    while time.monotonic() < until and not over():
        found = [process for process, argv, cgroup in _running(rig, host) if hit(argv, cgroup)]
        done = sum(processes.send(process, signal.SIGKILL) for process in found)
        if done:
            return done
        time.sleep(0.02)
    return 0


def _reboot(rig: OnLab, host: LabHost) -> None:
    """`reboot -ff` inside: the kernel ends everything at once, nothing is stopped or synced."""
    lab = rig.lab.settings
    before = state.read(lab, host)
    leader = before.live_leader()
    assert leader is not None, f"{host.name} does not run"
    rig.lab.hang_up(host.name)
    subprocess.run(["nsenter", "-t", str(leader.pid), "-p", "-m", "reboot", "-ff"], check=False)
    until = time.monotonic() + BOOT_S
    while state.read(lab, host).boots == before.boots:
        assert time.monotonic() < until, f"{host.name} did not boot within {BOOT_S} s"
        time.sleep(0.1)
    wait_ready(lab, host)
    lifecycle.wait_fabric(lab)


def _on_vm(rig: OnVm, kind: str, name: str) -> str:
    if kind == "power cut":
        rig.power(name, "cut")
    elif kind == "reboot -ff":
        before = rig.vm.machine.boot_id()
        rig.root(name, "systemd-run --collect reboot -ff", check=False)
        rig.vm.machine.wait(other_than=before)
    else:
        # by what holds the lock: the VM's processes are its own
        held = "fuser /var/lib/rigbook/lock 2>/dev/null"
        wait = f'for _ in $(seq 100); do pids=$({held}); [ -n "$pids" ] && break; sleep 0.1; done'
        said = rig.root(name, f'{wait}; [ -n "$pids" ] && kill -9 $pids && echo hit', check=False)
        return f"{name}: killed" if "hit" in said else MISSED
    return name
