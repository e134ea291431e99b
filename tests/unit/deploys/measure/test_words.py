"""What is said of measurements: the seeds' decisions, made by the spread of the rounds."""

from __future__ import annotations

import pytest

from deploys.plans import measure
from deploys.plans.measure import PROMPT_TOKENS, TASKS, longest, most_streams, prompt, rounds
from schema.measure import BenchRun, Other, Point, Prefill, Round
from tests.unit.builders.pages import SUBJECT, measured_bench, point

# No two prompts of a run begin alike, and an answer leaves room for its prompt.


def test_no_two_begin_alike() -> None:
    asked = [text for one in rounds(4, 6, "83a4-4-") for text in one]
    assert len(asked) == 24 and len({text.split()[0] for text in asked}) == 24
    assert [len(one) for one in rounds(4, 6, "x")] == [4] * 6


def test_an_answer_leaves_room_for_its_prompt() -> None:
    assert [prompt(n, "x")[0] for n in range(3)] == [256, 600, 800]
    assert prompt(2, "x", 512)[0] == 512 - PROMPT_TOKENS
    assert prompt(0, "x", 512)[0] == 256 and prompt(2, "x", 100)[0] == 1
    assert len(TASKS) == 8


def around(rate: float) -> tuple[float, ...]:
    """Five rounds of a rate with 1 % of spread."""
    return tuple(rate * share for share in (0.99, 1.0, 1.01, 0.995, 1.005))


def told(a: BenchRun, b: BenchRun) -> str:
    return "\n".join(measure.words_compared(a, b))


def test_b8_what_was_called_recovered_is_worse() -> None:
    """B8: 71.4 tok/s against 79.4."""
    before, after = measured_bench("a", around(79.4)), measured_bench("b", around(71.4))
    assert "1 stream: worse: 79.4 -> 71.4 tok/s (-10.1%" in told(before, after)
    assert "1 stream: better" in told(after, before)


def test_c3_eager_is_no_mend() -> None:
    """C3: 44 tok/s with CUDA graphs, 25 with --enforce-eager; both stand side by side."""
    eager = (*SUBJECT.argv, "--enforce-eager")
    text = told(measured_bench("a", around(44)), measured_bench("b", around(25), argv=eager))
    assert "1 stream: worse: 44.0 -> 25.0 tok/s (-43.2%" in text
    assert "the command line differs: enforce_eager not set -> true" in text


def test_d19_the_first_answer_of_an_engine_without_its_caches_does_not_count() -> None:
    """D19: the first long request compiles for a minute."""
    slow = Round(seconds=70, tokens=256)
    row = point(around(44)).model_copy(update={"warm_up": slow})
    assert row.rates == pytest.approx(around(44))
    assert "44.0 tok/s" in measure.words_of_point(
        row
    ) and "the round before 3.7" in measure.words_of_point(row)
    first = measured_bench("a", around(44)).model_copy(
        update={"cold": True, "doubts": ("cold: the engine had made 0 tokens since its start",)}
    )
    text = told(first, measured_bench("b", around(44)))
    assert "tiny (balanced), cold" in text and "DOUBT: A: cold: the engine had made 0" in text
    assert "within noise" in text


def test_what_is_not_comparable_is_not_compared() -> None:
    a, b = measured_bench("a", around(44)), measured_bench("b", around(44), streams=8)
    assert "nothing to compare" in told(a, b)
    few = measured_bench("c", (44.0, 44.1, 44.2))
    assert "too few rounds to say: 44.0 -> 44.1 tok/s, 5 and 3 rounds" in told(a, few)
    none = a.model_copy(update={"points": (Point(streams=1, tokens=256),), "complete": False})
    assert "too few rounds to say: 44.0 -> none tok/s" in told(a, none)
    assert "DOUBT: B was cut off" in told(a, none)


def test_rounds_with_a_failure_are_in_no_rate() -> None:
    good = point(around(44))
    bad = Round(seconds=1, tokens=10, failed=1)
    row = good.model_copy(update={"rounds": (*good.rounds, bad)})
    assert row.rates == good.rates and "1 answers failed" in measure.words_of_point(row)
    lost = Point(streams=2, tokens=64, rounds=(bad,), errors=("HTTP 500",))
    assert measure.words_of_point(lost) == "2 streams: not measured: HTTP 500"


def test_the_seeds_prefill() -> None:
    """2K tokens: 319 tok/s cold, 6,894 cached, 21.6 times (the third seed)."""
    row = Prefill(tokens=2048, cold_s=(2048 / 319,), cached_s=(2048 / 6894,), hits=2032)
    assert measure.words_of_prefill(row) == (
        "prefill of 2048 tokens: 319 tok/s, 6894 when it is cached (21.6 times)"
    )
    missed = row.model_copy(update={"hits": 0})
    assert "the prefix cache found nothing" in measure.words_of_prefill(missed)
    assert "not measured" in measure.words_of_prefill(Prefill(tokens=9))


@pytest.mark.parametrize(("off", "first_off", "said"), [
    (-0.021, 0.005, "44.0 tok/s, -2.1% of the engine's own count of these answers; "
                    "vllm bench serve 0.32.0: +0.5%; they agree"),
    (0.05, 0.03, "they agree"), (-0.05, 0.0, "they do NOT agree"), (0.0, 0.05, "they do NOT agree"),
    (None, 0.0, "44.0 tok/s; no count of the engine's own to compare the clients by"),
])  # fmt: skip
def test_two_clients_agree_within_three_percent(
    off: float | None, first_off: float | None, said: str
) -> None:
    other = Other(client="x", rates=(43.0, 45.0), off=off, first_off=first_off)
    run = measured_bench("a", around(44)).model_copy(update={"other": other})
    assert measure.words_of_other(run).endswith(said)


def test_published_figures_are_a_reference() -> None:
    row = {"profile": "balanced", "concurrency": 1, "tokens_per_s": 37.2, "tokens": 400}
    run = measured_bench("a", around(36.5)).model_copy(update={"reference": (row,)})
    assert [*measure.against_reference(run)] == [
        "1 stream: 36.5 tok/s; published 37.2, with 400 tokens an answer (-2%), a reference and "
        "no measurement of this rig"
    ]


def test_the_command_line_says_how_much_the_engine_takes() -> None:
    argv = ("vllm", "serve", "m", "--max-num-seqs", "4", "--max-model-len", "auto")
    assert (most_streams(argv), longest(argv)) == (4, None)
    assert (most_streams(()), longest(("--max-model-len", "512"))) == (256, 512)
