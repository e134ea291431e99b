"""watch: asks for one real completion and tells somebody when there is none (a timer's service).

The state is written before and after each POST: a kill in between repeats one notice at most,
and a webhook that is down gets its notices later, in order.
"""

from __future__ import annotations

import os
import time

from node.core import log
from node.core.errors import Json, NodeError, io_reason
from node.core.webhook import NO_ANSWER
from node.engine import config as engine_config
from node.engine.completion import ask
from node.files import state_dir, state_file
from node.rules.completion import Reply
from node.watch import away, config, heal, machine, notices, textfile
from node.watch.config import Watch
from node.watch.heal import Target
from node.watch.own_unit import OwnUnit

# a full batch makes a short request wait
ANSWER_S = 60.0
MAX_PENDING = 20
# a state that stays bad is told again
AGAIN_S = 3600.0
# an endpoint that comes and goes is told so often; the next notice then says how often it changed
MOST_AN_HOUR = 10
# what was so before a watch that was taken away and comes back says nothing about now
STALE_S = 86400.0


def new_state(now: float) -> Json:
    """Gives the state before the first look."""
    return {"format": 1, "status": "up", "since": now, "misses": 0, "missing_since": None,
            "detail": "", "told_unix_s": None, "looked_unix_s": now, "pending": [],
            "noticed": [], "unsaid": 0, "host_noticed": [],
            "silence": heal.fresh()}  # fmt: skip


def status_of(before: Json, reply: Reply, watch: Watch) -> str:
    """Gives up, down or fallback; until `misses` in a row the status stays what it was."""
    if reply.ok and reply.model and reply.model != watch.endpoint.model:
        return "fallback"
    if _answered(reply):
        return "up"
    down = before["misses"] + 1 >= watch.misses
    return "down" if down else str(before["status"])


def _answered(reply: Reply) -> bool:
    """Gives True for a completion, and for an engine that lives and wants a key."""
    return reply.ok or reply.wants_key


def judge(before: Json, reply: Reply, watch: Watch, now: float) -> Json:
    """Gives the state after one look, with the notices that are due in `pending`. Pure.

    A change of the status is told at once, MOST_AN_HOUR times; a status that stays bad again after
    AGAIN_S.
    """
    status = status_of(before, reply, watch)
    missing = None if _answered(reply) else (before["missing_since"] or now)
    changed = status != before["status"]
    began = missing if status == "down" else now
    after: Json = {
        **before,
        "status": status,
        "since": began if changed else before["since"],
        "misses": 0 if missing is None else before["misses"] + 1,
        "missing_since": missing,
        "detail": reply.detail,
        "looked_unix_s": now,
        "pending": list(before["pending"]),
    }
    told = before["told_unix_s"]
    stays_bad = status != "up" and not after["pending"] and told is not None
    due = changed or before["unsaid"] or (stays_bad and now - told >= AGAIN_S)
    recent = [then for then in before["noticed"] if 0 <= now - then < 3600]
    if due and len(recent) < MOST_AN_HOUR:
        after["pending"].append(notice(after, reply, watch))
        after.update(noticed=[*recent, now], unsaid=0)
    elif changed:
        after.update(noticed=recent, unsaid=before["unsaid"] + 1)
    # the newest matter most; the first outage's beginning stands in `since`
    after["pending"] = after["pending"][-MAX_PENDING:]
    return after


def notice(after: Json, reply: Reply, watch: Watch) -> Json:
    """Gives the JSON that the webhook gets; `text` is what chat services show."""
    model = watch.endpoint.model
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(after["since"]))
    said = {
        "down": f"{model} on {watch.rig} is down since {since}: {reply.detail}",
        "fallback": f"{model} on {watch.rig} is answered by {reply.model} since {since}",
        "up": f"{model} on {watch.rig} answers again since {since}",
    }[after["status"]]
    if after["unsaid"]:
        said += f" ({after['unsaid']} changes before it were not told)"
    return {
        "rig": watch.rig,
        "node": watch.node,
        "model": model,
        "status": after["status"],
        "since": since,
        "misses": after["misses"],
        "detail": reply.detail,
        "text": said,
    }


def file_path() -> str:
    """Gives where the state lies between two looks."""
    return os.path.join(state_dir.root(), "watch", "state.json")


def load_state(now: float) -> Json:
    """Gives the state of the last look; a new one when there is none or it is damaged."""
    fresh = new_state(now)
    found = state_file.load(file_path(), fresh, ("noticed", "unsaid", "host_noticed", "silence"))
    stale = now - found["looked_unix_s"] > STALE_S
    return {**fresh, "pending": found["pending"]} if stale else found


