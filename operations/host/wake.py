"""Waking a machine: the packet, the plug, and the wait for its sshd."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Generator

import wakeonlan
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from operations.change.command import told
from operations.change.node_call import StepFailed

# A lost packet is nobody's fault: it is UDP, and the card may still be getting its standby power.
AGAIN_S = 20.0
POLL_S = 2.0
PROGRESS_S = 15.0
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


def wait(
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
