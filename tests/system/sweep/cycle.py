"""One cell: a deploy interrupted at its moment, ONE more run of the same, and what the rig is then.

A cell that ends outside of the table leaves what replays it in build/chaos/SEED/DEPLOY-NUMBER.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from lab import host as lab_host
from lab import lifecycle
from lab.core import SSH_USER, LabHost
from lab.host import wait_ready
from schema.plan import PAIR_SERVICE
from tests.system.engine.steps import killed_operator, wait_until
from tests.system.lab.support import moving
from tests.system.lab.test_libvgpu import OLARES, TARGET, sha
from tests.system.lab.test_weights import MAKE
from tests.system.lease.rigs import OnLab, OnVm, Rig
from tests.system.rehearsal import ROOT
from tests.system.venv.steps import VENV
from tests.unit.node.support.libs import library

# Which deploys are interrupted, how and when: all of it follows from a seed.
#
# RIGBOOK_CHAOS_SEED=N repeats a sweep; RIGBOOK_CHAOS_N is the number of its interrupts;
# RIGBOOK_CHAOS=serve,upgrade:7 has these deploys alone, or this one cell of them.

SEED = int(os.environ.get("RIGBOOK_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
NUMBER = int(os.environ.get("RIGBOOK_CHAOS_N") or 60)
CHOSEN = os.environ.get("RIGBOOK_CHAOS", "")

ON_HOSTS = (
    "operator killed",
    "node killed",
    "connection killed",
    "two operators",
    "dockerd killed",
    "reboot -ff",
    "power cut",
)
ON_PAIR = (*ON_HOSTS, "the pair's timer")
ON_ONE = tuple(kind for kind in ON_HOSTS if kind != "dockerd killed")
ON_VM = ("operator killed", "two operators", "node killed", "reboot -ff", "power cut")
# The deploys of a sweep, and what may happen to each. A power cut of the VM is QEMU killed.
DEPLOYS = {
    "unit": ON_HOSTS,
    "weights": ON_HOSTS,
    "image": ON_HOSTS,
    "libvgpu": ON_ONE,
    "serve": ON_PAIR,
    "restart": ON_PAIR,
    "rollback": ON_PAIR,
    "upgrade": ON_ONE,
    "kernel": ON_VM,
}


@dataclass(frozen=True)
class Cell:
    """One interrupt: of which deploy, how, at which part of a whole run's time, on which host."""

    seed: int
    deploy: str
    number: int
    kind: str
    part: float
    host: float

    @property
    def name(self) -> str:
        """What RIGBOOK_CHAOS calls it."""
        return f"{self.deploy}:{self.number}"


def cell(seed: int, deploy: str, number: int, kinds: tuple[str, ...] = ()) -> Cell:
    """A cell by its number: of each kind as many, the rest drawn. The moments are uniform."""
    among = list(kinds or DEPLOYS[deploy])
    random.Random(f"{seed} {deploy}").shuffle(among)
    draw = random.Random(f"{seed} {deploy} {number}")
    kind = among[number % len(among)]
    return Cell(seed, deploy, number, kind, draw.uniform(0, 1), draw.uniform(0, 1))


def cells(deploy: str, chosen: str = CHOSEN, number: int = NUMBER, seed: int = SEED) -> list[Cell]:
    """The chosen cells of a deploy; the interrupts are spread evenly over the deploys."""
    parts = [part.partition(":") for part in (chosen or ",".join(DEPLOYS)).split(",")]
    for name, _, at in parts:
        if name not in DEPLOYS or (at and not at.isdigit()):
            raise ValueError(f"RIGBOOK_CHAOS: {name}:{at}: there are {', '.join(DEPLOYS)}")
    single = [int(at) for name, _, at in parts if name == deploy and at]
    whole = list(dict.fromkeys(name for name, _, at in parts if not at))
    share = 0
    if deploy in whole:
        share = number // len(whole) + (whole.index(deploy) < number % len(whole))
    return [cell(seed, deploy, at) for at in (*range(share), *single)]


# What interrupts a change, each made for real on a rig of the lab or on the VM.

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


def _running(rig: OnLab, host: LabHost) -> Iterator[tuple[lab_host.Process, list[str], str]]:
    """A host's processes as this machine sees them: identity, arguments, cgroup."""
    top = lab_host.lab_cgroup(rig.lab.settings.home) / host.name
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
            process = lab_host.identify(int(pid))
            if argv and process:
                yield process, argv.rstrip("\0").split("\0"), str(file)


