"""When an engine is silent: what /metrics of several versions say, and the verdict of looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.core.errors import Json
from node.core.webhook import NO_ANSWER
from node.rules.completion import Reply
from node.watch import metrics, silence
from node.watch.metrics import Scrape
from node.watch.silence import Limits, Look
from tests.unit.node.support.servers import serving

CASES = yaml.safe_load((Path(__file__).parent / "metrics.yaml").read_text())
LIMITS = Limits(120, 1300)
OK = Reply(True, "tiny answered in 0.3 s", model="tiny")
LATE = Reply(False, NO_ANSWER)
KEY = Reply(False, "HTTP 401: the engine lives and wants a key", True, wants_key=True)


@pytest.mark.parametrize("case", CASES, ids=[case["version"] for case in CASES])
def test_what_a_version_says_is_read(case: dict[str, Any]) -> None:
    read = metrics.parse(case["text"])
    if "running" not in case:
        assert read is None
        return
    assert read is not None
    found = {"running": read.running, "waiting": read.waiting, "marks": len(read.marks),
             "by_step": read.by_step}  # fmt: skip
    assert found == {key: case[key] for key in found}
    assert "_created" not in "".join(read.marks) and "_bucket" not in "".join(read.marks)


def test_metrics_that_do_not_come_have_a_reason() -> None:
    with serving(lambda body: (200, {})) as server:
        assert metrics.scrape(server.url) == "HTTP 404"
        server.page = lambda: "<html>"
        assert metrics.scrape(server.url) == "/metrics is not vLLM's"
    assert metrics.scrape(server.url) == "Connection refused"


def at(tokens: float, running: float = 2, waiting: float = 0, kv: float | None = 0.5) -> Scrape:
    """A scrape of a version that tells the cache's use, or (kv None) of one that does not."""
    marks = {"vllm:generation_tokens_total": tokens}
    if kv is not None:
        marks["vllm:kv_cache_usage_perc"] = kv
    return Scrape(running, waiting, marks, kv is not None)


def looks(*rows: Any, every: float = 60.0, **same: Any) -> tuple[Json, str | None, list[Any]]:
    """Looks one after the other, each (before, after, reply): state, reason, what `works` said."""
    state, reason, works = silence.fresh("a"), None, []
    for n, (before, after, reply) in enumerate(rows):
        began = 1000 + n * every
        look = Look("a", began, began + 60, before, after, reply, **same)
        state, did, reason = silence.judge(state, look, LIMITS)
        works.append(did)
    return state, reason, works


STILL = (at(7), at(7), LATE)
MUTE = (NO_ANSWER, NO_ANSWER, LATE)
SILENT = {
    "requests run and no token is made": [STILL] * 2,
    "an idle engine that was asked and does not answer": [(at(7, 0), at(7, 0), LATE)] * 2,
    # jundot's report of 2026-07 (vllm-metal#479): nothing runs, six wait for capacity, for an hour
    "six wait and none is let in": [(at(7, 0, 6), at(7, 0, 6), LATE)] * 2,
    "clients that hold a key of their own, and no token": [(at(7), at(7), KEY)] * 2,
    "the API process is stopped": [MUTE] * 2,
    "it is stopped in the middle of a look": [(at(7), NO_ANSWER, LATE), MUTE],
    "it worked before": [(at(5), at(7), OK), STILL, STILL],
    "without the cache's use, after a whole prompt": [(at(7, kv=None), at(7, kv=None), LATE)] * 22,
}


@pytest.mark.parametrize("rows", SILENT.values(), ids=SILENT)
def test_silence_is_named_once_its_time_is_over(rows: list[Any]) -> None:
    state, reason, works = looks(*rows)
    assert reason is not None and works[-1] is False, state
    assert looks(*rows[:-1])[1] is None
    assert "limit" in reason


ALIVE = {
    "a full queue whose tokens flow, and a short request that waits": [
        (at(n, 8, 40), at(n + 9, 8, 40), LATE) for n in range(0, 600, 10)
    ],
    "tokens flow between the looks alone": [(at(n), at(n), LATE) for n in range(9)],
    # a prompt of 100,000 tokens counts once it is done; its blocks are taken part by part
    "one long prefill": [(at(7, kv=n / 50), at(7, kv=n / 50), LATE) for n in range(30)],
    "one long prefill, of a version that tells nothing of it": [
        (at(7, kv=None), at(7, kv=None), LATE)
    ]
    * 20,
    "nothing runs and it answers": [(at(7, 0), at(7, 0), OK)] * 30,
    "it answers with frozen counters": [STILL, (at(7), at(7), OK), STILL],
    "nothing runs and it wants a key": [(at(7, 0), at(7, 0), KEY)] * 30,
    "counters that began anew": [STILL, (at(0), at(0), LATE)],
    "metrics that nobody may read": [("HTTP 404", "HTTP 404", LATE)] * 30,
    "no listener": [("Connection refused", "Connection refused", Reply(False, "refused"))] * 30,
    "metrics late, an answer in time": [(NO_ANSWER, NO_ANSWER, OK)] * 30,
    "an error in place of an answer": [(at(7, 0), at(7, 0), Reply(False, "HTTP 500"))] * 30,
}


@pytest.mark.parametrize("rows", ALIVE.values(), ids=ALIVE)
def test_what_works_or_is_not_known_is_never_silent(rows: list[Any]) -> None:
    for n in range(1, len(rows) + 1):
        assert looks(*rows[:n])[1] is None, n


def test_what_is_not_known_is_not_said_to_work() -> None:
    assert looks(("HTTP 404", "HTTP 404", LATE))[2] == [None]
    assert looks((at(7, 0), at(7, 0), KEY))[2] == [None]
    assert looks((at(7), at(8), LATE))[2] == [True]


def test_one_look_is_not_enough_and_a_restart_begins_anew() -> None:
    look = Look("a", 1000, 1500, *STILL)
    state, _, reason = silence.judge(silence.fresh("a"), look, LIMITS)
    assert reason is None
    again = look._replace(began=1500, ended=1560)
    assert silence.judge(state, again, LIMITS).reason
    assert silence.judge(state, again._replace(invocation="b"), LIMITS).reason is None
    # nobody looked for an hour: nothing is known of that hour
    late = look._replace(began=5200, ended=5300)
    assert silence.judge(state, late, LIMITS).reason is None


def test_a_compiler_at_work_explains_more_and_an_idle_gpu_less() -> None:
    assert looks(*[STILL] * 10, compiles=True)[1] is None
    assert looks(*[STILL] * 16, compiles=True)[1]
    old = (at(7, kv=None), at(7, kv=None), LATE)
    assert looks(*[old] * 3)[1] is None
    assert "the GPU is idle" in str(looks(*[old] * 3, gpu_idle=True)[1])
    assert looks(*[old] * 3, gpu_idle=True, compiles=True)[1] is None


def test_the_next_look_ends_when_the_limit_does() -> None:
    state, _, _ = looks(STILL)
    assert silence.answer_s(state, LIMITS, 1060, 60, 15) == 60
    assert silence.answer_s(state, LIMITS, 1090, 60, 15) == 30
    assert silence.answer_s(state, LIMITS, 1119, 60, 15) == 15
    assert silence.answer_s(silence.fresh(), LIMITS, 1119, 60, 15) == 60
