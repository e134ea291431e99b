"""What speaks against the figures of a measurement."""

from __future__ import annotations

import pytest

from gates.measure.doubts import cold, doubts, held
from schema.measure.run import Machine, Point, Round, Sample
from schema.observed.health import GpuHealth


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
