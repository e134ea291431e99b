"""The charts of kept measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from deploys.procedures.measure.history import Run
from deploys.procedures.report.charts import Chart, Mark
from schema.measure.run import BenchRun, Point
from schema.measure.statistics import mean_interval, quantile

GIB = 1 << 30
STREAMS = "streams at the same time"
# Of a series over time; more are one line all the same.
MOST_MARKS = 240


def newest_by_profile(runs: Sequence[Run], recipe: str) -> list[BenchRun]:
    """Of the runs, newest first, the newest bench with figures of each profile of this recipe."""
    found: dict[str | None, BenchRun] = {}
    for run in runs:
        if isinstance(run, BenchRun) and run.subject.recipe == recipe and run.points:
            found.setdefault(run.subject.profile, run)
    return list(found.values())


def series(run: BenchRun) -> str:
    """What a bench is called beside others of its recipe."""
    return run.subject.profile or "no profile"


def _points(run: BenchRun) -> list[Point]:
    return [point for point in run.points if not point.thinking and point.rates]


def _good(point: Point) -> Iterator[tuple[float, ...]]:
    """The waits for the first token of each round in which no answer failed."""
    return (row.ttft_s for row in point.rounds if not row.failed and row.ttft_s)


def bench_charts(benches: Sequence[BenchRun]) -> Iterator[Chart]:
    """Throughput, waits and acceptance of benches, which are the series."""
    rates, firsts, gaps, accepted = [], [], [], []
    for run in benches:
        name = series(run)
        for point in _points(run):
            streams = str(point.streams)
            rate = mean_interval(point.rates)
            rates.append(Mark(name, streams, rate.value, rate.low, rate.high))
            waits = [wait * 1000 for row in _good(point) for wait in row]
            if waits:
                firsts.append(_spread(name, streams, waits))
            rows = [row for row in point.rounds if not row.failed]
            middle = [row.itl_p50_s * 1000 for row in rows if row.itl_p50_s is not None]
            late = [row.itl_p95_s * 1000 for row in rows if row.itl_p95_s is not None]
            if middle and late:
                half = median(middle)
                gaps.append(Mark(name, streams, half, half, median(late)))
        if run.acceptance is not None:
            accepted += [
                Mark(name, str(place), share * 100)
                for place, share in enumerate(run.acceptance.unconditional, 1)
            ]
    late_note = "The line goes from the median up to the 95th percentile."
    made = (
        Chart("Throughput", STREAMS, "tokens a second, all streams", tuple(rates),
              note="The line is the interval of the mean, 95 %."),
        Chart("Wait for the first token", STREAMS, "ms, median", tuple(firsts), note=late_note),
        Chart("Time between tokens", STREAMS, "ms, median", tuple(gaps), note=late_note),
        Chart("Accepted draft tokens", "position in the draft", "% of all drafts",
              tuple(accepted)),
    )  # fmt: skip
    yield from (chart for chart in made if chart.rows)


def _spread(name: str, x: str, values: Sequence[float]) -> Mark:
    half = quantile(values, 0.5)
    return Mark(name, x, half, half, quantile(values, 0.95))


def over_time(run: Run) -> Iterator[Chart]:
    """Memory, and the GPUs' power, of each node while it was measured."""
    memory, power = [], []
    for machine in run.machines:
        thin = machine.samples[:: 1 + len(machine.samples) // MOST_MARKS]
        for sample in thin:
            minutes = sample.at_s / 60
            if sample.available is not None:
                memory.append(Mark(machine.node, minutes, sample.available / GIB))
            for gpu in sample.gpus:
                if gpu.power_w is not None:
                    name = f"{machine.node} {gpu.bus_id}"
                    power.append(Mark(name, minutes, gpu.power_w))
    made = (
        Chart("Available memory over time", "minutes", "GiB", tuple(memory), "quantitative", False),
        Chart("Power over time", "minutes", "W", tuple(power), "quantitative", False),
    )
    yield from (chart for chart in made if chart.rows)


def history_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """The rate of one stream in each bench, by its time."""
    rows = []
    for run in reversed(runs):
        if not isinstance(run, BenchRun):
            continue
        for point in _points(run):
            if point.streams == 1:
                rate = mean_interval(point.rates)
                name = f"{run.subject.recipe}, {series(run)}"
                rows.append(Mark(name, run.began, rate.value, rate.low, rate.high))
    if rows:
        yield Chart("One stream, run by run", "day (UTC)", "tokens a second", tuple(rows),
                    "temporal", note="The line is the interval of the mean, 95 %.")  # fmt: skip