def _kill(
    host: LabHost, rig: OnLab, hit: Callable[[list[str], str], bool], over: Callable[[], bool]
) -> int:
    """Kills -9 a host's processes of a kind as soon as there are some; how many."""
    until = time.monotonic() + THERE_S
    while time.monotonic() < until and not over():
        found = [process for process, argv, cgroup in _running(rig, host) if hit(argv, cgroup)]
        done = sum(lab_host.send_signal(process, signal.SIGKILL) for process in found)
        if done:
            return done
        time.sleep(0.02)
    return 0


def _reboot(rig: OnLab, host: LabHost) -> None:
    """`reboot -ff` inside: the kernel ends everything at once, nothing is stopped or synced."""
    lab = rig.lab.settings
    before = lab_host.read_state(lab, host)
    leader = before.live_leader()
    assert leader is not None, f"{host.name} does not run"
    rig.lab.hang_up(host.name)
    subprocess.run(["nsenter", "-t", str(leader.pid), "-p", "-m", "reboot", "-ff"], check=False)
    until = time.monotonic() + BOOT_S
    while lab_host.read_state(lab, host).boots == before.boots:
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


# what a run takes at most on a machine that others use, and a VM's emulated one
RUN_S = 1200
TRIES = 3
LOGS = ROOT / "build" / "chaos"
COMMITTED, ROLLED_BACK = "COMMITTED", "ROLLED_BACK"


class Case:
    """A deploy under test on a rig: what it is told, and how one sees that it did it."""

    deploy = ""
    wanted = COMMITTED
    # whether a run after the one that worked changes nothing
    repeats = True

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.full_s = 0.0

    def prepare(self) -> None:
        """Makes that there is something to change."""

    def data(self) -> Sequence[str]:
        """The KEY=VALUE of the next runs."""
        return ()

    def around(self) -> AbstractContextManager[None]:
        """What holds during the runs."""
        return nullcontext()

    def prove(self) -> None:
        """Fails unless the thing itself is as it was asked for."""

    def run(self) -> tuple[int, str, float]:
        """A whole run: exit status, what it printed, seconds."""
        began = time.monotonic()
        process = self.rig.start(self.deploy, *self.data())
        code, text = ended(process)
        return code, text, time.monotonic() - began

    def measure(self) -> None:
        """How long a whole run takes that is not interrupted; once."""
        if not self.full_s:
            self.prepare()
            with self.around():
                code, text, self.full_s = self.run()
            assert code == 0, text
            self.prove()


@dataclass(frozen=True)
class Row:
    """A cell's end."""

    cell: Cell
    at_s: float
    of_s: float
    line: str
    hit: str
    operator: str
    took_up: str
    again_s: float
    status: str
    fault: str


ROWS: list[Row] = []


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """A run's exit status and what it printed; one that does not end is killed and said so."""
    try:
        text = process.communicate(timeout=RUN_S)[0]
    except subprocess.TimeoutExpired:
        end(process)
        return -1, f"{process.communicate()[0]}\nit did not end within {RUN_S} s"
    finally:
        # an interrupt of the tests themselves leaves no operator at work
        if process.poll() is None:
            end(process)
    return process.returncode, text


def settled(rig: Rig, wanted: str) -> str:
    """The newest change's status on the hosts that have it; fails where one is unsettled, or where
    a host's own look at it finds another thing than its journal says."""
    rows = {name: rig.changes(name) for name in rig.names}
    every = [row for found in rows.values() for row in found]
    unsettled = [f"{row['id']} {row['status']}" for row in every
                 if row["status"] in ("OPEN", "INCONSISTENT")]  # fmt: skip
    assert not unsettled, f"left: {', '.join(unsettled)}"
    newest = max(every, key=lambda row: float(row["opened_unix_s"]))
    for name, found in rows.items():
        for row in found:
            if row["id"] == newest["id"]:
                assert row["status"] == wanted, f"{name}: {row['id']} is {row['status']}"
                said = rig.root(name, f"rignode status --json --verify {row['id']}")
                assert not (lines := json.loads(said)["lines"]), f"{name}: {'; '.join(lines)}"
    return wanted


