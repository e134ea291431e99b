"""Copies of backups from node to node: to a peer that keeps them, and back."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from operations.change.node_call import call
from operations.change.run import Run
from operations.transfer.transfer import DEADLINE_S, Transfer, came


@dataclass(frozen=True)
class Move:
    """A backup that goes from one node to another. `keeps`: the taker keeps it for `owner`, the
    host's own name; else it comes back to it.
    """

    transfer: Transfer
    backup: str
    owner: str
    keeps: bool
    # what the taker answered
    came: dict[str, Any] = field(default_factory=dict)

    @property
    def giver(self) -> str:
        """The node that gives."""
        return self.transfer.source

    @property
    def taker(self) -> str:
        """The node that takes."""
        return self.transfer.targets[0]

    @property
    def words(self) -> str:
        """What it does, for a person."""
        way = self.transfer.route.words
        if self.keeps:
            return f"copy {self.backup} to {self.taker}, {way}, or read the copy back there"
        return f"bring {self.backup} back from {self.giver}, {way}"


@operation()
def move(run: Run, moves: Sequence[Move]) -> Generator[FunctionCommand, None, None]:
    """
    Bring backups from node to node, one after another, and read them back where they came.

    + run: the run (nothing is journalled: a backup changes nothing but its own folder)
    + moves: what goes where
    """
    members = {name for one in moves for name in (one.giver, one.taker)}
    if host.name not in members:
        host.noop("no copy of a backup goes from here or comes here")
        return
    reporter = host
    for number, one in enumerate(moves):
        if host.name == (one.giver if one.keeps else one.taker):
            run.show_once(host, f"copy {number}", partial(host.log, one.words))
        # all of them at each step: a giver whose taker is busy with another would not be called
        work = partial(_part, run, reporter, one)
        yield run.step(f"copy {number}", members, work, DEADLINE_S)
        if one.keeps:
            yield run.step(f"note {number}", members, partial(_note, run, reporter, one))


def _part(run: Run, reporter: Host, one: Move) -> None:
    if reporter.name == one.giver:
        one.transfer.offer({"backup": one.backup, "host": None if one.keeps else one.owner})
        return
    if reporter.name != one.taker:
        return
    wanted = {"backup": one.backup, "host": one.owner if one.keeps else None}
    answer = one.transfer.fetch(one.taker, wanted)
    one.came.update(answer)
    size, damaged = came(answer)
    what = f"{one.backup} is back from {one.giver}, and whole"
    if one.keeps:
        did = "copied, and read back" if answer["made"] else "was there; it was read back"
        what = f"{one.backup} {did} in {answer['place']}"
    reporter.log_styled(f"{what}: {size}, {answer['took_s']:.1f} s{damaged}", fg="green")


def _note(run: Run, reporter: Host, one: Move) -> None:
    """The node whose backup it is notes that its copy was read back there."""
    if reporter.name == one.giver:
        note = {"backup": one.backup, "place": f"{one.taker}:{one.came['place']}"}
        call(run.state, reporter, "tree note", note)
