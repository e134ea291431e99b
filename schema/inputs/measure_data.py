"""The keys of bench and soak."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from schema.core.host_keys import key
from schema.core.types import Names, listed
from schema.desired.kubernetes import ClusterData
from schema.inputs.cluster_runbook_data import WAIVER
from schema.inputs.host_data import HostData, LeasedData
from schema.inputs.runbook_data import GATED


def _numbers(value: object) -> object:
    """`1,2,4` as the numbers that they are."""
    found = listed(value)
    if not isinstance(found, tuple) or not found:
        raise ValueError("is no list of numbers from 1; allowed: such as 1,2,4")
    numbers = []
    for one in found:
        if isinstance(one, bool) or not str(one).isdigit() or int(one) < 1:
            raise ValueError("is no list of numbers from 1; allowed: such as 1,2,4")
        numbers.append(int(one))
    return tuple(numbers)


def _at_most(limit: int) -> AfterValidator:
    def check(values: tuple[int, ...]) -> tuple[int, ...]:
        over = [value for value in values if value > limit]
        if over:
            raise ValueError(f"has {over[0]}; allowed: at most {limit}")
        return values

    return AfterValidator(check)


def _two(values: tuple[str, ...]) -> tuple[str, ...]:
    """The two sides of a comparison, or none."""
    if len(values) not in (0, 2):
        raise ValueError(f"names {len(values)}; allowed: two, such as A,B or last,A")
    return values


Streams = Annotated[tuple[int, ...], BeforeValidator(_numbers), _at_most(256)]
Lengths = Annotated[tuple[int, ...], BeforeValidator(_numbers), _at_most(1_000_000)]


class BenchData(LeasedData):
    """bench."""

    streams: Streams | None = key(
        None, "answers at the same time; none: 1,2,4,8,16, as far as max_num_seqs takes them"
    )
    tokens: int = key(256, "of each answer", "tokens", ge=16, le=8192)
    rounds: int = key(5, "that count, after one that does not", "rounds", ge=3, le=100)
    contexts: Lengths = key((512, 2048, 8192), "lengths of prompts for the prefill, in tokens")
    quick: bool = key(False, "one stream alone, as the first seed measured")
    compare: Annotated[Names, AfterValidator(_two)] = key(
        (), "two kept benches by id, A,B: is B better, worse, or is it noise? Nothing is measured"
    )
    profiles: Names = key(
        (), "serve and measure each of these, and go back to what serves now; names of the recipe's"
    )

    def conflict(self) -> tuple[str, str] | None:
        if self.compare and self.profiles:
            return "compare", "compare: with profiles; allowed: one of them"
        return super().conflict()


class ReportData(HostData):
    """report."""

    unused = GATED - {"deep"}


class ClusterReportData(ClusterData):
    """report."""

    unused = WAIVER


class SoakData(HostData):
    """soak."""

    unused = GATED
    streams: int | None = key(None, "at a time; none: 8, or max_num_seqs", "answers", ge=1, le=256)
    seconds: int = key(300, "how long; an hour tells more", "seconds", ge=5, le=86400)
