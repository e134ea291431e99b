"""Whether an engine is silent: requests wait for it, and no step of it ends. Pure.

Several signs have to agree: a request that runs or that got no answer in its time, marks of
/metrics that stand still over several looks, and a time that no prefill explains. A full queue
is none of it: its tokens flow.
"""

from __future__ import annotations

from typing import NamedTuple

from node.core.errors import Json
from node.core.webhook import NO_ANSWER
from node.rules.completion import Reply
from node.watch.metrics import Scrape

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


def fresh(invocation: str = "") -> Json:
    """Gives the state of an engine's start that nothing is known of."""
    return {"invocation": invocation, "since": None, "looked": None, "looks": 0, "marks": None,
            "limit_s": None}  # fmt: skip


def judge(state: Json, look: Look, limits: Limits) -> Verdict:
    """Gives the verdict of one look at an engine whose unit is up."""
    too_old = state["looked"] is None or look.began - state["looked"] > GAP_S
    if state["invocation"] != look.invocation or too_old:
        state = fresh(look.invocation)
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
