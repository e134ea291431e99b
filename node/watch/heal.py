"""A silent engine is named once, its evidence kept, and, where that was asked for, restarted.

The head restarts its own unit; the check of the pair on each worker sees the connection end and
restarts the other half (node/engine/peer_watchdog.py). At most MOST restarts in WINDOW_S: then it
stands down, because what comes back so often is not mended by one more load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

from node.core import log
from node.core.errors import Json, NodeError, io_reason
from node.core.webhook import NO_ANSWER
from node.rules.completion import Reply
from node.rules.restarts import MOST, WINDOW_S
from node.watch import silence
from node.watch.metrics import Scrape
from node.watch.silence import Limits, Look, Verdict

LEAST_ANSWER_S = 15.0
# an answer that takes longer is waited for in two parts: an engine that stopped just after the look
# began is silent from the second part on
FIRST_PART_S = 10.0
_NO_ANSWER_YET = Reply(False, NO_ANSWER)


class Target(Protocol):
    """The engine that is watched, however it runs. Each may raise NodeError: it cannot be told."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    def ask(self, wait_s: float) -> Reply:
        """Gives the reply to a completion, within about so many seconds."""

    def start(self) -> str | None:
        """Gives which start of it runs, or None while it is not up."""

    def scrape(self) -> Scrape | str:
        """Gives a reading of its /metrics, or why there is none."""

    def hints(self) -> tuple[bool | None, bool]:
        """Gives whether its GPUs are idle (None: they do not say) and whether a compiler runs."""

    def evidence(self, reason: str) -> str:
        """Keeps a bundle; gives its path. Raises OSError."""

    def hindrance(self) -> str | None:
        """Gives why a restart would be wrong now, or None."""

    def restart(self) -> str | None:
        """Restarts it; gives why not, or None."""


class Found(NamedTuple):
    """What a look brought: the reply, whether the engine works (None: not known), its memory."""

    reply: Reply
    works: bool | None
    memory: Json


# memory to keep at once, and a notice that is due (status and text)
Keep = Callable[[Json, tuple[str, str] | None], None]


def fresh() -> Json:
    """Gives the memory before the first look."""
    return {"judged": silence.fresh(), "reason": None, "evidence": None, "told": "",
            "restarts": [], "stood_down_unix_s": None}  # fmt: skip


def look(
    engine: Target, limits: Limits, restart: bool, memory: Json, most_s: float, keep: Keep
) -> Found:
    """One look at an engine, and what has to be done after it; an answer is awaited for `most_s`
    seconds at most. Raises NodeError when nobody says whether it is up.
    """
    start = engine.start()
    if memory["judged"]["invocation"] != start:
        memory = {**memory, **_whole()}
    parts, reply = _ask(engine, limits, memory["judged"], most_s)
    # while it starts, its unit waits for an answer itself, within the start budget
    if start is None or engine.start() != start:
        return Found(reply, None, {**memory, **_whole(), "judged": silence.fresh()})
    judged, seen = memory["judged"], [part._replace(invocation=start) for part in parts]
    for part in seen[:-1]:
        judged = silence.judge(judged, part, limits).state
    verdict = silence.judge(judged, seen[-1], limits)
    if verdict.works is False:
        idle, compiles = engine.hints()
        last = seen[-1]._replace(gpu_idle=idle, compiles=compiles)
        verdict = silence.judge(judged, last, limits)
    if verdict.reason is None:
        return Found(reply, verdict.works, _after_none(memory, verdict))
    memory = {**memory, "judged": verdict.state, "reason": verdict.reason}
    return Found(reply, False, _act(engine, memory, restart, keep))


def _ask(engine: Target, limits: Limits, judged: Json, most_s: float) -> tuple[list[Look], Reply]:
    """Asks for an answer between two readings; gives the one or two parts of the look, and the
    reply.
    """
    began, before = time.monotonic(), engine.scrape()
    wait_s = silence.answer_s(judged, limits, time.monotonic(), most_s, LEAST_ANSWER_S)
    parts = []
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.ask, wait_s)
        if not wait([asked], FIRST_PART_S).done:
            middle, now = engine.scrape(), time.monotonic()
            parts.append(Look("", began, now, before, middle, _NO_ANSWER_YET))
            began, before = now, middle
        reply = asked.result()
    after = engine.scrape()
    return [*parts, Look("", began, time.monotonic(), before, after, reply)], reply


def _whole() -> Json:
    """Gives the part of the memory that says that nothing is wrong."""
    return {"reason": None, "evidence": None, "told": ""}


def _after_none(memory: Json, verdict: Verdict) -> Json:
    """Gives the memory after a look without a reason; an answer ends a stand-down."""
    memory = {**memory, "judged": verdict.state}
    if verdict.works is not True:
        return memory
    if memory["stood_down_unix_s"] is not None:
        log.say("the engine works again: it is no longer left alone", log.NOTICE)
    return {**memory, **_whole(), "stood_down_unix_s": None}


def _act(engine: Target, memory: Json, restart: bool, keep: Keep) -> Json:
    """Names it, keeps the evidence once, restarts where that is wanted and possible."""
    if memory["evidence"] is None:
        memory = {**memory, "evidence": _evidence(engine, memory["reason"])}
        keep(memory, None)
    now = time.time()
    # a clock that was set back leaves times of the future: they count
    recent = [then for then in memory["restarts"] if now - then < WINDOW_S]
    memory = {**memory, "restarts": recent}
    status, does, hinders = "wedged", "nothing restarts it (--data restart=true would)", True
    if restart and len(recent) >= MOST:
        memory = {**memory, "stood_down_unix_s": memory["stood_down_unix_s"] or now}
        status = "stood-down"
        does = f"{MOST} restarts in {WINDOW_S / 3600:.0f} h did not help: it is left alone until it"
        does += " answers; mend it, then deploys/restart.py"
    elif restart:
        hindrance = engine.hindrance()
        hinders = hindrance is not None
        does = hindrance or f"restarting it, {len(recent) + 1} of {MOST} in {WINDOW_S / 3600:.0f} h"
    text = f"{engine.name} is silent: {memory['reason']}; {memory['evidence']}; {does}"
    plain = "".join(char for char in f"{status} {does}" if not char.isdigit())
    new = plain != memory["told"]
    memory = {**memory, "told": plain}
    if new:
        log.say(text, log.WARNING)
    if hinders:
        keep(memory, (status, text) if new else None)
        return memory
    # announced before it is made: a kill in between costs one of the restarts
    begun = {**memory, "restarts": [*recent, now]}
    keep(begun, (status, text) if new else None)
    try:
        why_not = engine.restart()
    except NodeError as error:
        # whether it was made is not known: it counts
        log.say(str(error), log.WARNING)
        return begun
    if why_not is None:
        return begun
    log.say(why_not, log.WARNING)
    return {**memory, "told": ""}


def _evidence(engine: Target, reason: str) -> str:
    """Gives where the bundle lies, or why there is none."""
    try:
        return f"evidence in {engine.evidence(reason)}"
    except OSError as error:
        return f"no evidence: {io_reason(error)}"
    except NodeError as error:
        return f"no evidence: {error}"
