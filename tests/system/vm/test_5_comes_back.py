"""A machine that hangs comes back by itself; memory that runs out ends the engine alone."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.vm.conftest import Rig

# How a machine is lost, and how often; ten times in all.
HANGS = {
    "sysrq-c": ("echo c > /proc/sysrq-trigger", 4),
    # PID 1 takes no SIGSTOP; frozen it feeds no watchdog either
    "a stopped PID 1": ("echo 1 > /sys/fs/cgroup/init.scope/cgroup.freeze", 3),
    "a hard lockup": ("echo 1 > /sys/module/hangstand/parameters/hang", 3),
}
TAKE = "/sys/module/hangstand/parameters/take_mib"
WATCHDOG_S = 60
ANSWER_S = 600
GUARD_MIB, BALLAST_MIB = 96, 150
# RestartSec aside as rigbook's own unit of an engine.
HEAVY = f"[Service]\nEnvironment=BALLAST_MIB={BALLAST_MIB}\nOOMScoreAdjust=500\nRestartSec=20\n"
# Who takes the host's memory, and how it is given back.
TAKERS = {
    "pages that no cgroup counts": (f"echo {{mib}} > {TAKE}", f"echo 0 > {TAKE}"),
    "a process": (
        "systemd-run --unit=taker python3 -c "
        '"import time; held = chr(120) * ({mib} << 20); time.sleep(900)"',
        "systemctl is-active taker.service && systemctl stop taker.service",
    ),
}
LOGINS = 20


def answers(rig: Rig) -> float:
    """Seconds until the engine answers a chat."""
    began = time.monotonic()
    url = f"http://{rig.machine.address}:8000/v1/chat/completions"
    while True:
        try:
            with urllib.request.urlopen(url, data=b"{}", timeout=30) as reply:
                assert json.load(reply)["choices"]
                return time.monotonic() - began
        except OSError:
            assert time.monotonic() - began < ANSWER_S, "the engine did not answer"
            time.sleep(2)


def former_boot(rig: Rig) -> dict[str, Any]:
    """The boot before this one, as node tells it."""
    boot: dict[str, Any] = rig.node("host")["boots"][-2]
    return boot


def later(rig: Rig, command: str) -> None:
    """Runs a command as root once the login that brought it is over."""
    line = f"nohup sh -c 'sleep 1; {command}' >/dev/null 2>&1 &"
    rig.machine.sudo(line, 60, shared=False)


def test_ten_hangs_of_three_kinds_end_by_themselves(boot: Callable[..., Rig]) -> None:
    rig = boot(watchdog=True)
    rig.with_engine()
    words = ("--data", f"watchdog={WATCHDOG_S}", "--data", "memory_guard=false")
    status, output = rig.deploy("deploys/host.py", "-y", *words)
    assert status == 0 and f"a hang is reset after {WATCHDOG_S} s" in output, output
    status, output = rig.deploy("deploys/host.py", "-y", *words)
    assert status == 0 and "COMMITTED" not in output, output
    rig.machine.must("sync")

    rig.machine.reboot()
    assert former_boot(rig)["asked_for"] is True
    rows = []
    for name, (command, times) in HANGS.items():
        for _ in range(times):
            rig.machine.must("modprobe hangstand")
            before, began = rig.machine.boot_id(), time.monotonic()
            later(rig, command)
            rig.machine.wait(other_than=before)
            up = time.monotonic() - began
            answers(rig)
            lost = former_boot(rig)
            assert lost["asked_for"] is False and lost["tail"], lost
            rows.append((name, up, time.monotonic() - began, lost["tail"][-1]))
            rig.note(f"{name}: ssh after {up:.0f} s, an answer after {rows[-1][2]:.0f} s; "
                     f"last words: {rows[-1][3][:120]}")  # fmt: skip
    assert len(rows) == sum(times for _, times in HANGS.values())
    _, output = rig.deploy("deploys/doctor.py", "-y")
    assert "reboot-loop" in output and "nobody asked for it" in output

    status, output = rig.deploy("deploys/host.py", "-y", "--data", "remove=true")
    assert status == 0 and "its settings were taken back" in output, output
    assert rig.machine.must("sysctl -n kernel.panic kernel.softlockup_panic").split() == ["0", "0"]
    left = rig.node("host")["settings"]
    assert left["wanted"] is None and left["runtime_watchdog_s"] == 0


@pytest.mark.parametrize("taker", TAKERS)
def test_memory_that_runs_out_ends_the_engine_and_no_login(
    boot: Callable[..., Rig], taker: str
) -> None:
    rig = boot()
    take, give_back = TAKERS[taker]
    rig.machine.must("mkdir -p /etc/systemd/system/rigbook-engine.service.d")
    rig.send(HEAVY.encode(), "/etc/systemd/system/rigbook-engine.service.d/heavy.conf")
    rig.with_engine()
    answers(rig)
    status, output = rig.deploy(
        "deploys/host.py", "-y",
        "--data", "memory_guard=true", "--data", f"memory_guard_mib={GUARD_MIB}",
    )  # fmt: skip
    assert status == 0 and f"is ended below {GUARD_MIB} MiB" in output, output

    rig.machine.must("modprobe hangstand")
    free = "awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo"
    mib = int(rig.machine.must(free)) - GUARD_MIB // 2
    later(rig, take.format(mib=mib))
    kills: list[dict[str, Any]] = []
    for number in range(LOGINS):
        began = time.monotonic()
        assert rig.machine.sudo("true", 60, shared=False).returncode == 0, f"login {number}"
        rig.note(f"login {number} after {time.monotonic() - began:.0f} s")
        kills = rig.node("host")["kills"]
        if kills:
            break
        time.sleep(2)
    rig.machine.must(give_back)
    assert {(kill["by"], kill["process"]) for kill in kills} == {("earlyoom", "VLLM::EngineCor")}
    rig.note(f"{kills[-1]['why']}; the engine answers again after {answers(rig):.0f} s")
    _, output = rig.deploy("deploys/doctor.py", "-y")
    assert "memory-kill" in output and "earlyoom killed VLLM::EngineCor" in output
    assert "rebooted-unasked" not in output


# Lines that a real kernel has in its ring reach the finding, and a healthy VM has none.

OURS = {"gpu-lost", "gpu-xid", "kernel-crash", "machine-check", "task-hung", "pcie-errors",
        "pcie-link", "nic-errors", "disk-errors", "disk-read-only", "disk-wear",
        "memory-kill", "driver-library", "fabric-volatile", "health-unreadable"}  # fmt: skip
# What is written into /dev/kmsg has the form of the kernel's own records. journald takes the name
# "kernel" from the text: the kernel does not let anybody write as itself.
LINES = (
    "<4>NVRM: Xid (PCI:0000:29:00): 119, pid=7, name=vllm, Timeout after 6s of waiting",
    "<4>watchdog: BUG: soft lockup - CPU#1 stuck for 27s! [python3:2254956]",
    "<3>kernel: Out of memory: Killed process 9999 (python3) total-vm:100000kB",
)


def found(rig: Rig) -> dict[str, Any]:
    """The doctor's findings about the machine, by code."""
    _, output = rig.deploy("deploys/doctor.py", "-y", "--data", "json=true")
    rows = json.loads(output[output.index("[\n") : output.rindex("]") + 1])
    return {row["code"]: row for row in rows if row["code"] in OURS}


