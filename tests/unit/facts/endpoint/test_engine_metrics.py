"""The difference of two scrapes, against the numbers of the third seed and of vLLM's own log."""

from __future__ import annotations

import pytest

from facts.endpoint.completion import Endpoint
from facts.endpoint.engine_metrics import (
    Counters,
    NoMetrics,
    acceptance,
    decoded,
    made,
    read,
    scrape,
)
from schema.measure.run import Acceptance
from tests.plans.support.engine_double import EngineDouble

# Names and labels as vLLM 0.32 writes them (vllm/v1/spec_decode/metrics.py, v1/metrics/loggers.py).
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {tokens}
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{{engine="0",model_name="tiny"}} 1.7638e+09
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="tiny"}} {drafts}
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="tiny"}} {draft_tokens}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="tiny"}} {accepted}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="0"}} {p0}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="1"}} {p1}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="2"}} {p2}
"""
BEFORE = {"running": 0, "tokens": 500, "drafts": 100, "draft_tokens": 300, "accepted": 200,
          "p0": 90, "p1": 70, "p2": 40}  # fmt: skip


def text(**more: float) -> str:
    """A scrape that is `more` above the first one."""
    return TEXT.format(**{key: value + more.get(key, 0) for key, value in BEFORE.items()})


def test_c8_mtp_3_is_seen_position_by_position() -> None:
    """C8: 80.8, then 58.3 and 16.2 of 100 where the one before was accepted; 1.44 of 3 a draft."""
    more = {"tokens": 24_400, "drafts": 10_000, "draft_tokens": 30_000, "p0": 8080, "p1": 4711,
            "p2": 763, "accepted": 8080 + 4711 + 763}  # fmt: skip
    found = acceptance(read(text()), read(text(**more)))
    assert found == Acceptance(
        drafts=10_000, draft_tokens=30_000, accepted=13_554, per_position=(8080, 4711, 763)
    )
    assert found.conditional == pytest.approx((0.808, 0.583, 0.162), abs=5e-4)
    assert found.unconditional == pytest.approx((0.808, 0.4711, 0.0763))
    assert found.length == pytest.approx(2.3554) and found.rate == pytest.approx(0.4518)
    assert made(read(text()), read(text(**more))) == 24_400


def test_what_is_not_there_is_not_told() -> None:
    plain = read("vllm:generation_tokens_total 5\n")
    assert acceptance(plain, plain) is None and plain.tokens == 5 and plain.hits is None
    # the engine was started anew between the scrapes
    assert acceptance(read(text(drafts=9)), read(text())) is None
    assert made(read(text(tokens=9)), read(text())) is None
    idle = acceptance(read(text()), read(text()))
    assert idle is not None and idle.rate is None and idle.length is None
    assert idle.conditional == (0.0, 0.0, 0.0) and idle.unconditional == ()


def test_requests_that_run_and_wait_are_busy() -> None:
    both = 'vllm:num_requests_running 2\nvllm:num_requests_waiting{engine="0"} 3\n'
    assert read(both).busy == 5
    # two engines behind one port are summed
    assert read(both + 'vllm:num_requests_waiting{engine="1"} 1\n').busy == 6


@pytest.mark.parametrize(
    ("metrics", "said"),
    [(None, "/metrics: HTTP 404"), ("go_threads 7\n", "is that a vLLM?"), ("vllm:x {", "no text")],
)
def test_what_is_no_metrics_is_one_line(metrics: str | None, said: str) -> None:
    with EngineDouble(metrics=metrics) as double, pytest.raises(NoMetrics, match=said) as raised:
        scrape(Endpoint(double.url, "tiny"))
    assert "\n" not in str(raised.value)
    with pytest.raises(NoMetrics, match="ConnectError"):
        scrape(Endpoint("http://127.0.0.1:9", "tiny"))
    assert Counters().busy == 0


# two replicas; the histogram as vllm/v1/metrics/loggers.py names it
DECODED = """\
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:request_decode_time_seconds_bucket{{engine="0",le="+Inf"}} {answers}
vllm:request_decode_time_seconds_sum{{engine="0"}} {seconds}
vllm:request_decode_time_seconds_count{{engine="0"}} {answers}
vllm:request_decode_time_seconds_sum{{engine="1"}} 1.5
vllm:request_decode_time_seconds_count{{engine="1"}} 1
"""


@pytest.mark.parametrize(("answers", "seconds", "rate"), [
    (4, 5.2, 50.0),  # 260 tokens of 4 answers, whose first ones no clock has
    (5, 5.2, None),  # one of them is of somebody else
    (4, 0.0, None),  # started anew
])  # fmt: skip
def test_the_engines_own_clock(answers: int, seconds: float, rate: float | None) -> None:
    before = read(DECODED.format(tokens=1000, answers=7, seconds=2.0))
    after = read(DECODED.format(tokens=1264, answers=7 + answers, seconds=2.0 + seconds))
    assert decoded(before, after, 4) == (rate and pytest.approx(rate))
    assert decoded(Counters(tokens=1), after, 4) is None
