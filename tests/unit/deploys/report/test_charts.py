"""Charts: what is drawn of a measurement, with units, and signs beside the colours."""

from __future__ import annotations

import json
import sys

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.plans.report import Chart, Mark, bench_charts, draw, history_charts, over_time, spec
from schema.measure import BenchRun, Round
from tests.unit.builders.pages import HOSTILE, bench, runs, soak

BENCHES = [run for run in runs() if isinstance(run, BenchRun)]
CHARTS = {c.title: c for c in (*bench_charts(BENCHES[:4]), *over_time(soak(1)),
                               *history_charts(runs()))}  # fmt: skip
UNITS = ("tokens a second", "ms", "% of", "GiB", "W")


@pytest.mark.parametrize("title", CHARTS)
def test_each_chart_has_a_unit_and_series_that_differ_without_colours(title: str) -> None:
    chart = CHARTS[title]
    assert chart.x and any(unit in chart.y for unit in UNITS)
    signs = [(key.sign if chart.marks else key.dash) for key in chart.keys]
    assert len(set(signs)) == len(signs) > 1
    made = json.dumps(spec(chart))
    assert "#" not in made.replace("schema/", ""), "colours are the page's own"
    assert "http" not in made.replace("https://vega.github.io/schema", ""), "no data from elsewhere"


def test_the_charts_of_a_bench_and_of_a_soak() -> None:
    assert [*CHARTS] == [
        "Throughput", "Wait for the first token", "Time between tokens", "Accepted draft tokens",
        "Available memory over time", "Power over time", "One stream, run by run",
    ]  # fmt: skip


def test_profiles_are_series_with_intervals() -> None:
    chart = CHARTS["Throughput"]
    assert [key.name for key in chart.keys] == ["latency", "throughput", "balanced"]
    first = chart.rows[0]
    assert (first.x, round(first.y, 1)) == ("1", 71.0)
    assert first.low is not None and first.high is not None and first.low < first.y < first.high


def test_acceptance_is_that_of_each_position_of_all_drafts() -> None:
    rows = CHARTS["Accepted draft tokens"].rows
    assert [(r.x, round(r.y, 1)) for r in rows[:3]] == [("1", 80.8), ("2", 47.1), ("3", 7.1)]


def test_rounds_that_failed_and_thinking_are_not_drawn() -> None:
    run = bench(1, "balanced", 50.0)
    bad = tuple(r.model_copy(update={"failed": 1}) for r in run.points[0].rounds)
    failed = run.points[0].model_copy(update={"rounds": bad})
    thinking = run.points[1].model_copy(update={"thinking": True})
    none = run.points[2].model_copy(update={"rounds": (Round(seconds=1, tokens=0),)})
    made = run.model_copy(update={"points": (failed, thinking, none), "acceptance": None})
    assert [*bench_charts([made])] == []


def test_a_line_of_many_samples_is_told_by_four() -> None:
    chart = CHARTS["Available memory over time"]
    assert len(chart.rows) <= 2 * 240 + 2
    assert [row[3] for row in chart.figures] == ["first", "lowest", "highest", "last"] * 2


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    chart = Chart("t", "x", "y", (Mark(HOSTILE, "1", 2.0),))
    with pytest.raises(DeployError) as caught:
        draw([chart])
    assert str(caught.value) == (
        "the charts need vl-convert-python, which is not installed; install it with: "
        "pip install --require-hashes -r requirements/report.txt"
    )
    assert draw([]) == {}
