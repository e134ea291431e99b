"""A runbook's table: each scenario, what it sends, what it says, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.plans.support.scenario import Ran, Runs, Scenario

# Steps in order; those of a set come in any order, as two hosts at the same time.
Steps = Sequence[Collection[str]]


@dataclass(frozen=True)
class Ends:
    """How a run is to end.

    `status` is the exit status (None: any but 0), `steps` what changes in order (None: whatever),
    `asks` all that is asked, sorted (None: whatever); `says` stands in the output, `never` does
    not; `last` stands in the error that the run ends with.
    """

    status: int | None = 0
    steps: Steps | None = None
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    asks: Sequence[str] | None = None

    def check(self, run: Ran) -> None:
        """Asserts all of it; no run ends with a traceback."""
        assert run.status == self.status if self.status is not None else run.status, run.output
        for part in self.says:
            assert part in run.output, (part, run.output)
        for part in (*self.never, "Traceback"):
            assert part not in run.output, (part, run.output)
        for part in self.last:
            assert part in run.last_words, (part, run.last_words, run.output)
        if run.status:
            # what matters stands last, without a place in the code, and pyinfra's own is no verdict
            assert run.stderr.rstrip().endswith(run.last_words) and run.last_words, run.output
            assert " line " not in run.stderr.rpartition("--> ")[2].partition(": ")[0], run.output
            assert "No hosts remaining" not in run.last_words, run.output
        if self.steps is not None:
            assert _grouped(run.steps, self.steps) == list(self.steps), (run.steps, run.output)
            assert self.steps or run.changing == ()
        elif self.status == 1:
            assert not any("COMMITTED" in step for step in run.steps), run.steps
        if self.asks is not None:
            assert sorted(command.what for command in run.commands) == list(self.asks)


def _grouped(steps: list[str], like: Steps) -> list[Collection[str]]:
    """The steps, with those taken together that `like` takes together."""
    left = list(steps)
    made: list[Collection[str]] = []
    for group in like:
        size = len(group) if isinstance(group, set) else 1
        made.append(set(left[:size]) if isinstance(group, set) else "".join(left[:1]))
        del left[:size]
    return [*made, *left]


def done(*says: str, steps: Steps | None = None, never: tuple[str, ...] = ()) -> Ends:
    """It works."""
    return Ends(0, steps, says, never)


def quiet(*says: str, never: tuple[str, ...] = (), asks: Sequence[str] | None = None) -> Ends:
    """It works, and nothing is changed."""
    return Ends(0, (), says, never, asks=asks)


def failed(*says: str, steps: Steps | None = None, never: tuple[str, ...] = ()) -> Ends:
    """It fails, with exit status 1; no change is blessed that `steps` does not name."""
    return Ends(1, steps, says, never)


def refused(*last: str, says: tuple[str, ...] = ()) -> Ends:
    """A clean refusal: a clear line at the end, nothing changed."""
    return Ends(None, (), says, last=last)


Table = Mapping[str, tuple[Scenario, Ends]]


def each_row(table: Table | Mapping[str, Ends]) -> Callable[[Runs, str], None]:
    """The test that each run of a module (its fixture `ran`) ends as its row says."""

    @pytest.mark.parametrize("name", table)
    def test_each_run_ends_as_its_row_says(ran: Runs, name: str) -> None:
        row = table[name]
        (row if isinstance(row, Ends) else row[1]).check(ran[name])

    return test_each_run_ends_as_its_row_says