def run(case: Case, cell: Cell) -> Row:
    """Runs a cell; its row is kept for the table. Fails with all that replays it.

    A run that was over before its moment is a new measure, and the cell is made once more.
    """
    case.measure()
    logs: dict[str, str] = {}
    for _ in range(TRIES):
        case.prepare()
        with case.around():
            row = _interrupted(case, cell, logs)
        if row.fault or row.hit != MISSED:
            break
    ROWS.append(row)
    print(f"SWEEP {row}")
    if row.fault:
        folder = _keep(case, row, logs)
        raise AssertionError(
            f"{cell.name}, {cell.kind} at {row.at_s:.1f} s of {row.of_s:.0f}: {row.fault}\n"
            f"again: make chaos SEED={cell.seed} ONLY={cell.name}   logs: {folder}"
        )
    return row


def _interrupted(case: Case, cell: Cell, logs: dict[str, str]) -> Row:
    rig, full_s = case.rig, case.full_s
    at_s = cell.part * full_s
    name = rig.names[int(cell.host * len(rig.names))]
    process, others = rig.start(case.deploy, *case.data()), []

    def second() -> None:
        others.append(rig.start(case.deploy, *case.data()))

    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(at_s)
        case.full_s = time.monotonic() - began
    before = process.poll()
    hit, again_s, took_up, status, fault = "", 0.0, "", "", ""
    try:
        if before is not None:
            hit = MISSED
        elif cell.kind == "operator killed":
            end(process)
            hit = "its process group"
        else:
            hit = strike(rig, cell.kind, name, second, lambda: process.poll() is not None)
    except (AssertionError, OSError, RuntimeError) as error:
        fault = f"the interrupt itself: {error}"
    code, text = ended(process)
    logs["operator.log"] = text
    operator = "killed" if code == -9 else f"exit {code}"
    for number, other in enumerate(others):
        other_code, logs[f"second-{number}.log"] = ended(other)
        operator += f", the second exit {other_code}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        assert code != -1, f"the operator did not end: {text[-500:]}"
        again, said, again_s = case.run()
        logs["again.log"] = said
        took_up = next((line.strip() for line in said.splitlines() if "change " in line and (
            "takes up" in line or "closes it there" in line)), "")  # fmt: skip
        assert again == 0, f"one more run ends with {again}: {said.strip()[-700:]}"
        status = settled(rig, case.wanted)
        case.prove()
        if case.repeats:
            code, text, _ = case.run()
            logs["third.log"] = text
            assert code == 0 and no_change(text), f"a third run changes: {text[-700:]}"
    except (AssertionError, OSError, RuntimeError, ValueError) as error:
        fault = fault or str(error)
    took_up = "undone first" if "undoes" in took_up else "goes on" if took_up else "-"
    return Row(cell, at_s, full_s, lines[-1] if lines else "nothing said", hit, operator,
               took_up, again_s, status, fault)  # fmt: skip


def no_change(text: str) -> bool:
    """Whether pyinfra's grand total has no host with a change or an error."""
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("Grand total")]
    return bool(rows) and rows[-1][-3:-1] == ["-", "-"]


def _keep(case: Case, row: Row, logs: dict[str, str]) -> str:
    """Leaves what replays a cell: its moment, what was printed, each host's journal."""
    folder = LOGS / str(row.cell.seed) / row.cell.name.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.json").write_text(json.dumps(asdict(row), indent=1) + "\n")
    for name, text in logs.items():
        (folder / name).write_text(text)
    for name in case.rig.names:
        with contextlib.suppress(Exception):
            journal = case.rig.root(name, "cat /var/lib/rigbook/journal/*.json; rignode status",
                                    check=False)  # fmt: skip
            (folder / f"{name}-journal.txt").write_text(journal)
    return os.path.relpath(folder, ROOT)


