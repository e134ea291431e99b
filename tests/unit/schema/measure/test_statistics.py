"""Better, worse or noise; leak, none, or too short to say: on the seeds' own numbers."""

from __future__ import annotations

import math
import random

import pytest

from schema import measure
from schema.measure import compare_statistics, mean_interval, quantile, slope, student


def rounds(middle: float, spread: float, count: int = 5, seed: int = 1) -> list[float]:
    """Rounds around a rate."""
    made = random.Random(seed)
    return [middle + made.uniform(-spread, spread) for _ in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        # the seeds': three arguments; "within noise"; MTP 3; the tower after its recovery (B8)
        (rounds(89.5, 1.5), rounds(163.2, 3.0, seed=2), "better"),
        (rounds(88.5, 1.5), rounds(88.0, 1.5, seed=3), "within noise"),
        (rounds(38.0, 0.8), rounds(35.0, 0.8, seed=4), "worse"),
        (rounds(79.4, 1.0), rounds(71.4, 1.0, seed=5), "worse"),
        # three argument changes' worth of noise hides 3 %
        (rounds(37.8, 4.0), rounds(36.5, 4.0, seed=6), "within noise"),
        # rounds without any spread: two starts differ by that much
        ([100.0] * 5, [99.5] * 5, "within noise"),
        ([100.0] * 5, [97.0] * 5, "worse"),
        ([100.0] * 4, [50.0] * 5, "too few rounds to say"),
        ([], [50.0] * 5, "too few rounds to say"),
        ([0.0] * 5, [50.0] * 5, "too few rounds to say"),
    ],
)
def test_two_runs_are_told_apart_by_their_rounds(
    before: list[float], after: list[float], word: str
) -> None:
    assert compare_statistics(before, after).word == word


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """Of few rounds the plain percentile interval would hold it in about 85 of 100."""
    made, held = random.Random(7), 0
    measure.RESAMPLES, before = 400, measure.RESAMPLES
    try:
        for _ in range(300):
            found = mean_interval([made.gauss(100, 5) for _ in range(5)])
            held += found.low <= 100 <= found.high
    finally:
        measure.RESAMPLES = before
    assert 0.90 <= held / 300 <= 0.99


def test_the_same_values_give_the_same_words() -> None:
    before, after = rounds(10, 1), rounds(11, 1, seed=2)
    assert compare_statistics(before, after) == compare_statistics(before, after)
    assert mean_interval([4.0]) == measure.Interval(4.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (60, 2.0)]
)
def test_students_t_is_that_of_the_tables(freedom: float, table: float) -> None:
    assert student(freedom) == pytest.approx(table, rel=0.021)


def test_a_quantile_lies_between_its_neighbours() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 2.5 and quantile([3], 0.95) == 3


def series(per_hour: float, noise: float, minutes: float) -> tuple[list[float], list[float]]:
    """A value every 5 s, in hours and in units."""
    made = random.Random(3)
    at = [n * 5 / 3600 for n in range(int(minutes * 12))]
    return at, [per_hour * t + made.gauss(0, noise) for t in at]


def test_a_slope_is_found_in_its_noise() -> None:
    found = slope(*series(1.2, 0.02, 30))
    assert found is not None and found.low < 1.2 < found.high and found.low > 1.0
    short, long = slope(*series(0.0, 0.02, 2)), slope(*series(0.0, 0.02, 60))
    assert short is not None and long is not None
    assert short.high - short.low > 20 * (long.high - long.low)


def test_samples_that_resemble_each_other_count_for_fewer() -> None:
    """A slow swing is no drift: as independent samples it would be one."""
    at = [n * 5 / 3600 for n in range(120)]
    swing = [math.sin(n / 120 * 2 * math.pi) for n in range(120)]
    assert slope(at, swing) is None
    assert slope([0.0, 1.0], [0.0, 1.0]) is None
    assert slope([1.0] * 9, [1.0] * 9) is None
    assert slope([float(n) for n in range(9)], [2.0 * n for n in range(9)]) == (
        measure.Interval(2.0, 2.0, 2.0)
    )
