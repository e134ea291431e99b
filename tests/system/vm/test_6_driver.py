"""A driver changed on a machine of its own: 12 states, each with an error, a kill and a power cut.

RIGBOOK_DRIVER=install:kill,load selects cells by state and loss, RIGBOOK_DRIVER=all takes all 36;
without it three are run, since each cell takes minutes of emulation. A cell ends with one driver,
old or new in whole, and an engine that answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.core import console, settings
from lab.vm import driver_disk
from lab.vm import machine as vm_machine
from lab.vm.root import MODULE
from tests.system.vm import driver_packages as packages
from tests.system.vm.conftest import PIN, Rig
from tests.system.vm.driver_packages import NAMES, NEW, OLD
from tests.system.vm.test_5_comes_back import answers

LEASE_S, BUDGET_S, SETTLED_S = 60, 600, 2400
ASK = ("deploys/driver.py", "-y", "--data", f"version={NEW}", "--data", f"lease={LEASE_S}")
DEBS = "/var/lib/rigbook/debs"
BLOCK = "/etc/modprobe.d/zz-rigbook-driver.conf"
BLOCKED = f"test -e {BLOCK}"
DROP_IN = "/run/systemd/system/rigbook-engine.service.d"
SILENT = """[Unit]
ConditionKernelVersion={other}
Before=ssh.service
[Service]
ExecStart=/bin/systemctl mask --runtime --now ssh.service
[Install]
WantedBy=multi-user.target
"""
LOCK = (
    "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); "
    "fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(900)"
)
FULL = "$(($(df --output=avail -B1 /boot | tail -1) - 157286400))"
SHIM = "printf '#!/bin/sh\\nexit 1\\n' > /usr/local/sbin/{0}; chmod 755 /usr/local/sbin/{0}"


@dataclass(frozen=True)
class State:
    """Where a loss is made: `here` is true in that state; `error` makes it fail, in the repository
    `fault`; `candidate`: the run boots the newer kernel; `late`: the error is made in that state.
    """

    here: str
    error: str
    fault: str = "good"
    candidate: bool = False
    says: str = ""
    late: bool = False


STATES = {
    "look": State("true", "touch /var/lib/dpkg/updates/0001", says="driver-dpkg"),
    "plan": State("pgrep -f rignode", f"rm -f {packages.FOLDER}/good/Packages; "
                  f": > {packages.FOLDER}/good/Packages; apt-get update -q", says="driver-version"),
    "fetch": State(f"ls {DEBS}/*.deb", f"rm {packages.FOLDER}/good/*_{NEW}-*.deb",
                   says="nothing was changed"),
    "keep": State(f"ls {DEBS}/*_{OLD}-*.deb", f"rm {packages.FOLDER}/good/*_{OLD}-*.deb; "
                  "apt-get clean; cd /srv/driver/good; "
                  f"sed -i '/{OLD}/,/^$/d' Packages; apt-get update -q",
                  says="driver-old-gone"),
    "drain": State("! systemctl is-active -q rigbook-engine.service",
                   f"mkdir -p {DROP_IN}; printf '[Unit]\\nRefuseManualStop=yes\\n' > "
                   f"{DROP_IN}/x.conf; systemctl daemon-reload", says="rigbook-engine.service"),
    "unload": State(BLOCKED, SHIM.format("rmmod"), says="cannot be unloaded"),
    "install": State(f"{BLOCKED} && pgrep -x dpkg", "true", "unconfigured",
                     says="post-installation"),
    "build": State(f"{BLOCKED} && pgrep -x dkms", "true", "nobuild", True,
                   f"no {MODULE} module for"),
    "boot": State("grep -q '^next_entry=gnulinux' /boot/grub/grubenv",
                  f"cat > /etc/systemd/system/silent.service <<'E'\n{SILENT}E\n"
                  "systemctl enable silent.service", candidate=True, says="did not come back"),
    "load": State(f"! test -e {BLOCK} && dpkg -s {NAMES[0]} | grep -q '^Version: {NEW}'",
                  "true", "noload", says="modprobe"),
    "prove": State(f"grep -q {NEW} /sys/module/{MODULE}/version", "true", "mismatch",
                   says="version mismatch"),
    "bless": State(f"grep -q {NEW} /sys/module/{MODULE}/version && "
                   "systemctl is-active -q rigbook-engine.service",
                   "systemctl stop ssh.socket 2>/dev/null; printf 'MaxStartups 1:100:1\\n"
                   "AllowUsers nobody\\n' >> /etc/ssh/sshd_config; systemctl reload ssh",
                   says="new connection", late=True),
}  # fmt: skip
LOSSES = ("error", "kill", "reboot")
CHOSEN = os.environ.get("RIGBOOK_DRIVER") or "install"
ROWS: list[str] = []


def cells() -> list[tuple[str, str]]:
    """The chosen (state, loss) pairs."""
    every = [(state, loss) for state in STATES for loss in LOSSES]
    if CHOSEN == "all":
        return every
    found = []
    for part in CHOSEN.split(","):
        state, _, loss = part.partition(":")
        mine = [cell for cell in every if cell[0] == state and cell[1].startswith(loss)]
        if not mine:
            raise ValueError(f"RIGBOOK_DRIVER: {part}: there are {tuple(STATES)} and {LOSSES}")
        found += mine
    return found


@pytest.fixture(scope="session")
def tower_disk(disk: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk of a machine with the old driver built by DKMS, its kernel pinned, and an engine.

    A VM makes it once: emulated, two builds and a pin take minutes.
    """
    folder, over = tmp_path_factory.mktemp("tower"), "disk.qcow2"
    prepared, key = disk
    vm_machine.overlay(driver_disk.with_dkms(settings.load()), folder / over)
    accel = vm_machine.accelerator(prepared, key)
    with vm_machine.Machine(folder / "vm", [folder / over], key, accel=accel) as machine:
        machine.start()
        rig = Rig(machine)
        machine.wait()
        rig.send_node()
        rig.send(packages.repositories(folder / "debs"), "/root/debs.tar")
        machine.must(
            f"mkdir -p {packages.FOLDER}; tar xf /root/debs.tar -C {packages.FOLDER}; "
            f"{packages.from_repository('good')}; export DEBIAN_FRONTEND=noninteractive; "
            f"apt-get install -y -q {' '.join(f'{name}={OLD}-1' for name in NAMES)}; "
            f"modprobe {MODULE}",
            3600,
        )
        rig.with_engine()
        status, output = rig.deploy(*PIN)
        assert status == 0, output
        machine.sudo("nohup sh -c 'sleep 1; systemctl poweroff' >/dev/null 2>&1 &")
        while machine.running():
            time.sleep(1)
    made = folder / "disk.raw"
    console.run(["qemu-img", "convert", "-O", "raw", folder / over, made])
    return made


