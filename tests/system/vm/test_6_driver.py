"""A driver changed on a machine of its own: 11 states, each with an error, a kill and a power cut.

RIGBOOK_DRIVER=install:kill,load selects cells by state and loss, RIGBOOK_DRIVER=all takes all 33;
without it three are run, since each cell takes minutes of emulation. A cell ends with one driver,
old or new in whole, and an engine that answers; its loss is made while the state is seen.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.core import LabError
from lab.vm import MODULE
from tests.system.vm import driver_packages as packages
from tests.system.vm.conftest import DEPLOY_S, Rig
from tests.system.vm.driver_packages import NAMES, NEW, OLD, OTHER
from tests.system.vm.driver_tower import go_on
from tests.system.vm.test_5_comes_back import answers

LEASE_S, SETTLED_S = 60, 1800
# from a candidate's start until it must be blessed: one that is lost, and one that is proven
LOST_S, BUDGET_S = 240, 900
ASK = ("deploys/driver.py", "-y", "--data", f"version={NEW}", "--data", f"lease={LEASE_S}")
DEBS = "/var/lib/rigbook/debs"
LIBRARY = f"/usr/lib/x86_64-linux-gnu/lib{MODULE}-ml.so."
UP = "systemctl is-active -q rigbook-engine.service"
LOADED = f'test "$(cat /sys/module/{MODULE}/version)" = {NEW}'
# this test's own login, and the operator's, who is back after the boot
BACK = "test $(pgrep -fc '^sshd: rig .priv') -ge 2"
LOOKS = "pgrep -f 'apt-get -s|apt-cache madison' >/dev/null"
FETCHES = "pgrep -f '[.]pyz driver fetch' >/dev/null"
# its look has been seen and is over
PLANS = f"test -e /run/looked && ! {LOOKS} || {{ {LOOKS} && touch /run/looked; false; }}"
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
# no new login, until the next boot
NO_LOGIN = """cp /etc/ssh/sshd_config /run/no-login
printf 'MaxStartups 1:100:1\\nAllowUsers nobody\\n' >> /run/no-login
mount --bind /run/no-login /etc/ssh/sshd_config
systemctl reload ssh"""
FULL = "$(($(df --output=avail -B1 /boot | tail -1) - 157286400))"
# what keeps a machine from being at rest, a line each
PENDING = f"""rignode status | grep -E '^(OPEN|INCONSISTENT|DAMAGED)'
dpkg --audit | head -2
pgrep -fa '[.]pyz (apply|undo|driver|lease)'
{UP} || echo 'the engine is not active'
nvidia-smi >/dev/null 2>&1 || echo 'nvidia-smi fails'
true"""
# every version of the driver that the machine tells, then its packages, then GRUB's next boots
TOLD = f"""nvidia-smi
cat /sys/module/{MODULE}/version
modinfo -k $(uname -r) -F version {MODULE}
ls {LIBRARY}* | sed 's/.*[.]so[.]//'
dpkg-query -W -f='${{Version}} ${{db:Status-Status}}\\n' {" ".join(NAMES)}
grub-editenv /boot/grub/grubenv list | grep -E '^(saved|next)_entry='"""


@dataclass(frozen=True)
class State:
    """Where a loss is made: `here` is true in that state alone, or the console shows `shows`;
    `error` makes it fail, in the repository `fault`, and the operator sees `says`; `newer`: the
    losses at which the run boots the newer kernel; `late`: the error is made in that state;
    `booted`: it comes after the boot.
    """

    here: str
    error: str
    fault: str = "good"
    newer: tuple[str, ...] = ()
    says: str = ""
    late: bool = False
    shows: str = ""
    booted: bool = False


STATES = {
    "look": State(LOOKS, "touch /var/lib/dpkg/updates/0001", says="driver-dpkg"),
    "plan": State(PLANS, "true", "unlisted", says="driver-version"),
    "fetch": State(f"{FETCHES} && ls {DEBS}/*_{NEW}-*.deb >/dev/null 2>&1",
                   f"rm {packages.FOLDER}/good/*_{NEW}-*.deb", says="nothing was changed"),
    "keep": State(f"{FETCHES} && ls {DEBS}/*_{OLD}-*.deb >/dev/null 2>&1", "apt-get clean", "gone",
                  says="driver-old-gone"),
    "drain": State(f"! test -e {LIBRARY}{NEW} && ! {UP}",
                   f"mkdir -p {DROP_IN}; printf '[Unit]\\nRefuseManualStop=yes\\n' > "
                   f"{DROP_IN}/x.conf; systemctl daemon-reload", says="rigbook-engine.service"),
    "install": State("pgrep -f -- '--unpack' >/dev/null", "true", "unconfigured",
                     says="post-installation"),
    "build": State("pgrep -x make >/dev/null", "true", "nobuild", ("error",),
                   f"no {MODULE} module for"),
    "boot": State("", f"cat > /etc/systemd/system/silent.service <<'E'\n{SILENT}E\n"
                  "systemctl enable silent.service", newer=("error", "kill", "reboot"),
                  says="did not come back", shows="Loading Linux {other}"),
    "load": State(LOADED, "true", "noload", says=f"the loaded {MODULE} module is none",
                  booted=True),
    "prove": State("pgrep -f '[.]pyz driver prove' >/dev/null", "true", "mismatch",
                   says="version mismatch", booted=True),
    "bless": State(f"{LOADED} && {UP} && {BACK}", NO_LOGIN, says="new connection", late=True,
                   booted=True),
}  # fmt: skip
LOSSES = ("error", "kill", "reboot")
CHOSEN = os.environ.get("RIGBOOK_DRIVER") or "install"


@dataclass(frozen=True)
class Row:
    """A cell's end: the driver and the kernel that are there, seconds, what was not as it has to
    be.
    """

    state: str
    loss: str
    driver: str
    kernel: str
    seconds: float
    fault: str

    def __str__(self) -> str:
        end = f"{self.driver:12} {self.kernel:26} {self.seconds:6.0f} s"
        return f"{self.state:8} {self.loss:7} {end} {self.fault and f'FAULT {self.fault}'}".rstrip()


ROWS: list[Row] = []


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


@pytest.fixture
def tower(disk: tuple[Path, Path], tmp_path: Path) -> Iterator[Rig]:
    """A machine with the old driver, a pinned kernel and an engine, where it was kept."""
    rig = go_on(disk, tmp_path)
    yield rig
    rig.machine.power_cut()
    rig.machine.disks[0].unlink()


def newer(rig: Rig, budget_s: int) -> tuple[str, ...]:
    """The words that ask for the newer kernel, too."""
    return ("--data", f"candidate={rig.kernels.second}", "--data", f"budget={budget_s}")


def settled(rig: Rig) -> str:
    """Waits until nothing is open or under way, and the engine answers; the one version that
    module, library, tool, packages and the module on the disk have, and GRUB boots their kernel.
    """
    began = time.monotonic()
    while (done := rig.machine.sudo(PENDING, 120, shared=False)).returncode or done.stdout.strip():
        assert time.monotonic() - began < SETTLED_S, (done.stdout, done.stderr)
        time.sleep(5)
    answers(rig)
    told = rig.machine.must(TOLD).split("\n")
    version = told[0]
    assert version in (OLD, NEW) and {*told[:4]} == {version}, told
    assert {*told[4:7]} == {f"{version}-1 installed"}, told
    grub = dict(line.split("=", 1) for line in told[7:] if line)
    assert not grub.get("next_entry") and rig.machine.kernel() in grub["saved_entry"], told
    return version


def reached(rig: Rig, state: State) -> bool:
    """Whether the state is seen, within seconds."""
    if state.shows:
        time.sleep(0.2)
        text = state.shows.format(other=rig.kernels.second)
        return text in rig.machine.log.read_text(errors="replace")
    look = f"for n in $(seq 100); do if {state.here}; then exit 0; fi; sleep 0.1; done; exit 1"
    return rig.machine.sudo(look, 120).returncode == 0


def lose(rig: Rig, state: State, loss: str, words: tuple[str, ...]) -> str:
    """The deploy, and the loss in its middle; what the operator saw, as far as he lived."""
    error = state.error.format(other=rig.kernels.second) if loss == "error" else ""
    if error and not state.late:
        rig.machine.must(error, 600)
        return rig.deploy(*words)[1]
    if state.booted:
        rig.machine.must(f"touch {packages.SLOW}")
    before = rig.machine.boot_id()
    process, began = rig.start_deploy(*words), time.monotonic()

    def goes_on() -> None:
        assert process.poll() is None, f"not seen in its state: {process.communicate()[0]}"
        assert time.monotonic() - began < DEPLOY_S, "not seen in its state"

    try:
        while state.booted and rig.machine.boot_id() in (None, before):
            goes_on()
            time.sleep(1)
        if state.booted:
            rig.machine.wait()  # the connection of the former boot is gone
        while not reached(rig, state):
            goes_on()
        assert process.poll() is None, f"ended before the loss: {process.communicate()[0]}"
        rig.note(f"{loss} in this state")
        if error:
            rig.machine.must(error)
        elif loss == "kill":
            process.kill()
        else:
            rig.machine.power_cut()
            rig.machine.start()
            rig.machine.wait()
        if state.booted:
            rig.machine.must(f"rm -f {packages.SLOW}")
        said = process.communicate(timeout=DEPLOY_S)[0] or ""
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the operator's command did not end in {DEPLOY_S} s") from None
    finally:
        process.kill()
    rig.note("\n".join(said.splitlines()[-6:]))
    return said


def mended(rig: Rig, name: str) -> None:
    """Takes an error of the test's own away that would keep the end from being looked at."""
    if name == "boot":
        rig.machine.wait()
    rig.machine.sudo(
        "rm -f /var/lib/dpkg/updates/0001; "
        f"rm -rf {DROP_IN}; "
        "systemctl disable --now silent.service; rm -f /etc/systemd/system/silent.service; "
        "umount -q /etc/ssh/sshd_config; "
        "systemctl daemon-reload; systemctl restart ssh"
    )
    rig.note(f"{name}: the test's own fault is gone")


