"""Whether an engine is silent: requests wait for it, and no step of it ends. Pure.

Several signs have to agree: a request that runs or that got no answer in its time, marks of
/metrics that stand still over several looks, and a time that no prefill explains. A full queue
is none of it: its tokens flow.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

from node.core import errors, files, validate
from node.core.errors import Json, NodeError, io_reason
from node.engine.answer import NO_ANSWER, Scrape, post
from node.engine.config import Endpoint, endpoint, http_url
from node.rules.engine import MOST, WINDOW_S, Reply

# between two looks nobody looked: what stood still then says less after such a pause
GAP_S = 600.0
# A kernel that is compiled in mid-request stops everything and leaves the GPU idle: FlashInfer's
# take up to 10 minutes without a line of log (vllm#54529). While a compiler runs it has this long.
COMPILE_S = 900.0
LOOKS = 2


class Limits(NamedTuple):
    """Seconds without a sign of work that are too long, by what the version's /metrics show.

    `step_s`: where a mark moves with each step; `prompt_s`: where a whole prompt may pass between.
    """

    step_s: float
    prompt_s: float


class Look(NamedTuple):
    """One look. Times are monotonic seconds; a scrape that failed is the reason.

    `gpu_idle`: every GPU of ours says so; None where one does not say. `compiles`: a compiler
    runs on this host.
    """

    invocation: str
    began: float
    ended: float
    before: Scrape | str
    after: Scrape | str
    reply: Reply
    gpu_idle: bool | None = None
    compiles: bool = False


class Verdict(NamedTuple):
    """The state to keep, whether the engine works, and why it counts as silent (None: it does not).

    `works` None: the look says neither.
    """

    state: Json
    works: bool | None
    reason: str | None


def fresh_silence(invocation: str = "") -> Json:
    """Gives the state of an engine's start that nothing is known of."""
    return {"invocation": invocation, "since": None, "looked": None, "looks": 0, "marks": None,
            "limit_s": None}  # fmt: skip


def judge(state: Json, look: Look, limits: Limits) -> Verdict:
    """Gives the verdict of one look at an engine whose unit is up."""
    too_old = state["looked"] is None or look.began - state["looked"] > GAP_S
    if state["invocation"] != look.invocation or too_old:
        state = fresh_silence(look.invocation)
    read = [one for one in (look.before, look.after) if isinstance(one, Scrape)]
    marks = [one.marks for one in read]
    if state["marks"] is not None:
        marks.insert(0, state["marks"])
    state = {**state, "looked": look.ended, "marks": marks[-1] if marks else None}
    works = _works(look, read, marks)
    if works is not False:
        return Verdict({**state, "since": None, "looks": 0, "limit_s": None}, works, None)
    since = look.began if state["since"] is None else state["since"]
    limit = _limit(look, read, limits)
    state.update(since=since, looks=state["looks"] + 1, limit_s=limit)
    lasted = look.ended - since
    if lasted < limit or state["looks"] < LOOKS:
        return Verdict(state, False, None)
    return Verdict(state, False, _reason(look, read, lasted, limit))


def _works(look: Look, read: list[Scrape], marks: list[dict[str, float]]) -> bool | None:
    """Gives True for a sign of work, False for a request that waits without one, None for neither.

    What cannot be read is no sign of anything, but for silence itself: an API process that takes
    the connection and gives neither its metrics nor a completion.
    """
    if look.reply.ok or any(one != marks[0] for one in marks):
        return True
    if any(isinstance(one, str) and one != NO_ANSWER for one in (look.before, look.after)):
        return None
    unanswered = look.reply.detail == NO_ANSWER
    if not read:
        return False if unanswered else None
    runs = len(read) == 2 and all(one.running > 0 for one in read)
    return False if unanswered or runs else None


def _limit(look: Look, read: list[Scrape], limits: Limits) -> float:
    """Gives the seconds that this silence may last."""
    if look.compiles:
        return max(COMPILE_S, limits.step_s)
    # no prefill leaves the GPU idle
    by_step = look.gpu_idle is True or not read or all(one.by_step for one in read)
    return limits.step_s if by_step else limits.prompt_s


def _reason(look: Look, read: list[Scrape], lasted: float, limit: float) -> str:
    """Gives what was seen, in words."""
    if not read:
        said = "/metrics and a completion were asked for, and neither came"
    else:
        last = read[-1]
        said = f"{last.running:.0f} requests run, {last.waiting:.0f} wait, and no token was made"
        if look.reply.detail == NO_ANSWER:
            said += "; a short completion did not come"
    idle = "; the GPU is idle" if look.gpu_idle else ""
    return f"{said}{idle}: for {lasted:.0f} s (limit {limit:.0f} s)"


def answer_s(state: Json, limits: Limits, now: float, most_s: float, least_s: float) -> float:
    """Gives how long the next look waits for an answer: it ends when the limit is reached."""
    if state["since"] is None:
        return most_s
    ends = float(state["since"]) + float(state["limit_s"] or limits.step_s)
    return min(most_s, max(least_s, ends - now))


# What is watched and who is told: /etc/rigbook/watch.json (0600, deploys/watch.py writes it).

PATH = "/etc/rigbook/watch.json"
FORMAT = 1
_KEYS = ("format", "rig", "node", "endpoint", "misses", "webhook", "webhook_file")
_MORE = ("silence", "textfile", "deployment")
_REMEDY = "run deploys/watch.py: it writes the file anew"


class Silence(NamedTuple):
    """How long this host's engine may be silent, and whether it is restarted then."""

    limits: Limits
    restart: bool


