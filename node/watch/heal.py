"""A silent engine is named once, its evidence kept, and, where that was asked for, restarted.

The head restarts its own unit; the check of the pair on each worker sees the connection end and
restarts the other half (node/engine/peer_watchdog.py). At most MOST restarts in WINDOW_S: then it
stands down, because what comes back so often is not mended by one more load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from node.core import log, proc
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl
from node.engine import peer_watchdog
from node.engine.config import Engine
from node.rules.completion import Reply
from node.snapshot.gpus import reported
from node.watch import evidence, metrics, silence
from node.watch.silence import Limits, Look, Verdict

MOST = 3
WINDOW_S = 6 * 3600.0
LEAST_ANSWER_S = 15.0
GPU_FIELDS = "index,uuid,utilization.gpu,power.draw,power.limit"
GPU_S = 5.0
# A GPU that computes draws more than this of its limit; a GB10 reports no limit, and stays below
# 30 W while it is idle (eugr/spark-vllm-docker#260).
IDLE_SHARE, IDLE_W = 0.35, 30.0
# what nvcc, ninja and Triton start, by their names in /proc/PID/stat
COMPILERS = frozenset(("nvcc", "cicc", "cudafe++", "ptxas", "nvlink", "ninja", "cc1plus", "cc1"))


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
    engine: Engine,
    limits: Limits,
    restart: bool,
    memory: Json,
    ask: Callable[[float], Reply],
    most_s: float,
    keep: Keep,
) -> Found:
    """One look at this host's engine, and what has to be done after it.

    `ask` asks for a completion and waits so many seconds, `most_s` at most. Raises NodeError when
    systemd does not answer.
    """
    url = engine.endpoint.url if engine.endpoint else ""
    unit = _unit(engine)
    if memory["judged"]["invocation"] != unit[1]:
        memory = {**memory, **_whole()}
    began = time.monotonic()
    before = metrics.scrape(url)
    wait_s = silence.answer_s(memory["judged"], limits, time.monotonic(), most_s, LEAST_ANSWER_S)
    reply = ask(wait_s)
    after = metrics.scrape(url)
    seen = Look(unit[1], began, time.monotonic(), before, after, reply)
    # while it starts, its unit waits for an answer itself, within the start budget
    if unit[0] != "active" or _unit(engine) != unit:
        return Found(reply, None, {**memory, **_whole(), "judged": silence.fresh()})
    verdict = silence.judge(memory["judged"], seen, limits)
    if verdict.works is False:
        seen = seen._replace(gpu_idle=gpus_idle(engine), compiles=compiles())
        verdict = silence.judge(memory["judged"], seen, limits)
    if verdict.reason is None:
        return Found(reply, verdict.works, _after_none(memory, verdict))
    memory = {**memory, "judged": verdict.state, "reason": verdict.reason}
    return Found(reply, False, _act(engine, memory, restart, keep))


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


def _act(engine: Engine, memory: Json, restart: bool, keep: Keep) -> Json:
    """Names it, keeps the evidence once, restarts where that is wanted and possible."""
    if memory["evidence"] is None:
        memory = {**memory, "evidence": _evidence(engine, memory["reason"])}
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
        hindrance = peer_watchdog.hindrance(engine, list(engine.peers))
        hinders = hindrance is not None
        does = hindrance or f"restarting it, {len(recent) + 1} of {MOST} in {WINDOW_S / 3600:.0f} h"
    text = f"{engine.unit} is silent: {memory['reason']}; {memory['evidence']}; {does}"
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
    why_not = peer_watchdog.undisturbed(engine.unit, "it is silent", _restart)
    if why_not is None:
        return begun
    log.say(why_not, log.WARNING)
    return {**memory, "told": ""}


def _restart(unit: str) -> None:
    """Restart the unit; the start limit counts crashes, and these have a budget of their own."""
    systemctl("reset-failed", unit)
    systemctl("restart", "--no-block", unit)


def _evidence(engine: Engine, reason: str) -> str:
    """Gives where the bundle lies, or why there is none."""
    about = {"rig": engine.rig, "node": engine.node, "unit": engine.unit, "reason": reason}
    try:
        return f"evidence in {evidence.keep(engine, about, evidence.parts(engine))}"
    except OSError as error:
        return f"no evidence: {io_reason(error)}"
    except NodeError as error:
        return f"no evidence: {error}"


def _unit(engine: Engine) -> tuple[str, str]:
    """Gives the unit's state and which start of it this is."""
    text = systemctl("show", "-p", "ActiveState,InvocationID", "--", engine.unit)
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    return found.get("ActiveState", ""), found.get("InvocationID", "")


def compiles() -> bool:
    """Gives True while a compiler runs on this host."""
    return any(stat.comm in COMPILERS for stat in map(proc.stat, proc.pids()) if stat is not None)


def gpus_idle(engine: Engine) -> bool | None:
    """Gives whether every GPU of the engine idles; None where one of them does not say."""
    if not engine.needs_nvidia:
        return None
    try:
        done = run(
            ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"], GPU_S
        )
    except (FileNotFoundError, TimedOut):
        return None
    return idle(done.out, engine.memory.devices) if done.rc == 0 else None


def idle(text: str, devices: tuple[str, ...] | None) -> bool | None:
    """Gives whether the GPUs of nvidia-smi's rows idle: no kernel, and little power drawn."""
    found = False
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            return None
        if devices is not None and not {cells[0], cells[1]} & set(devices):
            continue
        try:
            busy, draw, limit = (reported(cell) for cell in cells[2:])
            if busy is None or draw is None:
                return None
            low = float(draw) < (IDLE_W if limit is None else IDLE_SHARE * float(limit))
            if float(busy) > 0 or not low:
                return False
        except (CannotRead, ValueError):
            return None
        found = True
    return found or None
