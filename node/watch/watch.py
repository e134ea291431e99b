"""watch: asks for one real completion and tells somebody when there is none (a timer's service).

The state is written before and after each POST: a kill in between repeats one notice at most,
and a webhook that is down gets its notices later, in order.
"""

from __future__ import annotations

import os
import time

from node.core import log
from node.core.errors import Json, NodeError
from node.engine import config as engine_config
from node.engine.api_key import key_of
from node.engine.completion import ask
from node.engine.config import Endpoint
from node.files import state_dir, state_file
from node.rules.completion import Reply
from node.watch import config, notices, pressure
from node.watch.config import Watch

# a full batch makes a short request wait
ANSWER_S = 60.0
MAX_PENDING = 20
# what was so before a watch that was taken away and comes back says nothing about now
STALE_S = 86400.0


def new_state(now: float) -> Json:
    """Gives the state before the first look."""
    return {"format": 1, "status": "up", "since": now, "misses": 0, "missing_since": None,
            "detail": "", "told_unix_s": None, "looked_unix_s": now,
            "pending": []}  # fmt: skip


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

    A change of the status is told at once; a status that stays bad again after `repeat_s`.
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
    if changed or (stays_bad and now - told >= watch.repeat_s):
        after["pending"].append(notice(after, reply, watch))
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
    found = state_file.load(file_path(), fresh)
    stale = now - found["looked_unix_s"] > STALE_S
    return {**fresh, "pending": found["pending"]} if stale else found


def save_state(after: Json) -> None:
    """Write the state; it is on the disk on return."""
    state_dir.ensure()
    state_file.save(file_path(), after)


def _own_key(endpoint: Endpoint) -> str | None:
    """Gives the key of this host's engine, where that is what is asked: no gateway gets it."""
    try:
        engine = engine_config.load()
    except NodeError:
        return None
    ours = engine.endpoint is not None and engine.endpoint.url == endpoint.url
    return key_of(engine) if ours else None


def inspect_endpoint(watch: Watch) -> Json:
    """One look: asks, keeps the state, tells the journal and the webhook; gives the state."""
    before = load_state(time.time())
    reply = ask(watch.endpoint, ANSWER_S, _own_key(watch.endpoint))
    after = judge(before, reply, watch, time.time())
    save_state(after)
    if after["pending"][-1:] != before["pending"][-1:]:
        log.say(after["pending"][-1]["text"], log.WARNING)
    elif after["misses"]:
        count = f"miss {after['misses']}"
        said = f"still down, {count}" if after["status"] == "down" else f"{count} of {watch.misses}"
        log.say(f"{said}: {reply.detail}", log.NOTICE)
    try:
        url = config.webhook_url(watch.webhook, watch.webhook_file)
    except NodeError as error:
        log.say(f"{error}; {error.remedy}", log.WARNING)
        raise

    after["pending"] += pressure.look(watch)

    def told() -> None:
        after["told_unix_s"] = time.time()
        save_state(after)

    notices.deliver(after["pending"], url, told)
    return after


def run() -> None:
    """The verb: one look at what the configuration names."""
    inspect_endpoint(config.load())
