"""What every kind of journalled step is: one class, the same verbs (docs/adr/0018).

It lies in core because systemd's own step is a kind, and apply asks systemd's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.core.errors import Json, NodeError
from node.core.step_state import DONE, INTENT, UNKNOWN, subject

# the order in which an undo takes them: unit is stopped before the others and started after them
UNIT, TAG, PATH, SPECIAL = "unit", "tag", "path", "special"
PHASES = (TAG, PATH, SPECIAL)


class Steps:
    """The steps of a change, and how they are written to the disk."""

    def __init__(self, change: Json, write: Callable[[], None]) -> None:
        self.change = change
        self.write = write
        # an earlier step of this very call changed something
        self.changed_before = False

    @property
    def rows(self) -> list[Json]:
        """Gives the recorded steps, oldest first."""
        rows: list[Json] = self.change["steps"]
        return rows

    def finish(self, entry: Json, state: str = DONE, **more: object) -> None:
        """Write what became of an announced step."""
        entry.update(state=state, **more)
        self.write()


class Seen:
    """What the steps of one plan or undo find, one after the other, without anything being done."""

    def __init__(self, overwrite: list[str] | None = None) -> None:
        # path to description, as the steps looked at so far leave it
        self.now: dict[str, Json] = {}
        self.made: set[str] = set()
        self.moved: list[str] = []
        self.overwrite = overwrite or []
        self.changed_before = False


def differing(about: str, now: object, wanted: object) -> list[str]:
    """Gives the line of a verify: none when the thing is as wanted."""
    return [] if now == wanted else [f"{about} is {now}, not {wanted}"]


# what a step found, and what it left: the two things that it can be compared with
PRE, POST = "pre", "post"


class Kind:
    """One kind of step. `op` is its name in a request and in the journal.

    `step` is a parsed row of a request, `entry` a row of the journal.
    """

    # what a request may and must hold beside `op`; none: only other verbs write this kind
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    # when an undo takes it (PHASES)
    phase = SPECIAL
    # undo passes it over, and close does not wait for it
    irreversible = False
    # nothing of it lasts: where a kill cut it short, its change may be COMMITTED all the same
    passing = False
    # planning only reads and is cheap: done for all such steps before the first one changes a thing
    plans_ahead = False
    # a call that fails takes it back at once; else the change stays OPEN
    taken_back = True
    # what lies below its path goes away with it
    moves = False
    # keys of the entry that the answer of apply repeats
    told: tuple[str, ...] = ()

    def __init__(self, op: str) -> None:
        self.op = op

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked. Raises NodeError (`bad_request`)."""
        raise NodeError(f"{where}.op: {self.op!r} is not asked for in a request", "bad_request")

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something, and what in words; changes nothing."""
        raise NotImplementedError(self.op)

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Do it, announced before and finished after; gives whether it changed something, and what.

        Raises NodeError and OSError; what is announced then is taken back or stays for an undo.
        """
        raise NotImplementedError(self.op)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Gives the state of a step that a kill left announced, and finishes what it can.

        May append steps to `rows`. kinds.recover makes "unknown" of what it raises.
        """
        return UNKNOWN

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives whether the thing was edited after the step. Raises NodeError when there is no way
        back. Reads only, steps newest first: `seen` is what the newer ones' undo leaves.
        """
        return False

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put back what the step found; gives what was done in words. A later edit is kept unless
        `overwrite`. Raises NodeError, CannotRead and OSError; once more is always allowed.
        """
        raise NotImplementedError(self.op)

    def discard(self, entry: Json) -> None:
        """Remove what a step that was taken back leaves behind, where its row goes too."""

    def describe(self, entry: Json) -> str:
        """Gives the step in words; the state is not in them."""
        about = subject(entry)
        return self.op if about == self.op else f"{self.op} {about}"

    def passed_over(self, entry: Json) -> str:
        """Gives what an undo says of an irreversible step."""
        return f"cannot be undone and is passed over ({entry['state']})"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the lines in which the thing now differs from what the entry recorded.

        `side` is PRE (what the step found) or POST (what it left). Reads only; raises
        NodeError, CannotRead and OSError where it cannot be read. Of a step that cannot be undone
        the lines of PRE say what of it stays.
        """
        return []

    def unknown(self, entry: Json) -> str | None:
        """Gives what of a row another version wrote and this one does not know, or None. Raises
        nothing: the row may be damaged.
        """
        return None

    def about(self, entry: Json) -> str:
        """Gives what the step is about: of two about the same thing the older one tells what was
        before them."""
        return f"{self.op} {subject(entry)}"

    def folded(self, rows: list[Json], side: str) -> Json:
        """Gives the one entry that tells the PRE or POST of all these, oldest first."""
        return rows[0 if side == PRE else -1]

    def leave(self, entry: Json, words: str) -> str:
        """Note that an undo leaves what somebody did later, and has nothing to compare it with."""
        entry["left"] = words
        return words

    def quiesce(self, rows: list[Json]) -> list[str]:
        """Stop one unit before files go back (phase UNIT); `rows` newest first; gives the commands
        that ran."""
        return []

    def resume(self, rows: list[Json], start: bool) -> tuple[list[str], bool]:
        """Bring that unit back to what it was; gives the commands that ran, and whether it is still
        to be started (`start` False)."""
        return [], False

    def announce(self, entry: Json, steps: Steps) -> Json:
        """Write an entry before anything of it is done; the words that its kind has for it stay in
        it, because the snapshot tells the journal without the kinds.
        """
        entry.setdefault("state", INTENT)
        words = self.describe(entry)
        if words != Kind.describe(self, entry):
            entry["words"] = words
        steps.rows.append(entry)
        steps.write()
        return entry

    def record(self, steps: Steps, **entry: Any) -> Json:
        """Announce a new entry of this kind."""
        return self.announce({"op": self.op, **entry}, steps)
