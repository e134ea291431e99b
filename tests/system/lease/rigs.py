"""The three rigs of the cells: the pair, the tower and the VM, asked in the same words."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Protocol

from facts.endpoint import Endpoint, ask
from lab import host
from tests.system.engine.steps import wait_until
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
        host.empty_cgroup(host.lab_cgroup(settings.home) / name)
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


# The twelve losses, each made for real on a host, and what it mends by itself.
#
# A loss that cuts the operator off runs as a transient unit of the host, which mends it when the
# lease and the return are over. `{operator}` is the operator's address, `{peers}` those of the
# other nodes.

# the shortest that is taken
LEASE_S = 45
# how long a loss lasts: the lease, the agreement, and the return with an engine's start. A run that
# comes back later is refused by the promise.
LASTS_S = 120
STATE = "/var/lib/rigbook"
_LAN = "lan=$(ip -o route get {operator} | sed 's/.* dev \\([^ ]*\\) .*/\\1/')"
_SMALL = "/run/rigbook-lease-small"


@dataclass(frozen=True)
class Loss:
    """What is lost: `script` on the hosts (`all` or the `last`), and what becomes of the operator's
    process: it `lives`, is `killed`, or is `asleep` (SIGSTOP, and SIGCONT at the end). `before` is
    made ahead of the run. `power` is a reboot or a cut of the last host.
    """

    script: str = ""
    where: str = "all"
    operator: str = "lives"
    before: str = ""
    after: str = ""
    power: str = ""


LOSSES = {
    "cable out": Loss(
        f"{_LAN}; ip link set $lan down; sleep {{s}}; ip link set $lan up; "
        "networkctl reconfigure $lan 2>/dev/null || true"
    ),
    "sshd stopped": Loss(
        "systemctl stop ssh.socket ssh.service; loginctl terminate-user {login}; sleep {s}; "
        "systemctl start ssh.service"
    ),
    "route gone": Loss(
        "ip route replace blackhole {operator}/32; sleep {s}; ip route del blackhole {operator}/32"
    ),
    "MTU lowered": Loss(
        f"{_LAN}; was=$(cat /sys/class/net/$lan/mtu); ip link set $lan mtu 400; sleep {{s}}; "
        "ip link set $lan mtu $was"
    ),
    "sudo broken": Loss("chmod 0 /usr/bin/sudo; sleep {s}; chmod 4755 /usr/bin/sudo"),
    "disk full": Loss(
        f"dd if=/dev/zero of={STATE}/full bs=64k 2>/dev/null; sleep {{s}}; rm -f {STATE}/full",
        operator="killed",
        before=f"mkdir -p {_SMALL} {STATE}; "
        f"mount -t tmpfs -o size=$(($(du -sm {STATE} | cut -f1) + 192))m tmpfs {_SMALL}; "
        f"cp -a {STATE}/. {_SMALL}/; mount --bind {_SMALL} {STATE}",
        after=f"rm -f {STATE}/full; umount {STATE}; cp -a {_SMALL}/. {STATE}/; umount {_SMALL}",
    ),
    "operator killed": Loss(operator="killed"),
    "laptop asleep": Loss(operator="asleep"),
    "nodes cut from each other": Loss(
        "for peer in {peers}; do iptables -I INPUT -s $peer -j DROP; done; sleep 120; "
        "for peer in {peers}; do iptables -D INPUT -s $peer -j DROP; done",
        operator="killed",
    ),
    "reboot inside the lease": Loss(operator="killed", where="last", power="reboot"),
    "power cut of one node": Loss(operator="killed", where="last", power="cut"),
    "clock jump": Loss("{jump}", operator="killed", where="last"),
}


# One cell: a change under a lease, a loss in its middle, and what the rig is at the end.
#
# RIGBOOK_LEASE=serve:cable,kernel selects cells by deploy and by the beginning of a loss.

TAKEN_BACK = "TAKEN_BACK"
ENDS = {"COMMITTED": "new", "ROLLED_BACK": "old", TAKEN_BACK: "old, taken back at once"}
DEPLOYS = ("serve", "restart", "upgrade", "kernel", "unit", "weights")
CHOSEN = os.environ.get("RIGBOOK_LEASE", "")
# an engine's start on a machine that others use, and a host's boot
START_S = 600
BEGIN_S = 900
# how long the operator's process runs between two looks
SLICE_S = 0.3
# from the call to a loss that is made
MADE_S = 4
# what a host says of a cell that failed
EVIDENCE = (
    "date; uptime; df -h /var/lib/rigbook; rignode status; systemctl list-units --all 'rigbook*' "
    "| cat; ls /etc/systemd/system; journalctl -b -u 'rigbook-lease*' -n 60 --no-pager; "
    "ls -l /var/lib/rigbook /var/lib/rigbook/journal"
)
# a timer is late by up to a minute without it
EXACT = "--timer-property=AccuracySec=100ms"


@dataclass(frozen=True)
class Row:
    """A cell's end: the change's status, seconds from the loss to an answer, what was wrong."""

    deploy: str
    loss: str
    status: str
    seconds: float
    fault: str


ROWS: list[Row] = []


def cells(deploy: str) -> list[str]:
    """The losses that are chosen for a deploy."""
    if not CHOSEN:
        return list(LOSSES)
    found = []
    for part in CHOSEN.split(","):
        name, _, loss = part.partition(":")
        if name not in DEPLOYS or not any(row.startswith(loss) for row in LOSSES):
            raise ValueError(f"RIGBOOK_LEASE: {part}: there are {DEPLOYS} and {tuple(LOSSES)}")
        found += [row for row in LOSSES if name == deploy and row.startswith(loss)]
    return list(dict.fromkeys(found))


def _newest(rig: Rig, name: str) -> str:
    rows = rig.changes(name)
    return str(rows[0]["id"]) if rows else ""


def _begun(rig: Rig, known: dict[str, str]) -> bool:
    """Whether each host has an open change, and a step of it is done on one of them."""
    rows = [rig.changes(name)[:1] for name in rig.names]
    fresh = [row[0] for name, row in zip(rig.names, rows, strict=True)
             if row and row[0]["id"] != known[name] and row[0]["status"] == "OPEN"]  # fmt: skip
    return len(fresh) == len(rig.names) and any(row["steps"] for row in fresh)


def _to_its_middle(
    rig: Rig, deploy: str, process: subprocess.Popen[str], known: dict[str, str]
) -> None:
    """Lets the operator's process run until a step is done and the change is open, and leaves it
    stopped there.

    Where changes are short it stands still during each look as well.
    """
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(SLICE_S)
        if process.poll() is not None:
            raise AssertionError(f"{deploy} ended before its middle: {process.communicate()[0]}")
        if rig.short:
            os.killpg(process.pid, signal.SIGSTOP)
        if _begun(rig, known):
            os.killpg(process.pid, signal.SIGSTOP)
            return
    raise AssertionError(f"{deploy} is in its middle: not within {BEGIN_S} s")


def _lose(rig: Rig, loss: Loss, process: subprocess.Popen[str]) -> None:
    names = rig.names if loss.where == "all" else rig.names[-1:]
    if loss.operator == "killed":
        os.killpg(process.pid, signal.SIGKILL)
    for name in names if loss.script else ():
        login = rig.root(name, "logname 2>/dev/null || echo $SUDO_USER").strip()
        script = loss.script.replace("{jump}", rig.jump).format(
            s=LASTS_S, operator=rig.operator(name), peers=" ".join(rig.peers(name)), login=login
        )
        quoted = "'" + script.replace("'", "'\\''") + "'"
        # a moment later: this connection is to end in order
        rig.root(name, f"systemd-run --collect --on-active=2 {EXACT} bash -c {quoted}")
    if loss.power:
        rig.power(names[-1], loss.power)
    if loss.operator == "lives":
        time.sleep(MADE_S)
        os.killpg(process.pid, signal.SIGCONT)


def _settled(rig: Rig, change: str) -> str | None:
    """The status that all hosts have the change in, once no keeper is left; None: not yet.

    TAKEN_BACK: the step that the loss fell into took itself back, and the change with it.
    """
    seen = set()
    for name in rig.names:
        try:
            rows = rig.changes(name)
            if "rigbook-lease.service" in rig.root(name, "ls /etc/systemd/system"):
                return None
        except (
            AssertionError,
            LookupError,
            ValueError,
            OSError,
            subprocess.SubprocessError,
            RuntimeError,
        ):
            return None  # the host cannot be reached yet
        seen |= {str(row["status"]) for row in rows if row["id"] == change}
    if not seen:
        return TAKEN_BACK
    return seen.pop() if len(seen) == 1 and "OPEN" not in seen else None


def run(rig: Rig, deploy: str, loss_name: str, *data: str) -> Row:
    """One cell; its row is kept for the table. Fails where the end is not old or new, whole and
    true.
    """
    loss = LOSSES[loss_name]
    for name in rig.names if loss.before else ():
        rig.root(name, loss.before)
    known = {name: _newest(rig, name) for name in rig.names}
    process, began = rig.start(deploy, *data, f"lease={LEASE_S}"), time.monotonic()
    try:
        _to_its_middle(rig, deploy, process, known)
        change = _newest(rig, rig.names[0])
        began = time.monotonic()
        _lose(rig, loss, process)
        wait_until("the change is settled", LASTS_S + LEASE_S + START_S,
                   lambda: _settled(rig, change) is not None, 5)  # fmt: skip
        status = str(_settled(rig, change))
        wait_until("an answer", START_S, rig.answers, 2)
        took = time.monotonic() - began
    except (AssertionError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        took, said = time.monotonic() - began, f"{error}".partition("\n")[0]
        ROWS.append(Row(deploy, loss_name, "", took, said or type(error).__name__))
        for name in rig.names:
            with contextlib.suppress(Exception):
                print(
                    f"LEASE {deploy}, {loss_name}: {name}: {rig.root(name, EVIDENCE, check=False)}"
                )
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LASTS_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for name in rig.names if loss.after else ():
            rig.root(name, loss.after)
    row = Row(deploy, loss_name, status, took, _fault(rig, change, status))
    ROWS.append(row)
    print(f"LEASE {row}")
    assert not row.fault, row
    return row


def _fault(rig: Rig, change: str, status: str) -> str:
    """What is not as the status says; "" when it is true on every host."""
    if status not in ENDS:
        return f"the change is {status}"
    for name in rig.names if status != TAKEN_BACK else ():
        text = rig.root(name, f"rignode status --json --verify {change}")
        if lines := json.loads(text)["lines"]:
            return f"{name}: {'; '.join(lines)}"
    return ""


def table() -> list[str]:
    """The table, a row a loss and a column a deploy."""
    found = {(row.loss, row.deploy): row for row in ROWS}
    good = sum(not row.fault for row in ROWS)
    lines = [
        f"{len(ROWS)} cells of {len(LOSSES) * len(DEPLOYS)}, lease {LEASE_S} s: {good} ended old "
        "and answering, or new and proven",
        f"| loss | {' | '.join(DEPLOYS)} |",
        "|---|" + "---|" * len(DEPLOYS),
    ]
    for loss in LOSSES:
        words = []
        for deploy in DEPLOYS:
            row = found.get((loss, deploy))
            end = ENDS.get(row.status, "?") if row else "-"
            words.append(
                f"{end} {row.seconds:.0f} s{' FAULT' if row.fault else ''}" if row else "-"
            )
        lines.append(f"| {loss} | {' | '.join(words)} |")
    return lines + [f"FAULT {row.deploy}: {row.loss}: {row.fault}" for row in ROWS if row.fault]
