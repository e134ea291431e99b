"""leak, no leak, too short to say: by the slope and by what is left."""

from __future__ import annotations

import random

import pytest

from gates.measure.drift import drifts, judged, overall
from schema.measure.run import Machine, Sample
from schema.measure.statistics import Interval

GIB = 1 << 30


def node(per_hour: float, minutes: float, noise: float = 5e6, left: float = 8.0) -> Machine:
    """A node whose used memory grows by GiB an hour, seen every 5 s."""
    made = random.Random(5)
    rows = []
    for n in range(int(minutes * 12)):
        used = per_hour * GIB * n * 5 / 3600 + made.gauss(0, noise)
        rows.append(Sample(at_s=n * 5, available=max(0, int(left * GIB - used)), shmem=1 << 20))
    return Machine(node="spark1", samples=tuple(rows))


@pytest.mark.parametrize(
    ("per_hour", "minutes", "verdict"),
    [
        # +0.1 GB in five minutes would be a leak of 1.2 GiB an hour, where it goes on like that
        (1.2, 5, "leak"),
        (0.5, 60, "leak"),
        (0.0, 5, "too short to say"),
        (0.0, 60 * 8, "no leak"),
        (-0.5, 60, "no leak"),
        (0.5, 0.3, "too short to say"),
    ],
)
def test_the_verdict_follows_from_slope_and_time(
    per_hour: float, minutes: float, verdict: str
) -> None:
    found = drifts(node(per_hour, minutes))
    assert (found[0].what, found[0].verdict) == ("available", verdict), found[0]
    assert overall(found) == verdict
    assert [(d.what, d.verdict) for d in found[1:]] == [("shmem", None)]


def test_what_fills_at_the_beginning_is_no_leak() -> None:
    """Caches and pools of the first minutes."""
    machine = node(0.0, 60 * 8)
    rows = tuple(
        s.model_copy(update={"available": s.available + max(0, GIB - int(s.at_s * 1e6))})
        for s in machine.samples
        if s.available is not None
    )
    assert overall(drifts(machine.model_copy(update={"samples": rows}))) == "no leak"


def test_one_leak_is_one_and_nothing_seen_is_too_short() -> None:
    leak, none = drifts(node(0.5, 60)), drifts(node(0.0, 60 * 8))
    assert overall([*leak, *none]) == "leak"
    assert overall([]) == "too short to say"
    assert drifts(Machine(node="spark1")) == ()
    unseen = Machine(node="spark2", samples=(Sample(at_s=0, problem="no ssh"),))
    assert drifts(unseen) == ()


def test_gpu_memory_that_grows_is_a_leak() -> None:
    rows = tuple(Sample(at_s=n * 5, vram=GIB + n * (1 << 20)) for n in range(120))
    (found,) = drifts(Machine(node="tower", samples=rows))
    assert (found.what, found.verdict) == ("vram", "leak")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (2, 3, "leak"),
        (-1, 0.5, "no leak"),
        (0.5, 2, "too short to say"),
        (-9, 9, "too short to say"),
    ],
)
def test_an_interval_over_the_limit_says_nothing(low: float, high: float, said: str) -> None:
    assert judged(Interval((low + high) / 2, low, high), 1.0) == said