@pytest.mark.parametrize(("name", "loss"), cells())
def test_a_cell_ends_with_one_driver_and_an_answer(tower: Rig, name: str, loss: str) -> None:
    state, began, said, version, kernel, fault = STATES[name], time.monotonic(), "", "?", "?", ""
    tower.machine.must(packages.from_repository(state.fault if loss == "error" else "good"))
    budget_s = LOST_S if name == "boot" else BUDGET_S
    try:
        said = lose(
            tower, state, loss, (*ASK, *(newer(tower, budget_s) if loss in state.newer else ()))
        )
        if loss == "error":
            mended(tower, name)
        version, kernel = settled(tower), tower.machine.kernel()
    except (AssertionError, LabError) as problem:
        fault = f"{problem}".partition("\n")[0] or "the end"
        raise
    finally:
        ROWS.append(Row(name, loss, version, kernel, time.monotonic() - began, fault))
        print(ROWS[-1], flush=True)
    assert "Traceback" not in said, said
    if loss == "error":
        assert state.says in said, said
        assert version == OLD, said
    # the newer kernel comes with the newer driver, and never without it
    assert kernel == tower.kernels.first or version == NEW


def test_the_table_of_cells() -> None:
    """Printed last, with 0 rows that have neither driver in whole."""
    print(f"{len(ROWS)} cells of {len(STATES) * len(LOSSES)}", *ROWS, sep="\n")
    assert not [row for row in ROWS if row.fault or row.driver not in (OLD, NEW)]