@pytest.fixture
def tower(boot: Callable[..., Rig], tower_disk: Path) -> Rig:
    """That machine, up: its module is loaded and its engine answers."""
    rig = boot(base=tower_disk)
    assert rig.machine.must("nvidia-smi").strip() == OLD
    answers(rig)
    return rig


def settled(rig: Rig) -> str:
    """Waits until no change is open, the engine answers and driver, library and tool agree; the
    driver's version.
    """
    began = time.monotonic()
    while True:
        done = rig.machine.sudo(
            "rignode status | grep -q OPEN && exit 3; dpkg --audit | grep -q . && exit 4; "
            f"test -e {BLOCK} && exit 5; nvidia-smi", 120, shared=False)  # fmt: skip
        if done.returncode == 0:
            answers(rig)
            return done.stdout.strip()
        assert time.monotonic() - began < SETTLED_S, (done.returncode, done.stdout, done.stderr)
        time.sleep(5)


def lose(rig: Rig, state: State, loss: str, words: tuple[str, ...]) -> str:
    """The deploy, and the loss in its middle; what the operator saw, as far as he lived."""
    error = state.error.format(other=rig.kernels.second)
    if loss == "error" and not state.late:
        rig.machine.must(error, 600)
        return rig.deploy(*words)[1]
    process = rig.start_deploy(*words)
    while process.poll() is None and rig.machine.sudo(state.here, 60).returncode != 0:
        time.sleep(0.5)
    rig.note(f"{loss} in this state")
    if loss == "error":
        rig.machine.must(error)
    elif loss == "kill":
        process.kill()
    else:
        rig.machine.power_cut()
        rig.machine.start()
        rig.machine.wait()
    return process.communicate(timeout=SETTLED_S)[0] or ""