def table(rows: Sequence[Row] = ROWS) -> list[str]:
    """A row a deploy, a column a kind: how many ended, and with which status; then each cell."""
    kinds = list(dict.fromkeys(kind for found in DEPLOYS.values() for kind in found))
    deploys = [name for name in DEPLOYS if any(row.cell.deploy == name for row in rows)]
    hits = [row for row in rows if row.hit != MISSED or row.fault]
    good = sum(not row.fault for row in hits)
    missed = len(rows) - len(hits)
    seeds = ", ".join(dict.fromkeys(str(row.cell.seed) for row in rows))
    lines = [
        f"{len(hits)} interrupts, seed {seeds}: {good} were as asked after one more run, "
        f"{len(hits) - good} outside" + (f"; {missed} had nothing to hit" if missed else ""),
        f"| deploy | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for deploy in deploys:
        words = []
        for kind in kinds:
            found = [r for r in hits if r.cell.deploy == deploy and r.cell.kind == kind]
            bad = sum(bool(row.fault) for row in found)
            ends = sorted({row.status for row in found if not row.fault})
            words.append(f"{len(found)} {', '.join(ends)}{f', {bad} FAULT' if bad else ''}"
                         if found else "-")  # fmt: skip
        lines.append(f"| {deploy} | {' | '.join(words)} |")
    lines += [
        "",
        "| cell | interrupt | after | of | the operator's last line | operator | taken up | "
        "one more run | status |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.cell.name} | {r.cell.kind}{f' ({r.hit})' if r.hit == MISSED else ''} | "
            f"{r.at_s:.1f} s | {r.of_s:.0f} s | {r.line[:50]} | {r.operator} | {r.took_up} | "
            f"{r.again_s:.0f} s | {r.status}{' FAULT' if r.fault else ''} |"
            for r in rows
        ),
    ]
    return lines + [f"FAULT {r.cell.name}: {r.fault.splitlines()[0]}" for r in rows if r.fault]


def show(terminalreporter: pytest.TerminalReporter) -> None:
    """The table at the end of a run, whatever passed."""
    for line in table() if ROWS else ():
        terminalreporter.write_line(line)


# The deploys that need no engine: unit, weights, image on two hosts, libvgpu on one.

MB = 1_000_000
FOLDER = "/srv/models/tiny"
BALLAST = f"{FOLDER}/ballast.bin"


class LabCase(Case):
    """A deploy on hosts of the lab."""

    rig: OnLab

    @property
    def first(self) -> str:
        """The host that gives."""
        return self.rig.names[0]


class Unit(LabCase):
    """A drop-in for the login's own way in: sshd. Each run asks for another value."""

    deploy = "unit"
    _seconds = 7

    def prepare(self) -> None:
        self._seconds = 8 if self._seconds == 7 else 7

    def data(self) -> Sequence[str]:
        return ("unit=ssh.service", "drop_in=50-trial", f"restart_sec={self._seconds}")

    def prove(self) -> None:
        for name in self.rig.names:
            said = self.rig.root(name, "systemctl show -p RestartUSec --value ssh.service").strip()
            assert said == f"{self._seconds}s", f"{name}: systemd has RestartUSec {said}"


class Weights(LabCase):
    """40 MB over a slow fabric, beside the model that serves, if one does."""

    deploy = "weights"
    # a source that is named is compared each time, in a change of its own
    repeats = False

    def prepare(self) -> None:
        made = MAKE.format(size=MB)
        self.rig.root(
            self.first,
            f"test -e {FOLDER}/config.json || python3 - <<'END'\n{made}\nEND\n"
            f"dd if=/dev/urandom of={BALLAST} bs=1M count=40 status=none",
        )
        for name in self.rig.names[1:]:
            self.rig.root(name, f"rm -rf {BALLAST} {FOLDER}/.rigbook")

    def data(self) -> Sequence[str]:
        return (f"from={self.first}",)

    def around(self) -> AbstractContextManager[None]:
        return moving.slow_fabric(self.rig.lab, 40)

    def prove(self) -> None:
        sums = {self.rig.root(name, f"sha256sum {BALLAST}") for name in self.rig.names}
        assert len(sums) == 1, f"the nodes have other weights: {sums}"


class Image(LabCase):
    """40 MB over a slow fabric, beside the image that serves, if one does."""

    deploy = "image"

    def prepare(self) -> None:
        for name in self.rig.names:
            self.rig.root(
                name,
                f"docker rmi -f {moving.IMAGE} >/dev/null 2>&1; docker images -q rigbook-kept | "
                "xargs -r docker rmi -f >/dev/null; rm -rf /var/lib/rigbook/spool",
                check=False,
            )
        moving.make_image(self.rig.lab, self.first, 40 * MB)

    def data(self) -> Sequence[str]:
        return moving.RECIPE[1::2]

    def around(self) -> AbstractContextManager[None]:
        return moving.slow_fabric(self.rig.lab, 40)

    def prove(self) -> None:
        ids = {moving.image_id(self.rig.lab, name) for name in self.rig.names}
        assert len(ids) == 1 and ids != {""}, f"the nodes have other images: {ids}"