def test_the_seeds_story(tower: Rig) -> None:
    """The old driver does not build for the newer kernel: the pin holds it off; driver.py brings
    both, or goes back by itself; the second run is empty.
    """
    first, other = tower.kernels.first, tower.kernels.second
    status, output = tower.deploy("deploys/kernel.py", "-y", "--data", f"candidate={other}")
    assert status == 1 and "pin-no-driver" in output, output
    attempt = (*ASK, *newer(tower, BUDGET_S))
    tower.machine.must(packages.from_repository("nobuild"))
    status, output = tower.deploy(*attempt)
    assert status == 1 and f"no {MODULE} module for {other}" in output, output
    assert "ROLLED_BACK" in output
    assert (settled(tower), tower.machine.kernel()) == (OLD, first)
    tower.machine.must(packages.from_repository("good"))
    status, output = tower.deploy(*attempt)
    assert status == 0 and f"driver {NEW}" in output, output
    assert (settled(tower), tower.machine.kernel()) == (NEW, other)
    status, output = tower.deploy(*ASK)
    assert status == 0 and "as wanted" in output, output


@pytest.mark.parametrize(("fault", "says"), [
    ("touch /var/lib/dpkg/updates/0001", "driver-dpkg"),
    (f'nohup python3 -c "{LOCK}" >/dev/null 2>&1 & sleep 1', "apt is at work"),
    (f"fallocate -l {FULL} /boot/full", "boot-room"),
    (f"rm {packages.FOLDER}/good/*_{NEW}-*.deb", "nothing was changed"),
    (f"dpkg -i {packages.FOLDER}/good/{OTHER}_*.deb; apt-mark hold {OTHER}", f"({OTHER}: held)"),
    ("echo Y > /sys/module/module/parameters/sig_enforce", "driver-unsigned"),
], ids=("dpkg cut off", "dpkg locked", "full", "no network", "held", "unsigned"))  # fmt: skip
def test_what_apt_cannot_do_is_one_line(tower: Rig, fault: str, says: str) -> None:
    tower.machine.must(fault)
    status, output = tower.deploy(*ASK)
    assert status != 0 and says in output and "Traceback" not in output, output
    assert not tower.machine.sudo("rignode status | grep '^OPEN'").stdout
    assert tower.machine.must("nvidia-smi").strip() == OLD
    answers(tower)


def test_an_edited_conffile_asks_nothing(tower: Rig) -> None:
    tower.machine.must(f"echo edited > /etc/{MODULE}.conf")
    status, output = tower.deploy(*ASK)
    assert status == 0, output
    assert tower.machine.must(f"cat /etc/{MODULE}.conf").strip() == "edited"
    assert settled(tower) == NEW
