"""watch: asks for one real completion and tells somebody when there is none (a timer's service).

The state is written before and after each POST: a kill in between repeats one notice at most,
and a webhook that is down gets its notices later, in order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from node import health, host
from node.change import journal
from node.core import errors, files, proc
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.files import Folder, Owner
from node.engine import config, silence
from node.engine.answer import NO_ANSWER, ask_completion
from node.engine.evidence import OwnUnit
from node.engine.silence import Target, Watch
from node.rules.engine import KEEPER, WINDOW_S, Reply

# What became of this host with nobody there: a change that its keeper ended, an unasked reboot.

# rigbook's own reboots, also where the last lines of that boot were lost
_OURS = ("reboot", "kernel")


def look_at_away(watch: Watch, since: float) -> list[Json]:
    """Gives the notices of what came after the last look, at `since` in Unix seconds, and tells the
    journal. Raises nothing: what cannot be read is told there. Call it before counters.keep().
    """
    try:
        changes = journal.read_all()[0]
        found = [*_ended(changes, since), *_rebooted(changes)]
    except (NodeError, CannotRead, OSError) as error:
        errors.log(f"what happened meanwhile is not known: {error}", errors.WARNING)
        return []
    for _, text in found:
        errors.log(f"{watch.node} of {watch.rig}: {text}", errors.WARNING)
    return [{"rig": watch.rig, "node": watch.node, "model": watch.endpoint.model, "status": status,
             "text": f"{watch.node} of {watch.rig}: {text}"} for status, text in found]  # fmt: skip


def _ended(changes: list[Json], since: float) -> Iterator[tuple[str, str]]:
    """Gives the changes whose lease ran out, once they are closed here."""
    for change in changes:
        by = (change.get("taken") or {}).get("deploy")
        if by == KEEPER and (change["closed_unix_s"] or 0) > since:
            yield "lease", (f"{change['deploy']}, change {change['id']}, is {change['status']}: "
                            f"{change['reason']}")  # fmt: skip


def _rebooted(changes: list[Json]) -> Iterator[tuple[str, str]]:
    """Gives a reboot since the last look that nobody asked for. Raises CannotRead."""
    former = files.load_state(health.counters_path(), health.NO_COUNTERS)["boot"]
    if former in ("", proc.boot_id()):
        return
    if any(row["deploy"] in _OURS and row["boot_id"] == former for row in changes):
        return
    for boot in host.read_boots():
        if boot["boot_id"] == former.replace("-", "") and boot["asked_for"] is False:
            then = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(boot["last_unix_s"]))
            yield "rebooted", (f"it rebooted, which nobody asked for; the last line before is of "
                               f"{then}; deploys/doctor.py has its last words")  # fmt: skip


# What the watch tells of the machine itself: new lines of the kernel about hardware that fails.
#
# It keeps the network's counters too, so that a doctor can say by what they grew since.

# Xids that NVIDIA answers with a reset or a reboot (catalog/xids.yaml; a test compares the two)
XIDS = frozenset((46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158))
_KINDS = ("gpu-lost", "nvme", "mce", "edac", "lockup", "oops")


def tells_of_kernel(row: Json, fixed: list[str]) -> bool:
    """Gives True for a line that somebody has to know of. Pure."""
    if row["kind"] == "xid":
        return row["number"] in XIDS
    if row["kind"] in ("disk", "filesystem"):  # a stick that was pulled out has I/O errors, too
        return str(row["device"]).startswith(("dm-", "md", *fixed))
    if row["kind"] == "aer":
        return "(Fatal)" in row["text"]
    return row["kind"] in _KINDS


def notice_of_kernel(rows: list[Json], watch: Watch) -> Json:
    """Gives the JSON that the webhook gets about new lines; the last of them stands in it. Pure."""
    said = f"the kernel of {watch.node} reports: {rows[-1]['text']}"
    return {
        "rig": watch.rig,
        "node": watch.node,
        "model": watch.endpoint.model,
        "status": "hardware",
        "since": "",
        "misses": 0,
        "detail": f"{len(rows)} line(s); deploys/doctor.py says what is done about it",
        "text": said,
    }


def kernel_notices(watch: Watch) -> list[Json]:
    """Gives at most one notice: about the lines since the last look of this boot.

    The first look of a boot tells nothing: what was before it the doctor tells. Raises nothing: a
    log that cannot be read does not end the watch.
    """
    try:
        kept = files.load_state(health.counters_path(), health.NO_COUNTERS)
        health.keep_counters()
        if kept["boot"] != proc.boot_id():
            return []
        fixed = health.fixed_disks()
        lines = [row for row in health.this_boot() if row["unix_s"] >= kept["unix_s"]]
        rows = [row for row in lines if tells_of_kernel(row, fixed)]
    except OSError as error:
        errors.log(f"the machine was not looked at: {error}", errors.WARNING)
        return []
    if not rows:
        return []
    found = notice_of_kernel(rows, watch)
    errors.log(str(found["text"]), errors.WARNING)
    return [found]


# What the watch knows, as a file for the textfile collector of Prometheus's node exporter.
#
# docs/reference/metrics.md has the table of names and units.

# name: what it says; all are gauges, in base units
METRICS = {
    "rigbook_watch_up": "1 where the last looks brought an answer of the model that was asked for",
    "rigbook_watch_fallback": "1 where another model answers in its place",
    "rigbook_watch_misses": "looks in a row without an answer",
    "rigbook_watch_status_since_timestamp_seconds": "when the present status began",
    "rigbook_watch_last_look_timestamp_seconds": "when it was last looked",
    "rigbook_watch_pending_notices": "notices that the webhook has not taken yet",
    "rigbook_engine_silent": "1 where the engine of this node counts as silent",
    "rigbook_engine_silent_seconds": "how long requests have waited without a token, else 0",
    "rigbook_engine_silent_restarts": "restarts for silence in the last six hours",
    "rigbook_engine_stood_down": "1 where these restarts are used up and it is left alone",
}


def values(state: Json, watch: Watch, now: float) -> dict[str, float]:
    """Gives each metric's value; those of the engine only where this host's is watched."""
    status, silence = state["status"], state["silence"]
    found: dict[str, float] = {
        "rigbook_watch_up": status == "up",
        "rigbook_watch_fallback": status == "fallback",
        "rigbook_watch_misses": state["misses"],
        "rigbook_watch_status_since_timestamp_seconds": state["since"],
        "rigbook_watch_last_look_timestamp_seconds": state["looked_unix_s"],
        "rigbook_watch_pending_notices": len(state["pending"]),
    }
    if watch.silence is not None:
        judged = silence["judged"]
        since, looked = judged["since"], judged["looked"]
        recent = [then for then in silence["restarts"] if now - then < WINDOW_S]
        found["rigbook_engine_silent"] = silence["reason"] is not None
        found["rigbook_engine_silent_seconds"] = 0 if since is None else looked - since
        found["rigbook_engine_silent_restarts"] = len(recent)
        found["rigbook_engine_stood_down"] = silence["stood_down_unix_s"] is not None
    return found


def render(state: Json, watch: Watch, now: float) -> str:
    """Gives the file's text."""
    labels = ",".join(
        f'{name}="{_escaped(value)}"'
        for name, value in (
            ("rig", watch.rig), ("node", watch.node), ("model", watch.endpoint.model)
        )
    )  # fmt: skip
    lines: list[str] = []
    for name, value in values(state, watch, now).items():
        lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge"]
        lines.append(f"{name}{{{labels}}} {float(value):.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_textfile(path: str, state: Json, watch: Watch) -> None:
    """Put the file in place, readable by everybody. Raises OSError: its folder is not there.

    The collector reads *.prom: the name of the temp file ends otherwise.
    """
    with Folder(path) as folder:
        temp = f"{files.temp_name(os.path.basename(path))}.tmp"
        owner = Owner(0o644, os.geteuid(), os.getegid())
        files.replace(folder, render(state, watch, time.time()).encode(), owner, temp)


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
            "silence": silence.fresh_memory()}  # fmt: skip


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
        after["pending"].append(notice_of_answer(after, reply, watch))
        after.update(noticed=[*recent, now], unsaid=0)
    elif changed:
        after.update(noticed=recent, unsaid=before["unsaid"] + 1)
    # the newest matter most; the first outage's beginning stands in `since`
    after["pending"] = after["pending"][-MAX_PENDING:]
    return after


