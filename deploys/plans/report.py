"""report: one look at the rig, and what is kept of its measurements, written as two pages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Literal
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.plans import doctor, measure, soak
from deploys.plans.cli import ROOT
from deploys.plans.doctor import SIGNS
from deploys.plans.measure import Run
from deploys.plans.rig import Procedure, dry_run, remedy
from facts.node import TreeBackups, ask_each, real
from gates.artifact import own_venv
from gates.core import Observed, gib
from gates.doctor import Finding, Strip
from gates.measure import drifts
from gates.processes import own_container
from node.rules.secret import masked_line
from schema.artifact import BackupRow, Backups
from schema.measure import BenchRun, Point, SoakRun, compare_statistics, mean_interval, quantile
from schema.plan import Node, Plan
from schema.snapshot import ChangeSummary, GpuHealth, NodeSnapshot, Unknown, Unreadable

# What the page tells of a rig's nodes: versions, memory and GPUs, changes, backups. Pure.

MOST_CHANGES, MOST_BACKUPS, MOST_REASON = 20, 5, 300
UNKNOWN, NONE = "unknown", "none"
Tell = Callable[[Node, NodeSnapshot], str]


@dataclass(frozen=True)
class Row:
    """A value of each node, side by side."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the nodes have different ones."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Change:
    """A change as the rig's journals have it; `status` names the nodes where they differ."""

    at: str
    id: str
    deploy: str
    status: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Backup:
    """A backup of a node."""

    node: str
    id: str
    holds: str
    age: str
    size: str
    state: str


