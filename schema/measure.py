"""A measurement and its statistics."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schema.core import Frozen, Name
from schema.snapshot import GpuHealth

# What a measurement holds, and what several of them say: intervals, comparisons, slopes.

# The document of one measurement: what was measured, on what, and under which load.

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Round(Frozen):
    """One round: each stream gets one whole answer. Of the streams that failed only the count."""

    seconds: Seconds
    tokens: Count
    failed: Count = 0
    # of each answer: to its first token, and its tokens a second from then on
    ttft_s: tuple[Seconds, ...] = ()
    stream_tok_s: tuple[Seconds, ...] = ()
    # between two chunks of one answer, over all answers; a chunk may hold several tokens
    itl_p50_s: Seconds | None = None
    itl_p95_s: Seconds | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second over all streams, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Point(Frozen):
    """Rounds at one concurrency, after one that is not counted (`warm_up`)."""

    streams: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    thinking: bool | None = None
    warm_up: Round | None = None
    rounds: tuple[Round, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens a second of each round in which no answer failed."""
        return tuple(r.tokens_per_s for r in self.rounds if not r.failed and r.tokens)

    @property
    def failed(self) -> int:
        """Answers that failed, in all rounds."""
        return sum(r.failed for r in self.rounds)

    @property
    def name(self) -> str:
        """What it is called in a table."""
        thoughts = {None: "", True: ", thinking", False: ", not thinking"}[self.thinking]
        return f"{self.streams} stream{'s' if self.streams > 1 else ''}{thoughts}"


class Prefill(Frozen):
    """Seconds to the first token of prompts of one length, new ones and the same ones again.

    `hits`: tokens that the engine found in its prefix cache the second time, by its own count.
    """

    tokens: Annotated[int, Field(ge=1)]
    cold_s: tuple[Seconds, ...] = ()
    cached_s: tuple[Seconds, ...] = ()
    hits: Count | None = None

    @property
    def cold_tok_s(self) -> float | None:
        """Prompt tokens a second of new prompts."""
        return self.tokens / fmean(self.cold_s) if self.cold_s and fmean(self.cold_s) else None

    @property
    def cached_tok_s(self) -> float | None:
        """The same of prompts that it has seen; None where none was found in its cache."""
        mean = fmean(self.cached_s) if self.cached_s else 0.0
        return self.tokens / mean if mean and self.hits else None


class Acceptance(Frozen):
    """Speculative decoding between two scrapes of the engine's counters."""

    drafts: Count
    draft_tokens: Count
    accepted: Count
    per_position: tuple[Count, ...] = ()

    @property
    def rate(self) -> float | None:
        """Accepted tokens of those that were drafted."""
        return self.accepted / self.draft_tokens if self.draft_tokens else None

    @property
    def length(self) -> float | None:
        """Tokens a step: the engine's own one and those accepted."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def unconditional(self) -> tuple[float, ...]:
        """Of all drafts, the share whose token at this position was accepted; what vLLM logs."""
        return tuple(n / self.drafts for n in self.per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float, ...]:
        """Of the drafts whose token before was accepted, the share; what the seed calls it."""
        before = (self.drafts, *self.per_position)
        return tuple(n / b if b else 0.0 for n, b in zip(self.per_position, before, strict=False))


class Other(Frozen):
    """The same measured by another client in the same run: one stream, tokens a second.

    What the engine's own clock says of the same answers: `off` is the share by which this client's
    rate is above that, `first_off` the first client's. None: the engine does not say, or others
    asked.
    """

    client: str
    rates: tuple[float, ...]
    off: float | None = None
    first_off: float | None = None


class Sample(Frozen):
    """A node at one moment, bytes and degrees Celsius; a GPU without memory of its own: none."""

    at_s: Seconds
    available: Count | None = None
    page_cache: Count | None = None
    shmem: Count | None = None
    gpus: tuple[GpuHealth, ...] = ()
    vram: Count | None = None
    problem: str | None = None


class Machine(Frozen):
    """A node during the run."""

    node: str
    kernel: str | None = None
    driver: str | None = None
    samples: tuple[Sample, ...] = ()


class Subject(Frozen):
    """What was measured: the same in two runs that may be compared."""

    rig: str
    recipe: str
    recipe_sha256: str
    profile: str | None
    model: str
    argv: tuple[str, ...]
    image: str | None = None


class Start(Frozen):
    """Seconds from the command that started the engine."""

    port_s: Seconds | None = None
    http_s: Seconds | None = None
    first_token_s: Seconds | None = None


class BenchRun(Frozen):
    """One bench. `complete` False: it was cut off, and holds what was measured until then.

    `doubts` say why its figures may not be the engine's own; `reference` are the recipe's published
    baselines, which nobody measured here.
    """

    format: Literal[1] = 1
    kind: Literal["bench"] = "bench"
    id: Name
    began: str
    seconds: Seconds = 0.0
    complete: bool = False
    client: str
    operator: str
    subject: Subject
    start: Start | None = None
    cold: bool | None = None
    doubts: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    acceptance: Acceptance | None = None
    # tool calls that a bench of 0.2.0 asked for: its document can be read, and nobody looks at them
    tools: tuple[dict[str, JsonValue], ...] = Field((), exclude=True)
    other: Other | None = None
    machines: tuple[Machine, ...] = ()
    reference: tuple[dict[str, JsonValue], ...] = ()


class SoakRun(Frozen):
    """One soak: answers one after the other at `streams` at a time, and the nodes meanwhile.

    `asked_s` is the time that was asked for, `seconds` the time that it ran.
    """

    format: Literal[1] = 1
    kind: Literal["soak"] = "soak"
    id: Name
    began: str
    asked_s: Seconds
    seconds: Seconds = 0.0
    complete: bool = False
    operator: str
    subject: Subject
    streams: Annotated[int, Field(ge=1)]
    completed: Count = 0
    failed: Count = 0
    tokens: Count = 0
    errors: tuple[str, ...] = ()
    slowest_s: Seconds | None = None
    doubts: tuple[str, ...] = ()
    acceptance: Acceptance | None = None
    machines: tuple[Machine, ...] = ()


# What measured values say: an interval, a comparison of two sets of rounds, a slope over time.
#
# Pure. The random numbers of the bootstrap have a fixed seed: the same values give the same words.

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


def compare_statistics(before: Sequence[float], after: Sequence[float]) -> Comparison:
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
