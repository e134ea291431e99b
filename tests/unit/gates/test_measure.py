"""What speaks against the figures of a measurement."""

from __future__ import annotations

import random

import pytest

from gates.measure import cold, doubts, drifts, held, judged, overall
from schema.measure import Interval, Machine, Point, Round, Sample
from schema.snapshot import GpuHealth


def gb10(clock: int, *reasons: str) -> GpuHealth:
    """A GB10 under load; its 3003 MHz and D3's 695 to 890 are of health.md."""
    return GpuHealth(bus_id="0000000F:01:00.0", clock_mhz=clock, max_clock_mhz=3003,
                     busy_percent=96, reasons=reasons, temp_c=88.0, power_w=30.0)  # fmt: skip


def machine(*gpus: GpuHealth, problem: str | None = None) -> Machine:
    """A node that was seen once a GPU's row."""
    rows = tuple(Sample(at_s=5.0 * n, gpus=(gpu,)) for n, gpu in enumerate(gpus))
    if problem:
        rows = (*rows, Sample(at_s=99, problem=problem))
    return Machine(node="spark1", samples=rows)


def test_d3_a_throttled_gpu_stands_on_top() -> None:
    """D3: tok/s halves under load, and nothing is in any log."""
    seen = machine(gb10(2400), gb10(890, "hw_thermal_slowdown"), gb10(695, "hw_slowdown"))
    assert [*held(seen)] == [
        "GPU 0000000F:01:00.0 of spark1 was throttled in 2 of 3 samples (hw_slowdown, "
        "hw_thermal_slowdown, down to 695 MHz)"
    ]
    # a cap of power is a card's usual state under load
    assert [*held(machine(gb10(2400, "sw_power_cap", "gpu_idle")))] == []
    found = doubts((), [seen], 1000, 1000, 0, 90_000)
    assert len(found) == 1 and "throttled" in found[0]


@pytest.mark.parametrize(
    ("ours", "made", "busy", "before", "said"),
    [
        (1000, 1000, 0, 90_000, ()),
        # a doctor's short question
        (1000, 1100, 0, 90_000, ()),
        (1000, 1300, 0, 90_000, ("made 300 tokens for others meanwhile, 1000 for this run",)),
        (100_000, 101_000, 0, 90_000, ()),
        (1000, 1000, 2, 90_000, ("2 requests of others ran or waited",)),
        (1000, None, 0, 90_000, ("whether others asked it is not known",)),
        (1000, 1000, 0, 40, ("cold: the engine had made 40 tokens since its start",)),
        (1000, 1000, 0, None, ()),
    ],
)
def test_others_and_a_cold_start_are_told(
    ours: int, made: float | None, busy: float, before: float | None, said: tuple[str, ...]
) -> None:
    found = doubts((), (), ours, made, busy, before)
    assert len(found) == len(said) and all(a in b for a, b in zip(said, found, strict=True)), found


def test_failures_come_first_and_what_was_not_seen_last() -> None:
    point = Point(streams=4, tokens=256, rounds=(Round(seconds=9, tokens=512, failed=2),) * 5,
                  errors=("Internal Server Error",))  # fmt: skip
    lines = doubts([point], [machine(problem="spark1: no ssh")], 0, 0, 0, 10)
    assert lines[0] == "10 of 20 answers failed at 4 streams: Internal Server Error"
    assert lines[-1] == "spark1 was not seen all the time: spark1: no ssh"
    assert len(lines) == 3 and cold(10) and not cold(9000) and cold(None) is None


# leak, no leak, too short to say: by the slope and by what is left.

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