class Libvgpu(LabCase):
    """The library that the GPU's sharing preloads: each run swaps one of two for the other."""

    deploy = "libvgpu"

    def __init__(self, rig: OnLab, folder: Path) -> None:
        super().__init__(OnLab(rig.lab, OLARES, rig.names[:1], rig.endpoint))
        self._ours = [library(folder / f"{fill}.so", 670_000, fill) for fill in (1, 2)]
        plugins = library(folder / "plugins.so", 850_000, 3)
        raw = base64.b64encode(plugins.read_bytes()).decode()
        script = f"base64 -d > {TARGET} <<'END'\n{raw}\nEND\nchmod 755 {TARGET}"
        self.rig.root(self.first, f"mkdir -p {Path(TARGET).parent}\n{script}")

    def prepare(self) -> None:
        self._ours.reverse()

    def data(self) -> Sequence[str]:
        return (f"library={self._ours[0]}", f"sha256={sha(self._ours[0])}")

    def prove(self) -> None:
        there = self.rig.root(self.first, f"sha256sum {TARGET}").split()[0]
        assert there == sha(self._ours[0]), f"another library lies at {TARGET}"


# The deploys of a rig that serves: serve, restart, rollback of the pair, upgrade of the tower.

PROFILES = ("latency", "throughput", "balanced")
VERSIONS = ("0.31.0", "0.32.0")


class Profiles:
    """The profile that the pair serves, and the next one."""

    def __init__(self) -> None:
        self.now = "balanced"

    def turn(self) -> None:
        """The next one is served from here on."""
        self.now = PROFILES[(PROFILES.index(self.now) + 1) % len(PROFILES)]


class OnPair(LabCase):
    """A deploy of the pair, which serves the same profile as the other cases left."""

    def __init__(self, rig: Rig, served: Profiles) -> None:
        super().__init__(rig)
        self.served = served

    def data(self) -> Sequence[str]:
        return (f"profile={self.served.now}",)

    def prove(self) -> None:
        """A real answer, and nothing left to do for serve."""
        assert self.rig.answers(), "no real answer"
        done = self.rig.lab.pyinfra("serve", "--data", f"profile={self.served.now}")
        assert done.rc == 0 and no_change(done.text), done.text


class Serve(OnPair):
    """Another profile each time."""

    deploy = "serve"

    def prepare(self) -> None:
        self.served.turn()


class Restart(OnPair):
    """The same profile, started anew."""

    deploy = "restart"
    # each run starts it anew
    repeats = False


class Rollback(OnPair):
    """Of a serve whose operator was killed while its engine loaded."""

    deploy, wanted = "rollback", ROLLED_BACK

    def data(self) -> Sequence[str]:
        return ()

    def prepare(self) -> None:
        other = next(name for name in PROFILES if name != self.served.now)
        killed_operator(self.rig.lab, "serve", "--data", f"profile={other}")


class Upgrade(LabCase):
    """To the other of two real versions; every third one is installed anew."""

    deploy = "upgrade"

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.now, self.count = VERSIONS[1], 0

    def prepare(self) -> None:
        self.now = next(version for version in VERSIONS if version != self.now)
        self.count += 1
        if self.count % 3 == 0:
            done = self.rig.lab.pyinfra(
                "upgrade", "--data", "prune=true", inventory=self.rig.inventory
            )
            assert done.rc == 0, done.text

    def data(self) -> Sequence[str]:
        return (f"version={self.now}",)

    def prove(self) -> None:
        """The version, a real answer, and a verified backup of an install."""
        link = self.rig.root(self.first, f"readlink {VENV}").strip().rpartition("/")[2]
        assert link == self.now, f"{VENV} is {link}"
        wait_until("a real answer", 300, self.rig.answers)
        said = json.loads(self.rig.root(self.first, "echo '{}' | rignode tree list"))
        assert any(row["usable"] and row["verified_unix_s"] for row in said["backups"]), said