def test_lines_of_the_kernel_reach_the_doctor(boot: Callable[..., Rig]) -> None:
    rig = boot()
    rig.with_engine()
    assert found(rig) == {}
    took = rig.node("health")["took_s"]
    rig.note(f"health took {took} s")
    for line in LINES:
        rig.machine.must(f"echo '{line}' > /dev/kmsg")
    rows = found(rig)
    assert set(rows) == {"gpu-xid", "kernel-crash", "memory-kill"}
    assert "GSP RPC Timeout" in rows["gpu-xid"]["summary"]
    assert "--gpu-reset" in rows["gpu-xid"]["remedy"]
    assert "stuck for 27s" in rows["kernel-crash"]["evidence"]


def test_a_filesystem_that_errors_turn_read_only(boot: Callable[..., Rig]) -> None:
    """A real one: ext4 with an error, mounted with errors=remount-ro. The mountinfo of Debian's 6.1
    says rw all the same, as 6.12's does: the kernel's line tells of it.
    """
    rig = boot()
    rig.machine.must(
        "truncate -s 64M /srv/d.img; mkfs.ext4 -q /srv/d.img; mkdir -p /srv/d; "
        "mount -o loop,errors=remount-ro /srv/d.img /srv/d; "
        "d=$(findmnt -no SOURCE /srv/d); echo 1 > /sys/fs/ext4/${d##*/}/trigger_fs_error"
    )
    seen = rig.node("health")
    assert "filesystem" in [row["kind"] for row in seen["kernel"]]
