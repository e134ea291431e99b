"""What is said of a soak, a line each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploys.procedures.measure import words
from gates.measure.drift import Drift, overall
from schema.measure.run import SoakRun

GIB = 1 << 30
_NAMES = {
    "available": "memory used", "vram": "GPU memory", "page_cache": "page cache", "shmem": "Shmem",
}  # fmt: skip


def minute(run: SoakRun) -> str:
    """How it goes."""
    rate = run.tokens / run.seconds if run.seconds else 0.0
    left = [
        f"{machine.node} {machine.samples[-1].available / GIB:.1f} GiB available"
        for machine in run.machines
        if machine.samples and machine.samples[-1].available is not None
    ]
    return (
        f"{run.seconds:.0f} s: {run.completed} answers, {run.failed} failed, {rate:.1f} tok/s; "
        + ", ".join(left)
    )


def end(run: SoakRun, found: Sequence[Drift]) -> Iterator[str]:
    """Doubts first, then what was served, each drift, and the verdict."""
    yield from words.doubts(run.doubts)
    rate = run.tokens / run.seconds if run.seconds else 0.0
    slowest = f", the slowest {run.slowest_s:.0f} s" if run.slowest_s is not None else ""
    yield (
        f"{run.seconds:.0f} s at {run.streams} streams: {run.completed} answers{slowest}, "
        f"{run.failed} failed, {run.tokens} tokens, {rate:.1f} tok/s"
    )
    if run.acceptance is not None:
        yield words.acceptance(run.acceptance)
    for drift in found:
        yield _drift(drift)
    yield f"memory: {overall(found)}"


def _drift(drift: Drift) -> str:
    name = f"{drift.node}: {_NAMES[drift.what]}"
    if drift.per_hour is None:
        fitted = "too few independent samples for a slope"
    else:
        slope = drift.per_hour
        fitted = f"{_gib(slope.value)} GiB an hour ({_gib(slope.low)} to {_gib(slope.high)})"
    ends = f"{drift.first / GIB:.2f} -> {drift.last / GIB:.2f} GiB"
    if drift.what == "available":
        ends = f"{ends} available"
    if drift.verdict is None or drift.limit is None:
        return f"{name}: {fitted}; {ends}"
    return f"{name}: {fitted}; {ends}; {drift.verdict} (of {_gib(drift.limit)} GiB an hour)"


def _gib(size: float) -> str:
    return f"{size / GIB:+.4f}"
