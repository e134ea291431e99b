"""Whether memory leaks: the slope of what a node has used, against what it has left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from schema.measure.run import Machine, Sample
from schema.measure.statistics import Interval, slope

# A leak matters that would use up what is left within so many hours: a month without a restart.
HOURS = 24 * 30
# Caches and pools fill in the first part of a run.
SETTLES = 0.2
HOUR_S = 3600.0
Verdict = Literal["leak", "no leak", "too short to say"]


@dataclass(frozen=True)
class Drift:
    """A node's value over the run: bytes an hour with the interval, and what they mean.

    `verdict` None: a value that is told and not judged. `limit` is what may be lost an hour.
    """

    node: str
    what: str
    first: float
    last: float
    per_hour: Interval | None
    verdict: Verdict | None = None
    limit: float | None = None


def _series(samples: Sequence[Sample], what: str) -> tuple[list[float], list[float]]:
    """Hours and values of the samples that have one, without the first part of the run."""
    end = max((sample.at_s for sample in samples), default=0.0)
    rows = [(s.at_s / HOUR_S, getattr(s, what)) for s in samples if s.at_s >= SETTLES * end]
    known = [(at, float(value)) for at, value in rows if value is not None]
    return [at for at, _ in known], [value for _, value in known]


def judged(drift: Interval | None, limit: float) -> Verdict:
    """What a slope of used bytes an hour says, where `limit` of them an hour are none."""
    if drift is None:
        return "too short to say"
    if drift.low > limit:
        return "leak"
    return "no leak" if drift.high < limit else "too short to say"


def drifts(machine: Machine) -> tuple[Drift, ...]:
    """The node's drifts; that of its memory, and of its GPUs' own, is judged.

    Lost memory is what MemAvailable goes down by: page cache that can be dropped is none.
    """
    found = []
    for what in ("available", "vram", "page_cache", "shmem"):
        at, values = _series(machine.samples, what)
        if not values:
            continue
        used = [-value for value in values] if what == "available" else values
        per_hour = slope(at, used)
        limit = verdict = None
        if what == "available":
            limit = values[-1] / HOURS
            verdict = judged(per_hour, limit)
        elif what == "vram":
            # vLLM takes its share at its start, and holds it
            limit = values[0] / HOURS
            verdict = judged(per_hour, limit)
        found.append(Drift(machine.node, what, values[0], values[-1], per_hour, verdict, limit))
    return tuple(found)


def overall(found: Sequence[Drift]) -> Verdict:
    """What all nodes say together: one leak is one; nothing seen is too short."""
    verdicts = {drift.verdict for drift in found if drift.verdict is not None}
    if "leak" in verdicts:
        return "leak"
    return "no leak" if verdicts == {"no leak"} else "too short to say"