def mended(rig: Rig, name: str) -> None:
    """Takes an error of the test's own away that would keep the end from being looked at."""
    rig.machine.sudo(
        "rm -f /var/lib/dpkg/updates/0001 /usr/local/sbin/rmmod; "
        "rm -rf /run/systemd/system/rigbook-engine.service.d; "
        "systemctl disable --now silent.service; rm -f /etc/systemd/system/silent.service; "
        "sed -i '/^AllowUsers nobody/d; /^MaxStartups/d' /etc/ssh/sshd_config; "
        "systemctl daemon-reload; systemctl restart ssh"
    )
    rig.note(f"{name}: the test's own fault is gone")


@pytest.mark.parametrize(("name", "loss"), cells())
def test_a_cell_ends_with_one_driver_and_an_answer(tower: Rig, name: str, loss: str) -> None:
    state, began = STATES[name], time.monotonic()
    tower.machine.must(packages.from_repository(state.fault if loss == "error" else "good"))
    other = ("--data", f"candidate={tower.kernels.second}", "--data", f"budget={BUDGET_S}")
    said = lose(tower, state, loss, (*ASK, *(other if state.candidate else ())))
    assert "Traceback" not in said, said
    if loss == "error":
        assert state.says in said, said
        mended(tower, name)
    version = settled(tower)
    kernel = tower.machine.kernel()
    row = f"{name:8} {loss:7} {version:12} {kernel:26} {time.monotonic() - began:6.0f} s"
    ROWS.append(row)
    print(row)
    assert version == OLD if loss == "error" else version in (OLD, NEW)
    # the newer kernel comes with the newer driver, and never without it
    assert kernel == tower.kernels.first or version == NEW
    held = tower.machine.must("dpkg-query -W -f='${Package} ${Version}\\n' " + " ".join(NAMES))
    assert {line.split()[1] for line in held.splitlines()} == {f"{version}-1"}


def test_the_table_of_cells() -> None:
    """Printed last, with 0 rows that have neither driver in whole."""
    print("state    loss    driver       kernel                      seconds", *ROWS, sep="\n")
    assert all(f" {OLD} " in row or f" {NEW} " in row for row in ROWS)


def test_the_seeds_story(tower: Rig) -> None:
    """The pin holds the newer kernel off; driver.py brings both, and the second run is empty."""
    other = tower.kernels.second
    attempt = (*ASK, "--data", f"candidate={other}", "--data", f"budget={BUDGET_S}")
    tower.machine.must(packages.from_repository("nobuild"))
    status, output = tower.deploy(*attempt)
    assert status == 1 and f"no {MODULE} module for {other}" in output, output
    assert "ROLLED_BACK" in output
    assert (settled(tower), tower.machine.kernel()) == (OLD, tower.kernels.first)
    tower.machine.must(packages.from_repository("good"))
    status, output = tower.deploy(*attempt)
    assert status == 0 and f"driver {NEW}" in output, output
    assert (settled(tower), tower.machine.kernel()) == (NEW, other)
    assert tower.boots() == (other, other)
    status, output = tower.deploy(*ASK)
    assert status == 0 and "as wanted" in output, output


@pytest.mark.parametrize(("fault", "says"), [
    ("touch /var/lib/dpkg/updates/0001", "driver-dpkg"),
    (f'nohup python3 -c "{LOCK}" >/dev/null 2>&1 & sleep 1', "apt is at work"),
    (f"fallocate -l {FULL} /boot/full", "boot-room"),
    (f"rm {packages.FOLDER}/good/*_{NEW}-*.deb", "nothing was changed"),
])  # fmt: skip
def test_apts_own_breakages_are_one_line(tower: Rig, fault: str, says: str) -> None:
    tower.machine.must(fault)
    status, output = tower.deploy(*ASK)
    assert status != 0 and says in output, output
    assert tower.machine.must("nvidia-smi").strip() == OLD


def test_an_edited_conffile_asks_nothing(tower: Rig) -> None:
    tower.machine.must(f"echo edited > /etc/{MODULE}.conf")
    status, output = tower.deploy(*ASK)
    assert status == 0, output
    assert tower.machine.must(f"cat /etc/{MODULE}.conf").strip() == "edited"
    assert settled(tower) == NEW
