"""What measured values say: an interval, a comparison of two sets of rounds, a slope over time.

Pure. The random numbers of the bootstrap have a fixed seed: the same values give the same words.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Literal

LEVEL = 0.95
RESAMPLES = 4000
LEAST_ROUNDS = 5
# Two starts of one engine differ by about so much, which the rounds of one start do not show.
LEAST_DIFFERENCE = 0.01
# Below so many independent samples a slope has no interval that is worth its name.
LEAST_SAMPLES = 6
Judged = Literal["better", "worse", "within noise", "too few rounds to say"]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A value with its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What B is against A: the share that it is more (0.1: 10 % more), and the word for it."""

    share: Interval | None
    word: Judged


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, with linear interpolation; needs one."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def student(freedom: float) -> float:
    """The two-sided quantile of Student's t for LEVEL, by `freedom` degrees (1 and more).

    The expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5): 2 % off at 3 degrees.
    Fewer are looked up.
    """
    if freedom < 3:
        return 12.706 if freedom < 2 else 4.303
    z = _NORMAL.inv_cdf((1 + LEVEL) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (n + 1) for n, term in enumerate(terms))


def _tail(count: int) -> float:
    """The share that is cut off at each end of the resampled values.

    Of few values the plain percentile interval is too narrow; this widens it as t does (Hesterberg,
    What Teachers Should Know About the Bootstrap, 2014: the expanded percentile interval).
    """
    return _NORMAL.cdf(-math.sqrt(count / (count - 1)) * student(count - 1))


def _interval(value: float, count: int, draw: Callable[[random.Random], float]) -> Interval:
    made = random.Random(0)
    drawn = [draw(made) for _ in range(RESAMPLES)]
    tail = _tail(count)
    return Interval(value, quantile(drawn, tail), quantile(drawn, 1 - tail))


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of some rounds with its bootstrap interval; of fewer than two the value itself."""
    mean, count = fmean(values), len(values)
    if count < 2:
        return Interval(mean, mean, mean)
    return _interval(mean, count, lambda r: fmean(r.choices(values, k=count)))


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """How `after` stands against `before`, by the spread of both's rounds: more is better."""
    if min(len(before), len(after)) < LEAST_ROUNDS or fmean(before) <= 0:
        return Comparison(None, "too few rounds to say")

    def draw(r: random.Random) -> float:
        of = fmean(r.choices(before, k=len(before)))
        return fmean(r.choices(after, k=len(after))) / of - 1 if of > 0 else 0.0

    share = _interval(fmean(after) / fmean(before) - 1, min(len(before), len(after)), draw)
    if share.low <= 0 <= share.high or abs(share.value) < LEAST_DIFFERENCE:
        return Comparison(share, "within noise")
    return Comparison(share, "better" if share.value > 0 else "worse")


def slope(at: Sequence[float], values: Sequence[float]) -> Interval | None:
    """The fitted slope of values over time, per unit of `at`; None: too few independent samples.

    A straight line by least squares. Samples that follow each other resemble each other, so the
    count behind the interval is that of independent ones, by the correlation of neighbouring
    residuals (Santer and others, J. Geophys. Res. 105, 2000).
    """
    count = len(at)
    if count < LEAST_SAMPLES:
        return None
    middle, mean = fmean(at), fmean(values)
    spread = sum((t - middle) ** 2 for t in at)
    if spread == 0:
        return None
    fitted = sum((t - middle) * (v - mean) for t, v in zip(at, values, strict=True)) / spread
    rest = [v - mean - fitted * (t - middle) for t, v in zip(at, values, strict=True)]
    square = sum(r * r for r in rest)
    if square == 0:
        return Interval(fitted, fitted, fitted)
    alike = max(0.0, sum(a * b for a, b in pairwise(rest)) / square)
    independent = count * (1 - alike) / (1 + alike)
    if independent < LEAST_SAMPLES:
        return None
    error = math.sqrt(square / (independent - 2) / spread) * student(independent - 2)
    return Interval(fitted, fitted - error, fitted + error)
