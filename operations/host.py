"""Reboot, wake, driver, drop-ins."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gevent
import wakeonlan
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation
from pyinfra.api.exceptions import ConnectError

from facts.node import fact_of, reconnect
from facts.plain import BootId
from node.rules.text import printable
from operations.apply import Steps, folder_steps, told, unit_step
from operations.engine import file_steps
from operations.run import Run, StepFailed, call, run_as_root
from schema.hardware import Nic
from schema.plan import Document
from schema.render_host import WolPersistence
from schema.snapshot import FileState, Unit

# The machine: kernel, reboot, drop-ins, Wake-on-LAN.

# A drop-in of a systemd unit: written, replaced or taken away, as steps that node journals.
#
# The steps say which unit the file is for, so that node checks the whole unit before it changes
# one.

MODE = "0644"


@dataclass(frozen=True)
class Target:
    """A drop-in as it is on one host: the unit, the file's path, the file, its folder."""

    unit: Unit
    path: str
    now: FileState
    folder: FileState


def write_steps(target: Target, text: str, restart: bool) -> Steps:
    """The steps that make the drop-in this text; none where it is so and systemd has read it.

    `restart`: whether the unit is to be started anew with it.
    """
    steps: Steps = []
    if target.folder.kind == "absent":
        path = target.path.rpartition("/")[0]
        steps.append({"op": "directory", "path": path, "mode": "0755"})
    if not _equal(target.now, text):
        steps.append(
            {
                "op": "file",
                "path": target.path,
                "content": text,
                "mode": MODE,
                "owner": "root",
                "group": "root",
                "expect_sha256": target.now.sha256 or "absent",
                "for_unit": target.unit.name,
            }
        )
    return _with_unit(steps, target, restart)


def remove_steps(target: Target, restart: bool) -> Steps:
    """The steps that take the drop-in away; none where there is none."""
    steps: Steps = []
    if target.now.kind == "file":
        steps.append(
            {
                "op": "absent",
                "path": target.path,
                "expect_sha256": target.now.sha256,
                "for_unit": target.unit.name,
            }
        )
    return _with_unit(steps, target, restart)


def _equal(now: FileState, text: str) -> bool:
    wanted = hashlib.sha256(text.encode()).hexdigest()
    return (now.sha256, now.mode, now.uid, now.gid) == (wanted, MODE, 0, 0)


def _with_unit(steps: Steps, target: Target, restart: bool) -> Steps:
    if not steps and not target.unit.needs_reload:
        return []
    return [*steps, unit_step(target.unit.name, "restart" if steps and restart else None)]


# A machine's own settings: Wake-on-LAN, sleep, attestations. The steps are node's, journalled.

_SLEEP_DIR = "/etc/systemd/system"


def folders_of(documents: Sequence[Document]) -> list[str]:
    """The documents' folders."""
    return [document.path.rpartition("/")[0] for document in documents]


def wol_steps(
    nic: Nic, how: WolPersistence, files: Mapping[str, FileState], enabled: Collection[str]
) -> Steps:
    """The steps that arm a card at every boot and now; none where it is.

    `enabled` are the units that are enabled already.
    """
    written = file_steps(how.documents, files)
    steps = [*folder_steps(folders_of(how.documents), files), *written] if written else []
    if how.unit is not None and (written or how.unit not in enabled):
        steps.append(unit_step(how.unit, enabled=True))
    if not getattr(nic.wol, "armed", False):
        steps.append({"op": "wol", "nic": nic.name, "letters": "g"})
    return steps


def sleep_steps(targets: Mapping[str, str]) -> Steps:
    """The steps that mask what would put the machine to sleep; none where all is masked."""
    awake = sorted(name for name, state in targets.items() if state != "masked")
    links: Steps = [
        {"op": "link", "path": f"{_SLEEP_DIR}/{name}", "target": "/dev/null"} for name in awake
    ]
    return [*links, unit_step(awake[0])] if links else []


# A driver's packages fetched before anything stops; its CDI spec and its proof once it is loaded.
#
# The exchange itself is steps of node (`packages`, `module`), made by operations/apply.py.

# Some hundred MB over a slow line, and dpkg-repack of what no repository has any more.
FETCH_S = 3600
CDI_S = 90
PROVE_S = 400


