"""answer: wait until this host's engine gives a real completion (the head's ExecStartPost).

systemd then calls the unit started only once it serves, and restarts it when it never does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from node.core import log, proc
from node.core.errors import CannotRead, NodeError
from node.docker import containers
from node.engine import config, port_holder
from node.engine.api_key import key_of
from node.engine.completion import ask
from node.engine.config import Endpoint, Engine
from node.rules.completion import Reply

POLL_S = 2.0
PROGRESS_S = 10.0
# a busy host takes its time between `docker run` and the container
APPEAR_S = 120.0
GRACE_S = 10


class _Ended(Exception):
    """systemd ends the start: somebody stops the unit, or its time is over."""


class _Alive:
    """Whether the engine that systemd has just started is still there."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.started = time.monotonic()
        self.seen = False
        pid = os.environ.get("MAINPID", "")
        self.main: proc.Stat | None = proc.stat(int(pid)) if pid.isdigit() else None

    def ended(self) -> str | None:
        """Gives why the engine is over, or None."""
        if self.main is not None:
            now = proc.stat(self.main.pid)
            if now is None or now.start_ticks != self.main.start_ticks or now.state == "Z":
                return "docker run ended" if self.engine.container else "the engine's process ended"
        if self.engine.container is None:
            # systemd names no main process of a unit whose main process has ended already
            gone = self.main is None and "INVOCATION_ID" in os.environ
            return "the engine's process ended" if gone else None
        try:
            running = containers.is_running(self.engine.container)
        except CannotRead:
            return None  # unknown is not gone; the budget ends the wait
        self.seen = self.seen or running
        if running:
            return None
        if self.seen:
            return f"the container {self.engine.container} is gone"
        late = time.monotonic() - self.started > APPEAR_S
        return f"no container {self.engine.container} after {APPEAR_S:.0f} s" if late else None


def answer(engine: Engine) -> str:
    """Waits for a completion within the engine's start budget; gives a line about it.

    Raises NodeError (`no_answer`) when the engine ended, answered in a way that waiting cannot
    mend, or the budget is over.
    """
    if engine.endpoint is None:
        return f"{engine.node} is a {engine.role}: the head answers"
    alive, key = _Alive(engine), key_of(engine)
    budget = engine.start_budget_s
    told = alive.started
    while True:
        passed = time.monotonic() - alive.started
        seconds = min(120.0, max(1.0, budget - passed))
        # whoever answers this gets no key
        reply = ask(engine.endpoint, seconds)
        if reply.ok or reply.wants_key:
            # somebody answers: whose engine it is, is looked at around another answer
            reply = ask_ours(engine, engine.endpoint, seconds, key)
        passed = time.monotonic() - alive.started
        if reply.ok or (reply.wants_key and key is None):
            return f"{reply.detail}, {passed:.0f} s after the start"
        if reply.final:
            raise _failed(engine, reply, passed)
        gone = alive.ended()
        if gone:
            raise NodeError(f"no answer: {gone} after {passed:.0f} s", "no_answer", _look(engine))
        if passed >= budget:
            raise _failed(engine, reply, passed)
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            log.say(f"waiting for an answer: {passed:.0f} s of {budget:.0f} s; {reply.detail}")
        time.sleep(POLL_S)


def ask_now(engine: Engine, seconds: float) -> Reply:
    """Asks once; the key goes to our own engine alone."""
    if engine.endpoint is None:
        return Reply(False, "this node has no endpoint", True)
    try:
        port_holder.look(engine)
    except CannotRead:
        # nobody listens, or docker does not say who: asked, and whoever answers gets no key
        return ask(engine.endpoint, seconds)
    try:
        return ask_ours(engine, engine.endpoint, seconds, key_of(engine))
    except NodeError as error:
        return Reply(False, str(error))


def ask_ours(engine: Engine, endpoint: Endpoint, seconds: float, key: str | None) -> Reply:
    """Gives the reply of our own engine, the same before and after it, or why there is none.

    Raises NodeError (`no_answer`) where somebody else holds the port: ours will not get it.
    """
    try:
        before = port_holder.look(engine)
        reply = ask(endpoint, seconds, key) if before.foreign is None else Reply(False, "")
        after = port_holder.look(engine)
    except CannotRead as error:
        return Reply(False, f"whose engine it is: {error}")
    foreign = before.foreign or after.foreign
    if foreign is not None:
        port = after.holders[0].port if after.holders else ""
        look = f"ss -ltnp 'sport = :{port}'; stop what holds it, by its unit if it has one"
        raise NodeError(f"what answers is not this engine: {foreign}", "no_answer", look)
    if before != after:
        return Reply(False, "the engine was started anew while it was asked")
    return reply


def _look(engine: Engine) -> str:
    return f"journalctl -u {engine.unit} -n 100"


def _failed(engine: Engine, reply: Reply, passed: float) -> NodeError:
    text = f"no good answer after {passed:.0f} s of {engine.start_budget_s:.0f} s: {reply.detail}"
    return NodeError(text, "no_answer", _look(engine))


def _on_term(_number: int, _frame: object) -> None:
    raise _Ended


def run() -> None:
    """The verb: reads this host's engine, waits, and says what answered.

    A stop during the start skips ExecStop (systemd.service(5)), and an engine that loads does not
    heed docker's TERM [ran: 60 s, then KILL]: so the container is ended from here.
    """
    engine = config.load()
    signal.signal(signal.SIGTERM, _on_term)
    try:
        log.say(answer(engine))
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if engine.container is not None:
            with contextlib.suppress(CannotRead):
                containers.stop(engine.container, GRACE_S)
        raise NodeError("systemd ended the start before an answer", "no_answer") from None