def moment(unix_s: float) -> str:
    """`2026-11-23 20:45 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def age(seconds: float) -> str:
    """`3 h`, `2 days`: whole units, two of them at least."""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(0.0, seconds):.0f} s"


def _rows(plan: Plan, observed: Observed, tells: Mapping[str, Tell]) -> tuple[Row, ...]:
    made = []
    for label, tell in tells.items():
        values = []
        for node in plan.rig.nodes:
            seen = observed.get(node.name)
            values.append(tell(node, seen) if isinstance(seen, NodeSnapshot) else UNKNOWN)
        if set(values) != {NONE}:
            made.append(Row(label, tuple(values)))
    return tuple(made)


def state_versions(plan: Plan, observed: Observed) -> tuple[Row, ...]:
    """What runs on each node, in versions."""

    def engine(node: Node, seen: NodeSnapshot) -> str:
        venv = own_venv(plan, node, seen)
        if venv is not None:
            return f"vllm {', '.join(venv.versions.get('vllm', ())) or UNKNOWN} in {venv.target}"
        if isinstance(seen.docker, Unreadable):
            return UNKNOWN
        box = own_container(seen)
        return f"{box.image} {box.image_id.removeprefix('sha256:')[:12]}" if box else NONE

    def docker(_: Node, seen: NodeSnapshot) -> str:
        found = seen.docker
        return UNKNOWN if isinstance(found, Unreadable) else f"{found.version}, {found.store}"

    def driver(_: Node, seen: NodeSnapshot) -> str:
        found = seen.gpus
        if isinstance(found, Unreadable):
            return UNKNOWN
        return f"{found.driver_version}{' (stand-in)' if found.stand_in else ''}"

    def cards(_: Node, seen: NodeSnapshot) -> str:
        found = seen.gpus
        if isinstance(found, Unreadable):
            return UNKNOWN
        return ", ".join(gpu.name for gpu in found.gpus) or NONE

    return _rows(plan, observed, {
        "system": lambda _, seen: f"{seen.identity.os_id} {seen.identity.os_version}, "
                                  f"{seen.identity.arch}",
        "kernel": lambda _, seen: seen.identity.kernel,
        "NVIDIA driver": driver,
        "GPUs": cards,
        "docker": docker,
        "engine": engine,
        "rigbook's program": lambda _, seen: seen.node_version or NONE,
    })  # fmt: skip


def now(plan: Plan, observed: Observed) -> tuple[Row, ...]:
    """Memory, power, clock and room at the moment of the look."""

    def memory(_: Node, seen: NodeSnapshot) -> str:
        found = seen.memory
        if isinstance(found, Unreadable):
            return UNKNOWN
        return f"{gib(found.available)} of {gib(found.total)}"

    def room(_: Node, seen: NodeSnapshot) -> str:
        if isinstance(seen.disks, Unreadable):
            return UNKNOWN
        by_mount = {disk.mount: disk for disk in seen.disks}
        told = (f"{d.mount} {gib(d.free)} of {gib(d.total)}" for d in by_mount.values())
        return "; ".join(told) or NONE

    def gpus(_: Node, seen: NodeSnapshot) -> str:
        if isinstance(seen.health, Unreadable) or isinstance(seen.health.gpus, Unknown):
            return UNKNOWN
        return "; ".join(map(_gpu, seen.health.gpus)) or NONE

    return _rows(plan, observed, {
        "available memory": memory,
        "free on disk": room,
        "GPUs": gpus,
        "up for": lambda _, seen: age(seen.identity.uptime_s),
    })  # fmt: skip


def _gpu(gpu: GpuHealth) -> str:
    parts = [
        f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"
        if gpu.power_w is not None and gpu.power_limit_w is not None
        else None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        None if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz",
        None if gpu.temp_c is None else f"{gpu.temp_c:.0f} °C",
        None if gpu.busy_percent is None else f"{gpu.busy_percent} % busy",
        f"held by {', '.join(gpu.reasons)}" if gpu.reasons else None,
    ]  # fmt: skip
    return f"{gpu.bus_id}: {', '.join(part for part in parts if part) or UNKNOWN}"


def changes(plan: Plan, observed: Observed) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """The newest changes of all nodes, and the nodes whose journal is not known."""
    found: dict[str, dict[str, ChangeSummary]] = {}
    silent = []
    for node in plan.rig.nodes:
        seen = observed.get(node.name)
        if not isinstance(seen, NodeSnapshot) or isinstance(seen.journal, Unreadable):
            silent.append(node.name)
            continue
        for change in seen.journal.changes:
            found.setdefault(change.id, {})[node.name] = change
    rows = sorted(found.values(), key=_opened, reverse=True)[:MOST_CHANGES]
    return tuple(map(_change, rows)), tuple(silent)


def _opened(by_node: Mapping[str, ChangeSummary]) -> float:
    return min(change.opened_unix_s for change in by_node.values())


def _change(by_node: Mapping[str, ChangeSummary]) -> Change:
    of = list(by_node.values())
    words = {name: change.status for name, change in by_node.items()}
    same = len(set(words.values())) == 1
    reason = next((change.reason for change in of if change.reason), None) or ""
    return Change(
        at=moment(_opened(by_node)),
        id=of[0].id,
        deploy=of[0].deploy,
        status=of[0].status if same else ", ".join(f"{s} on {n}" for n, s in words.items()),
        operator=of[0].owner,
        reason=masked_line(" ".join(reason.split()))[:MOST_REASON],
    )


def backups(kept: Mapping[str, Backups | Unreadable]) -> tuple[list[Backup], list[str]]:
    """The newest backups of each node, and a line for each node that has none, or cannot say."""
    rows, lines = [], []
    for name, found in kept.items():
        if isinstance(found, Unreadable):
            lines.append(f"{name}: unknown: {found.unreadable}")
        elif not found.backups:
            lines.append(f"{name}: no backup")
        else:
            rows += [_backup(name, row) for row in found.backups[:MOST_BACKUPS]]
    return rows, lines


def _backup(node: str, row: BackupRow) -> Backup:
    verified = "verified" if row.verified_unix_s is not None else "never verified"
    return Backup(
        node=node,
        id=row.id,
        holds=", ".join(_held(row)) or UNKNOWN,
        age=UNKNOWN if row.age_s is None else age(row.age_s),
        size=UNKNOWN if row.bytes is None else gib(row.bytes),
        state=verified if row.usable else f"not usable: {row.problem}",
    )


def _held(row: BackupRow) -> Iterator[str]:
    if row.tree is not None:
        yield row.tree
    if row.versions is not None:
        yield row.versions.text


# Charts as Vega-Lite specifications, and their vector pictures (docs/adr/0030). The colours are
# the page's own CSS variables, so that a picture is in the page's colour scheme.

Json = dict[str, Any]
INSTALL = "pip install --require-hashes -r requirements/report.txt"
# As many colours as the page's stylesheet names, and signs by which series differ besides: a mark,
# as Vega and as a text names it, and a dash.
COLOURS = 4
CHART_SIGNS = (
    ("circle", "●", (1, 0)), ("square", "■", (7, 4)), ("triangle-up", "▲", (2, 3)),
    ("diamond", "◆", (10, 3, 2, 3)), ("cross", "✚", (4, 4)),
)  # fmt: skip
WIDTH, HEIGHT, FONT = 380, 230, 14
SVG = "http://www.w3.org/2000/svg"
INK, SOFT = "var(--ink)", "var(--line)"
# How a chart reads its x: names in their order, numbers, moments.
Axis = Literal["ordinal", "quantitative", "temporal"]


@dataclass(frozen=True)
class Mark:
    """A value of a series, with the ends of its interval where it has one."""

    series: str
    x: str | float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Key:
    """How a series is drawn: the number of its colour, its mark and its dash."""

    name: str
    colour: int
    shape: str
    sign: str
    dash: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, with its units in the titles of its axes.

    `marks` False: a line alone, for values every few seconds. `note` says what the intervals are.
    """

    title: str
    x: str
    y: str
    rows: tuple[Mark, ...]
    axis: Axis = "ordinal"
    marks: bool = True
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The series in the order in which they come."""
        return tuple(dict.fromkeys(row.series for row in self.rows))

    @property
    def keys(self) -> list[Key]:
        """What the legend shows of each series."""
        return [
            Key(name, at % COLOURS + 1, *CHART_SIGNS[at % len(CHART_SIGNS)])
            for at, name in enumerate(self.names)
        ]

    @property
    def figures(self) -> list[tuple[str, ...]]:
        """The values in words: series, x, value, interval. Of a line without marks some of each."""
        if not self.marks:
            return list(_some(self.rows))
        return [(m.series, str(m.x), f"{m.y:.4g}", _between(m)) for m in self.rows]


def _between(mark: Mark) -> str:
    if mark.low is None or mark.high is None:
        return ""
    return f"{mark.low:.4g} to {mark.high:.4g}"


def _some(rows: Iterable[Mark]) -> Iterable[tuple[str, ...]]:
    """First, lowest, highest and last of each series."""
    by_series: dict[str, list[Mark]] = {}
    for row in rows:
        by_series.setdefault(row.series, []).append(row)
    for name, of in by_series.items():
        picked = (of[0], min(of, key=_y), max(of, key=_y), of[-1])
        for word, row in zip(("first", "lowest", "highest", "last"), picked, strict=True):
            yield name, f"{float(row.x):.1f}", f"{row.y:.4g}", word


def _y(mark: Mark) -> float:
    return mark.y


def spec(chart: Chart) -> Json:
    """The chart as Vega-Lite. Series differ by colour, by mark and by dash."""
    x: Json = {"field": "x", "type": chart.axis, "title": chart.x, "sort": None}
    if chart.axis == "ordinal":
        x["axis"] = {"labelAngle": 0}
    if chart.axis == "temporal":
        x |= {"scale": {"type": "utc"}, "axis": {"tickCount": 4, "format": "%d %b", "grid": False}}
    y: Json = {"field": "y", "type": "quantitative", "title": chart.y, "scale": {"zero": True}}
    keys = chart.keys
    # the page has the legend, in text of its own size
    scale: Json = {"domain": list(chart.names)}
    series: Json = {"field": "series", "type": "nominal", "legend": None, "sort": None}
    colour = {**series, "scale": {**scale, "range": [f"var(--s{key.colour})" for key in keys]}}
    dash = {**series, "scale": {**scale, "range": [list(key.dash) for key in keys]}}
    shape = {**series, "scale": {**scale, "range": [key.shape for key in keys]}}
    layers: list[Json] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y, "strokeDash": dash}}
    ]
    if any(row.low is not None for row in chart.rows):
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append({"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": ends})
    if chart.marks:
        point = {"type": "point", "filled": True, "size": 80, "opacity": 1}
        layers.append({"mark": point, "encoding": {"y": y, "shape": shape}})
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": [_row(row) for row in chart.rows]},
        "encoding": {"x": x, "color": colour},
        "layer": layers,
        "config": CONFIG,
    }


def _row(mark: Mark) -> Json:
    return {key: value for key, value in vars(mark).items() if value is not None}


_TEXT = {"labelColor": INK, "titleColor": INK, "labelFontSize": FONT, "titleFontSize": FONT}
CONFIG: Json = {
    "background": None,
    "font": "sans-serif",
    "axis": {**_TEXT, "gridColor": SOFT, "domainColor": INK, "tickColor": INK,
             "titleFontWeight": "normal"},
    "view": {"stroke": None},
}  # fmt: skip


def library() -> Any:
    """The library that draws; DeployError where it is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise DeployError(
            f"the charts need vl-convert-python, which is not installed; install it with: {INSTALL}"
        ) from None
    return vl_convert