@operation()
def fetch_driver(
    run: Run, rows: Mapping[str, Sequence[Mapping[str, Any]]], words: Sequence[str]
) -> Generator[FunctionCommand, None, None]:
    """
    Bring the new packages to this node, and keep the old ones for the way back.

    + run: the change
    + rows: by node, the packages that are exchanged
    + words: what is exchanged here, for a person, a line each
    """
    mine = rows.get(host.name, ())
    for line in words:
        run.show_once(host, line, partial(host.log, line))
    if not mine:
        host.noop("no package is exchanged here")
        return
    node, reporter = host.name, host

    def work() -> None:
        answer = call(run.state, run.host(node), "driver fetch", {"rows": list(mine)}, FETCH_S)
        kept = sorted(set(answer["kept"].values()))
        reporter.log(
            f"{answer['new']} new packages are here, {len(answer['kept'])} old ones are kept"
            + (f" ({', '.join(kept)})" if kept else "")
        )

    yield run.step("fetch", [name for name, wanted in rows.items() if wanted], work, FETCH_S)


@operation()
def write_cdi(
    run: Run, specs: Mapping[str, Mapping[str, str]]
) -> Generator[FunctionCommand, None, None]:
    """
    Make this node's CDI specs anew, of the driver that is loaded now.

    + run: the change
    + specs: by node, the specs' paths, each with its mode
    """
    mine = specs.get(host.name, {})
    if not mine:
        host.noop("no CDI spec of an older driver lies here")
        return
    node = host.name
    for path in mine:
        run.show_once(host, path, partial(host.log, f"nvidia-ctk makes {path} anew"))

    def work() -> None:
        text = call(run.state, run.host(node), "driver cdi", {}, CDI_S)["text"]
        if text is None:
            raise StepFailed(
                f"{node}: {', '.join(mine)} is of the old driver, and nvidia-ctk is not installed"
            )
        run.apply(node, [
            {"op": "file", "path": path, "content": text, "mode": mode, "owner": "root",
             "group": "root"}
            for path, mode in mine.items()
        ])  # fmt: skip

    yield run.step("cdi", [name for name, paths in specs.items() if paths], work)


