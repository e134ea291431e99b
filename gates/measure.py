"""Doubts about a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gates.health import HELD
from schema.measure import Interval, Machine, Point, Sample, slope

# Whether a measurement's figures are the engine's own, and what a drift of memory means.

# Why the figures of a measurement may not be the engine's own. Pure.

# Tokens for others beside ours: a doctor's or a watch's short question is no load.
OTHERS_SHARE, OTHERS_LEAST = 0.02, 200
# An engine that has made fewer since its start still fills its caches.
WARM_TOKENS = 2000


def cold(tokens_before: float | None) -> bool | None:
    """Whether the engine had hardly served since its start; None: it does not say."""
    return None if tokens_before is None else tokens_before < WARM_TOKENS


def doubts(
    points: Sequence[Point],
    machines: Sequence[Machine],
    ours: int,
    made: float | None,
    busy_before: float,
    tokens_before: float | None,
) -> tuple[str, ...]:
    """What stands on top of a result, the worst first; empty: nothing speaks against it.

    `ours` are the tokens that this run asked for, `made` those that the engine made meanwhile,
    `busy_before` the requests that it had before the first of ours.
    """
    return (
        *_failures(points),
        *(line for machine in machines for line in held(machine)),
        *_others(ours, made, busy_before),
        *_cold(tokens_before),
        *(line for machine in machines for line in _unseen(machine)),
    )


def _failures(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        if point.failed:
            asked = point.streams * len(point.rounds)
            first = f": {point.errors[0]}" if point.errors else ""
            yield f"{point.failed} of {asked} answers failed at {point.name}{first}"


def held(machine: Machine) -> Iterator[str]:
    """A line for each GPU whose clock heat or power held down (D3); a cap of power is usual."""
    by_gpu: dict[str, list[Sample]] = {}
    for sample in machine.samples:
        for gpu in sample.gpus:
            if set(gpu.reasons) & set(HELD):
                by_gpu.setdefault(gpu.bus_id, []).append(sample)
    for bus_id, samples in by_gpu.items():
        rows = [gpu for sample in samples for gpu in sample.gpus if gpu.bus_id == bus_id]
        reasons = sorted({r for gpu in rows for r in gpu.reasons if r in HELD})
        clocks = [gpu.clock_mhz for gpu in rows if gpu.clock_mhz is not None]
        low = f", down to {min(clocks)} MHz" if clocks else ""
        yield (
            f"GPU {bus_id} of {machine.node} was throttled in {len(samples)} of "
            f"{len(machine.samples)} samples ({', '.join(reasons)}{low})"
        )


def _others(ours: int, made: float | None, busy_before: float) -> Iterator[str]:
    if busy_before:
        yield f"{busy_before:.0f} requests of others ran or waited before the first of ours"
    if made is None:
        yield "the engine does not count its tokens: whether others asked it is not known"
    elif made - ours > max(OTHERS_LEAST, OTHERS_SHARE * ours):
        yield f"the engine made {made - ours:.0f} tokens for others meanwhile, {ours} for this run"


def _cold(tokens_before: float | None) -> Iterator[str]:
    if cold(tokens_before):
        yield f"cold: the engine had made {tokens_before:.0f} tokens since its start"


def _unseen(machine: Machine) -> Iterator[str]:
    problems = dict.fromkeys(s.problem for s in machine.samples if s.problem)
    if problems:
        yield f"{machine.node} was not seen all the time: {next(iter(problems))}"


# Whether memory leaks: the slope of what a node has used, against what it has left. Pure.

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