def draw(charts: Iterable[Chart]) -> Mapping[str, Markup]:
    """Each chart's picture by its title; DeployError where the library is not installed.

    Without a chart the library is not asked for.
    """
    return {c.title: picture(spec(c), f"{c.title}: {c.y} by {c.x}") for c in charts}


def picture(drawn: Json, name: str) -> Markup:
    """A specification's picture as an element of the page, scaled by its width, with one name for
    all of it. DeployError where the library is not installed.
    """
    root = ElementTree.fromstring(library().vegalite_to_svg(drawn))
    for part in root.iter():
        for key in [key for key in part.attrib if key == "role" or key.startswith("aria-")]:
            del part.attrib[key]
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": name}
    ElementTree.register_namespace("", SVG)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


# The charts of kept measurements. Pure.

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


# The two pages of a rig, each a file of its own: no network, and no script. Pure but for the
# library that draws.

STATES = {"ok": "nothing found", "warn": "warns", "unknown": "unknown", "block": "blocks"}


@dataclass(frozen=True)
class Look:
    """What the rig's page is made from: one look at the nodes, and what is kept of measurements."""

    at: str
    plan: Plan
    observed: Observed
    strips: Mapping[str, Strip]
    findings: Sequence[Finding]
    remedy: Callable[[Finding], str]
    backups: Mapping[str, Backups | Unreadable]
    runs: Sequence[Run]