@operation()
def driver_works(
    run: Run, members: Collection[str], check: Callable[[str], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Prove the driver on this node before an engine is started on it.

    + run: the change
    + members: the nodes whose driver is another one now
    + check: proves it and says how, or raises StepFailed
    """
    if host.name not in members:
        host.noop("the driver is as it was")
        return
    node, reporter = host.name, host
    run.show_once(host, "works", lambda: host.log("module, library, nvidia-smi, a CUDA context"))
    yield run.step("works", members, lambda: reporter.log(check(node)))


# A reboot that is proven: another boot_id, within a budget, with progress.
#
# pyinfra's server.reboot marks a healthy host failed when sshd outlives its delay, and gives up
# after 300 s (pyinfra-notes.md, "server.reboot"); big boards take longer.

POLL_S = 2.0
PROGRESS_S = 15.0
SHUTDOWN_S = 120
# One look, handshake included. A host that goes down in the middle of one may say no goodbye, and a
# connection without a limit then waits for ever.
LOOK_S = 60.0


@operation()
def reboot(
    run: Run, nodes: Collection[str], before: str, budget_s: int
) -> Generator[FunctionCommand, None, None]:
    """
    Reboot this node, when it is one of `nodes`, and wait for its next boot.

    + run: the change
    + nodes: the nodes to reboot, at the same time
    + before: the boot_id of this node now
    + budget_s: how long its next boot may take
    """
    if host.name not in nodes:
        host.noop("this node is not rebooted")
        return
    run.show_once(host, "reboot", lambda: host.log(f"reboot, then wait up to {budget_s} s"))
    target = run.host(host.name)
    # A quick board waits for a slow one for as long as that may take.
    wait_s = budget_s + SHUTDOWN_S
    yield run.step("reboot", nodes, lambda: reboot_now(run.state, target, before, budget_s), wait_s)


def reboot_now(state: State, target: Host, before: str, budget_s: int) -> None:
    """Reboots a host and waits for its next boot; StepFailed when it does not come."""
    # Detached: the ssh channel must not wait for a shell that the reboot ends.
    command = "nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &"
    done, output = run_as_root(state, target, command, 30)
    if not done:
        raise StepFailed(f"{target.name}: systemctl reboot: {printable(output.stderr[-200:])}")
    seconds = wait_for_boot(state, target, before, budget_s)
    target.log(f"up again after {seconds:.0f} s, another boot_id")


def wait_for_boot(state: State, target: Host, before: str, budget_s: int) -> float:
    """Waits until the host answers from another boot; the seconds it took, or StepFailed."""
    # it would print a traceback for each look at a host that takes a connection and says nothing
    logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
    started = told = time.monotonic()
    while True:
        time.sleep(POLL_S)
        now = time.monotonic()
        boot = _boot_id(state, target)
        if boot is not None and boot != before:
            return now - started
        if now - started > budget_s:
            raise StepFailed(
                f"{target.name} did not come back within {budget_s} s; look at its console"
            )
        if now - told >= PROGRESS_S:
            told = now
            word = "no ssh yet" if boot is None else "still in the old boot"
            target.log(f"waiting for the next boot: {now - started:.0f} s of {budget_s} s; {word}")


def _boot_id(state: State, target: Host) -> str | None:
    """The host's boot_id over a fresh connection; None while none comes, or no answer in time."""
    # False: the block just ends, which gevent's types do not know.
    with gevent.Timeout(LOOK_S, cast(Any, False)):
        try:
            reconnect(state, target, LOOK_S)
        except (ConnectError, OSError, EOFError):
            return None
        if not target.connected:
            return None
        try:
            boot: str | None = fact_of(state, target, BootId)
            return boot
        except Exception:  # a connection that the shutdown cuts while it is used
            return None
    return None


# Waking a machine: the packet, the plug, and the wait for its sshd.

# A lost packet is nobody's fault: it is UDP, and the card may still be getting its standby power.
AGAIN_S = 20.0
TOUCH_S = 3.0
PLUG_S = 60
MAGIC_PORT = 9
Say = Callable[[str], None]


def answers_ssh(address: str, port: int) -> bool:
    """Whether an sshd answers there: its banner (RFC 4253, 4.2), no login."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), TOUCH_S) as line:
        line.settimeout(TOUCH_S)
        return line.recv(4) == b"SSH-"
    return False


def own_address(towards: str) -> str | None:
    """The address of this machine from which it would reach another; None: no route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((towards, MAGIC_PORT))
        return str(way.getsockname()[0])
    return None


def send_here(mac: str, broadcast: str) -> str:
    """Sends the packet from this machine; a line about it. StepFailed where the kernel refuses."""
    try:
        wakeonlan.wake(mac, host=broadcast, port=MAGIC_PORT)
    except OSError as error:
        raise StepFailed(
            f"no packet to {broadcast}: {error}; send it from a neighbour: --data via=HOST"
        ) from None
    return f"magic packet for {mac} to {broadcast}:{MAGIC_PORT} from this machine"


def cycle(command: Collection[str], off_s: int, say: Say, pause: Callable[[float], None]) -> None:
    """Cuts the plug, waits, and switches it on again, also when the wait is cut off.

    The board must see the power go: its capacitors carry it over less than 3 seconds (B7). The
    command is called with `off` and `on` behind its own words, here, never on a host.
    """
    say(f"plug off for {off_s} s: {' '.join(command)} off")
    started = time.monotonic()
    try:
        _plug(command, "off")
        started = time.monotonic()
        while (left := off_s - (time.monotonic() - started)) > 0:
            pause(left)
    finally:
        _plug(command, "on")
    say(f"plug on after {time.monotonic() - started:.1f} s")


def _plug(command: Collection[str], word: str) -> None:
    shown = " ".join([*command, word])
    try:
        done = subprocess.run(
            [*command, word], capture_output=True, text=True, timeout=PLUG_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepFailed(f"{shown}: {error}; switch the plug {word} by hand") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise StepFailed(
            f"{shown}: exit status {done.returncode}: {said[-1] if said else 'no word'}; switch "
            f"the plug {word} by hand"
        )


def wait_wake(
    send: Callable[[], str], up: Callable[[], bool], budget_s: float, say: Say,
    pause: Callable[[float], None] = time.sleep,
) -> float:  # fmt: skip
    """Sends again and again until the machine answers; the seconds that it took.

    StepFailed when it did not come within `budget_s` seconds.
    """
    started = time.monotonic()
    sent = told = -AGAIN_S
    while True:
        passed = time.monotonic() - started
        if passed - sent >= AGAIN_S:
            line = send()
            if sent < 0:
                say(line)
            sent = passed
        if up():
            return time.monotonic() - started
        passed = time.monotonic() - started
        if passed >= budget_s:
            raise StepFailed(f"no sshd after {passed:.0f} s")
        if passed - told >= PROGRESS_S:
            say(f"{passed:.0f} of {budget_s:.0f} s: no sshd yet")
            told = passed
        pause(min(POLL_S, max(0.05, budget_s - passed)))


@operation()
def wake(
    asleep: bool, work: Callable[[Host], str], causes: Callable[[Host], list[str]]
) -> Generator[FunctionCommand, None, None]:
    """
    Wake this host and wait until it answers.

    + asleep: whether it is down
    + work: does it and says how; raises StepFailed
    + causes: what to look at when it did not come, in order
    """
    if not asleep:
        host.noop("answers ssh already")
        return

    yield told(lambda _, host: work(host), causes)