class Watch(NamedTuple):
    """What is watched, and how many misses until it counts as down.

    `silence` None: what is asked is not our engine. `deployment` says which one that is on a
    Kubernetes rig; node/kube/watched.py checks it. `textfile` is a file for Prometheus's
    node exporter. `webhook` is the URL, or `webhook_file` a root-only file that holds it; both
    None: the journal alone is told.
    """

    rig: str
    node: str
    endpoint: Endpoint
    misses: int
    webhook: str | None
    webhook_file: str | None
    silence: Silence | None = None
    textfile: str | None = None
    deployment: Any = None


def path() -> str:
    """Gives the file's path; RIGBOOK_WATCH names another one (tests)."""
    return os.environ.get("RIGBOOK_WATCH") or PATH


def load_watch() -> Watch:
    """Gives the configuration. Raises NodeError (`watch_file`): one line, never with the URL."""
    return files.read_settings(path(), parse_watch, "watch_file", _REMEDY)


def parse_watch(value: Any) -> Watch:
    """Gives the configuration of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", (*_KEYS, *_MORE), _KEYS)
    files.format_is(body, FORMAT)
    url, file = body["webhook"], body["webhook_file"]
    text = body.get("textfile")
    return Watch(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        endpoint(body["endpoint"], "endpoint"),
        int(validate.number(body["misses"], "misses", 1, 1000)),
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
        _silence(body.get("silence")),
        None if text is None else validate.path(text, "textfile"),
        body.get("deployment"),
    )


def _silence(value: Any) -> Silence | None:
    if value is None:
        return None
    names = (*Limits._fields, "restart")
    row = validate.keys(value, "silence", names, names)
    limits = (validate.number(row[key], f"silence.{key}", 10, 86400) for key in Limits._fields)
    return Silence(Limits(*limits), validate.boolean(row["restart"], "silence.restart"))


def webhook_url(url: str | None, where: str | None) -> str | None:
    """Gives the URL, or the one in a root-only file. Raises NodeError (`webhook_file`)."""
    if where is None:
        return url
    remedy = f"put the URL in it; chown root {shlex.quote(where)}; chmod 600 {shlex.quote(where)}"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(where, flags), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise NodeError(f"{where} is not a plain file", "webhook_file", remedy)
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
                raise NodeError(f"{where} is not root's alone", "webhook_file", remedy)
            text = file.read(8192).decode("utf-8", "replace").strip()
    except OSError as error:
        raise NodeError(io_reason(error), "webhook_file", remedy) from None
    try:
        return http_url(text, where)
    except NodeError as error:
        raise NodeError(str(error), "webhook_file", remedy) from None


# Notices to a webhook: told in order, and kept until they are taken.

# systemd ends the service after two minutes
DELIVER_S = 40.0


def deliver_notices(pending: list[Json], url: str | None, save: Callable[[], None]) -> None:
    """POSTs the pending notices in order and calls `save` after each; the rest stays.

    Without a URL they go: the journal has told them.
    """
    deadline = time.monotonic() + DELIVER_S
    while pending and time.monotonic() < deadline:
        failed = None if url is None else post(url, pending[0])
        if failed:
            errors.log(f"the webhook did not take a notice: {failed}; kept", errors.WARNING)
            return
        del pending[0]
        save()


# A silent engine is named once, its evidence kept, and, where that was asked for, restarted.
#
# The head restarts its own unit; the check of the pair on each worker sees the connection end and
# restarts the other half (node/engine/peer.py). At most MOST restarts in WINDOW_S: then
# it
# stands down, because what comes back so often is not mended by one more load.

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


def fresh_memory() -> Json:
    """Gives the memory before the first look."""
    return {"judged": fresh_silence(), "reason": None, "evidence": None, "told": "",
            "restarts": [], "stood_down_unix_s": None}  # fmt: skip


def look_and_heal(
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
        return Found(reply, None, {**memory, **_whole(), "judged": fresh_silence()})
    judged, seen = memory["judged"], [part._replace(invocation=start) for part in parts]
    for part in seen[:-1]:
        judged = judge(judged, part, limits).state
    verdict = judge(judged, seen[-1], limits)
    if verdict.works is False:
        idle, compiles = engine.hints()
        last = seen[-1]._replace(gpu_idle=idle, compiles=compiles)
        verdict = judge(judged, last, limits)
    if verdict.reason is None:
        return Found(reply, verdict.works, _after_none(memory, verdict))
    memory = {**memory, "judged": verdict.state, "reason": verdict.reason}
    return Found(reply, False, _act(engine, memory, restart, keep))


def _ask(engine: Target, limits: Limits, judged: Json, most_s: float) -> tuple[list[Look], Reply]:
    """Asks for an answer between two readings; gives the one or two parts of the look, and the
    reply.
    """
    began, before = time.monotonic(), engine.scrape()
    wait_s = answer_s(judged, limits, time.monotonic(), most_s, LEAST_ANSWER_S)
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
        errors.log("the engine works again: it is no longer left alone", errors.NOTICE)
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
        errors.log(text, errors.WARNING)
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
        errors.log(str(error), errors.WARNING)
        return begun
    if why_not is None:
        return begun
    errors.log(why_not, errors.WARNING)
    return {**memory, "told": ""}


def _evidence(engine: Target, reason: str) -> str:
    """Gives where the bundle lies, or why there is none."""
    try:
        return f"evidence in {engine.evidence(reason)}"
    except OSError as error:
        return f"no evidence: {io_reason(error)}"
    except NodeError as error:
        return f"no evidence: {error}"
