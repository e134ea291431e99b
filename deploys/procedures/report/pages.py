"""The two pages of a rig, each a file of its own: no network, and no script. Pure but for the
library that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deploys.common.cli_guards import ROOT
from deploys.procedures.engine.terminal import SIGNS
from deploys.procedures.measure import soak_words, words
from deploys.procedures.measure.history import Run
from deploys.procedures.report import figures, state
from deploys.procedures.report.charts import Chart, draw
from gates.core.check import Observed
from gates.doctor.rank import Finding
from gates.doctor.strip import Strip
from gates.measure.drift import drifts
from schema.desired.plan import Plan
from schema.measure.run import BenchRun, SoakRun
from schema.measure.statistics import compare
from schema.observed.backup import Backups
from schema.observed.snapshot import Unreadable

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
    benches = figures.newest_by_profile(look.runs, plan.recipe.name)
    soak = next((run for run in look.runs if isinstance(run, SoakRun)), None)
    charts = [*figures.bench_charts(benches)]
    longest = soak or next(iter(benches), None)
    if longest is not None:
        charts += figures.over_time(longest)
    rows, silent = state.changes(plan, observed)
    kept, without = state.backups(look.backups)
    return _render(
        "rig.html.j2",
        charts,
        look=look,
        nodes=[node.name for node in plan.rig.nodes],
        first=look.findings[0] if look.findings else None,
        now=state.now(plan, observed),
        versions=state.versions(plan, observed),
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
        [*figures.history_charts(runs)],
        rig=rig,
        at=at,
        measured=[told(run, runs[number + 1 :]) for number, run in enumerate(runs)],
        unreadable=unreadable,
    )


def told(run: Run, before: Sequence[Run] = ()) -> Told:
    """A measurement in words; `before` are those before it, newest first."""
    doubts = (*(("it was cut off",) if not run.complete else ()), *run.doubts)
    if isinstance(run, BenchRun):
        what = f"{run.subject.recipe}, {figures.series(run)}"
        return Told(run.id, run.began, "bench", what, doubts, tuple(_bench(run)),
                    _against(run, before))  # fmt: skip
    judged = [drift for machine in run.machines for drift in drifts(machine)]
    bare = run.model_copy(update={"doubts": ()})
    return Told(run.id, run.began, "soak", run.subject.recipe, doubts,
                tuple(soak_words.end(bare, judged)))  # fmt: skip


def _bench(run: BenchRun) -> Iterator[str]:
    yield from map(words.point, run.points)
    if run.acceptance is not None:
        yield words.acceptance(run.acceptance)
    yield from map(words.prefill, run.prefill)
    yield from words.against_reference(run)


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
                return f"{point.name}: {compare(old.rates, point.rates).word}, against {other.id}"
    return ""