def save_state(after: Json) -> None:
    """Write the state; it is on the disk on return."""
    state_dir.ensure()
    state_file.save(file_path(), after)


def _own_engine(watch: Watch) -> OwnUnit | None:
    """Gives this host's engine, where that is what is asked: no gateway gets its key."""
    try:
        engine = engine_config.load()
    except NodeError:
        return None
    ours = engine.endpoint is not None and engine.endpoint.url == watch.endpoint.url
    return OwnUnit(engine) if ours else None


def _look(watch: Watch, engine: Target | None, before: Json) -> tuple[Reply, Json]:
    """Asks, and looks whether the engine is silent; gives the reply and the state to go on from.

    An engine that is too busy to answer in time while its tokens flow is not missing.
    """
    if engine is None:
        return ask(watch.endpoint, ANSWER_S), before
    if watch.silence is None:
        return engine.ask(ANSWER_S), before

    def keep(memory: Json, said: tuple[str, str] | None) -> None:
        nonlocal before
        pending = [*before["pending"], *([_told(watch, *said)] if said else [])]
        before = {**before, "pending": pending[-MAX_PENDING:], "silence": memory}
        save_state(before)

    limits, restart = watch.silence
    try:
        found = heal.look(engine, limits, restart, before["silence"], ANSWER_S, keep)
    except NodeError as error:
        log.say(f"whether {engine.name} is silent is not known: {error}", log.WARNING)
        return engine.ask(ANSWER_S), before
    reply = found.reply
    if found.works and reply.detail == NO_ANSWER:
        reply = Reply(True, "busy: no answer in time, and tokens flow", model=watch.endpoint.model)
    return reply, {**before, "silence": found.memory}


def _told(watch: Watch, status: str, text: str) -> Json:
    """Gives the notice about a silent engine."""
    return {
        "rig": watch.rig,
        "node": watch.node,
        "model": watch.endpoint.model,
        "status": status,
        "text": f"{watch.endpoint.model} on {watch.rig}, {watch.node}: {text}",
    }


def _export(state: Json, watch: Watch) -> None:
    """Write the file for Prometheus; a folder that is not there is told, and stops nothing."""
    if watch.textfile is None:
        return
    try:
        textfile.write(watch.textfile, state, watch)
    except OSError as error:
        log.say(f"no metrics: {io_reason(error)}", log.WARNING)
    except NodeError as error:
        log.say(f"no metrics: {error}", log.WARNING)


def limited(rows: list[Json], noticed: list[float], now: float) -> tuple[list[Json], list[float]]:
    """Gives the notices about the host that are sent, MOST_AN_HOUR of them, and the times to keep.

    A disk that dies logs all the time; the journal has been told of each line. Pure.
    """
    recent = [then for then in noticed if 0 <= now - then < 3600]
    sent = rows[: max(0, MOST_AN_HOUR - len(recent))]
    return sent, [*recent, *[now] * len(sent)]


def inspect_endpoint(watch: Watch, engine: Target | None = None) -> Json:
    """One look: asks, keeps the state, tells the journal and the webhook; gives the state.

    `engine` None: this host's own, where that is what is asked, else whatever answers there.
    """
    reply, before = _look(watch, engine or _own_engine(watch), load_state(time.time()))
    now = time.time()
    told_of_host = [*away.look(watch, before["looked_unix_s"]), *machine.notices(watch)]
    sent, before["host_noticed"] = limited(told_of_host, before["host_noticed"], now)
    before["pending"] = [*before["pending"], *sent][-MAX_PENDING:]
    after = judge(before, reply, watch, now)
    save_state(after)
    if after["pending"][-1:] != before["pending"][-1:]:
        log.say(after["pending"][-1]["text"], log.WARNING)
    elif after["misses"]:
        count = f"miss {after['misses']}"
        said = f"still down, {count}" if after["status"] == "down" else f"{count} of {watch.misses}"
        log.say(f"{said}: {reply.detail}", log.NOTICE)
    _export(after, watch)
    try:
        url = config.webhook_url(watch.webhook, watch.webhook_file)
    except NodeError as error:
        log.say(f"{error}; {error.remedy}", log.WARNING)
        raise

    def told() -> None:
        after["told_unix_s"] = time.time()
        save_state(after)

    notices.deliver(after["pending"], url, told)
    return after


def run() -> None:
    """The verb: one look at what the configuration names."""
    inspect_endpoint(config.load())