@dataclass(frozen=True)
class Told:
    """A measurement in words. `against`: what it is against the one before of the same profile."""

    id: str
    at: str
    kind: str
    what: str
    doubts: tuple[str, ...]
    lines: tuple[str, ...]
    against: str = ""


@lru_cache(maxsize=1)
def _templates() -> Environment:
    # Every value is escaped: names come from inventories, reasons and logs from hosts.
    made = Environment(
        loader=FileSystemLoader(ROOT / "templates" / "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    made.globals |= {"signs": SIGNS, "states": STATES}
    return made


def _render(name: str, charts: Sequence[Chart], **values: object) -> str:
    pictures = draw(charts)
    return _templates().get_template(name).render(charts=charts, pictures=pictures, **values)


def rig_page(look: Look) -> str:
    """The state of the rig: its nodes' layers, the first cause, changes, versions, measurements.

    DeployError where there is something to draw, and nothing that draws.
    """
    plan, observed = look.plan, look.observed
    benches = newest_by_profile(look.runs, plan.recipe.name)
    soak = next((run for run in look.runs if isinstance(run, SoakRun)), None)
    charts = [*bench_charts(benches)]
    longest = soak or next(iter(benches), None)
    if longest is not None:
        charts += over_time(longest)
    rows, silent = changes(plan, observed)
    kept, without = backups(look.backups)
    return _render(
        "rig.html.j2",
        charts,
        look=look,
        nodes=[node.name for node in plan.rig.nodes],
        first=look.findings[0] if look.findings else None,
        now=now(plan, observed),
        versions=state_versions(plan, observed),
        changes=rows,
        silent=silent,
        backups=kept,
        without=without,
        measured=[told(run) for run in (*benches, *([soak] if soak else ()))],
        over=longest.id if longest is not None else "",
    )


def runs_page(rig: str, at: str, runs: Sequence[Run], unreadable: Sequence[str]) -> str:
    """The history of a rig's measurements, newest first; DeployError as of `rig_page`."""
    return _render(
        "runs.html.j2",
        [*history_charts(runs)],
        rig=rig,
        at=at,
        measured=[told(run, runs[number + 1 :]) for number, run in enumerate(runs)],
        unreadable=unreadable,
    )


def told(run: Run, before: Sequence[Run] = ()) -> Told:
    """A measurement in words; `before` are those before it, newest first."""
    doubts = (*(("it was cut off",) if not run.complete else ()), *run.doubts)
    if isinstance(run, BenchRun):
        what = f"{run.subject.recipe}, {series(run)}"
        return Told(run.id, run.began, "bench", what, doubts, tuple(_bench(run)),
                    _against(run, before))  # fmt: skip
    judged = [drift for machine in run.machines for drift in drifts(machine)]
    bare = run.model_copy(update={"doubts": ()})
    return Told(run.id, run.began, "soak", run.subject.recipe, doubts,
                tuple(soak.words_of_end(bare, judged)))  # fmt: skip


def _bench(run: BenchRun) -> Iterator[str]:
    yield from map(measure.words_of_point, run.points)
    if run.acceptance is not None:
        yield measure.acceptance(run.acceptance)
    yield from map(measure.words_of_prefill, run.prefill)
    yield from measure.against_reference(run)


def _against(run: BenchRun, before: Sequence[Run]) -> str:
    """One stream, or the fewest that both have, against the newest of the same recipe and profile.

    Whole runs alone: a comparison with one that was cut off is not shown.
    """
    same = (run.subject.recipe, run.subject.profile)
    for other in before:
        if not isinstance(other, BenchRun) or not (other.complete and run.complete):
            continue
        if (other.subject.recipe, other.subject.profile) != same:
            continue
        theirs = {(p.streams, p.tokens, p.thinking): p for p in other.points}
        for point in run.points:
            old = theirs.get((point.streams, point.tokens, point.thinking))
            if old is not None:
                return (
                    f"{point.name}: {compare_statistics(old.rates, point.rates).word}, "
                    f"against {other.id}"
                )
    return ""


def _backups(plan: Plan) -> Mapping[str, Backups | Unreadable]:
    """Each node's backups; a Kubernetes rig has none of rigbook's."""
    if plan.runtime == "deployment":
        return {}
    return ask_each(real(state), plan, TreeBackups())


def _write(path: Path, text: str) -> None:
    """Replaces the file as a whole; its owner alone may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode())
    beside.replace(path)


def reported(rig: Procedure) -> Iterator[str]:
    """Looks, writes both pages, and tells where they are; DeployError when charts cannot be drawn.

    What blocks serving is told in the page, and is no error of this run.
    """
    plan = rig.plan
    folder = measure.history_folder(plan.rig.name)
    if dry_run():
        yield f"would write {folder / 'rig.html'} and {folder / 'runs.html'}"
        return
    found = doctor.diagnose(rig)
    runs, unreadable = measure.kept_runs(plan.rig.name)
    at = moment(time.time())
    look = Look(
        at=at,
        plan=plan,
        observed=found.seen.observed,
        strips=doctor.strips_of(rig, found),
        findings=found.findings,
        remedy=remedy,
        backups=_backups(plan),
        runs=runs,
    )
    pages = {
        "rig.html": rig_page(look),
        "runs.html": runs_page(plan.rig.name, at, runs, unreadable),
    }
    for name, text in pages.items():
        _write(folder / name, text)
        yield f"wrote {folder / name}"
    yield from (f"left out {line}" for line in unreadable)