def notice_of_answer(after: Json, reply: Reply, watch: Watch) -> Json:
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
    return os.path.join(files.state_root(), "watch", "state.json")


def load_state(now: float) -> Json:
    """Gives the state of the last look; a new one when there is none or it is damaged."""
    fresh = new_state(now)
    found = files.load_state(file_path(), fresh, ("noticed", "unsaid", "host_noticed", "silence"))
    stale = now - found["looked_unix_s"] > STALE_S
    return {**fresh, "pending": found["pending"]} if stale else found


def save_state(after: Json) -> None:
    """Write the state; it is on the disk on return."""
    files.ensure_state()
    files.save_state(file_path(), after)


def _own_engine(watch: Watch) -> OwnUnit | None:
    """Gives this host's engine, where that is what is asked: no gateway gets its key."""
    try:
        engine = config.load_engine()
    except NodeError:
        return None
    ours = engine.endpoint is not None and engine.endpoint.url == watch.endpoint.url
    return OwnUnit(engine) if ours else None


def _look(watch: Watch, engine: Target | None, before: Json) -> tuple[Reply, Json]:
    """Asks, and looks whether the engine is silent; gives the reply and the state to go on from.

    An engine that is too busy to answer in time while its tokens flow is not missing.
    """
    if engine is None:
        return ask_completion(watch.endpoint, ANSWER_S), before
    if watch.silence is None:
        return engine.ask(ANSWER_S), before

    def keep(memory: Json, said: tuple[str, str] | None) -> None:
        nonlocal before
        pending = [*before["pending"], *([_told(watch, *said)] if said else [])]
        before = {**before, "pending": pending[-MAX_PENDING:], "silence": memory}
        save_state(before)

    limits, restart = watch.silence
    try:
        found = silence.look_and_heal(engine, limits, restart, before["silence"], ANSWER_S, keep)
    except NodeError as error:
        errors.log(f"whether {engine.name} is silent is not known: {error}", errors.WARNING)
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
        write_textfile(watch.textfile, state, watch)
    except OSError as error:
        errors.log(f"no metrics: {io_reason(error)}", errors.WARNING)
    except NodeError as error:
        errors.log(f"no metrics: {error}", errors.WARNING)


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
    told_of_host = [*look_at_away(watch, before["looked_unix_s"]), *kernel_notices(watch)]
    sent, before["host_noticed"] = limited(told_of_host, before["host_noticed"], now)
    before["pending"] = [*before["pending"], *sent][-MAX_PENDING:]
    after = judge(before, reply, watch, now)
    save_state(after)
    if after["pending"][-1:] != before["pending"][-1:]:
        errors.log(after["pending"][-1]["text"], errors.WARNING)
    elif after["misses"]:
        count = f"miss {after['misses']}"
        said = f"still down, {count}" if after["status"] == "down" else f"{count} of {watch.misses}"
        errors.log(f"{said}: {reply.detail}", errors.NOTICE)
    _export(after, watch)
    try:
        url = silence.webhook_url(watch.webhook, watch.webhook_file)
    except NodeError as error:
        errors.log(f"{error}; {error.remedy}", errors.WARNING)
        raise

    def told() -> None:
        after["told_unix_s"] = time.time()
        save_state(after)

    silence.deliver_notices(after["pending"], url, told)
    return after


def run() -> None:
    """The verb: one look at what the configuration names."""
    inspect_endpoint(silence.load_watch())
