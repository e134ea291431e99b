"""A reboot that is proven: another boot_id, within a budget, with progress.

pyinfra's server.reboot marks a healthy host failed when sshd outlives its delay, and gives up
after 300 s (pyinfra-notes.md, "server.reboot"); big boards take longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator
from typing import Any, cast

import gevent
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation
from pyinfra.api.exceptions import ConnectError

from facts.boot_id import BootId
from facts.rignode.context import fact_of, reconnect
from node.rules.patterns import printable
from operations.change.node_call import StepFailed, run_as_root
from operations.change.run import Run

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
