"""The look that an undo ends with: is each thing as its steps recorded it? Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from node.change import journal, kinds
from node.core.errors import Json
from node.core.step_kind import POST, PRE, UNIT
from node.core.step_state import DONE, INTENT, UNDONE, UNKNOWN, subject


def _things(rows: list[Json], side: str) -> list[list[Json]]:
    """Gives the rows about one thing each, oldest first.

    What lies below a path that trades places is left out, where it lies in the other tree.
    """
    found: dict[str, list[Json]] = {}
    moved: list[str] = []
    for row in rows if side == PRE else reversed(rows):
        kind, path = kinds.of(row), str(row.get("path", ""))
        if any(path.startswith(tree + "/") for tree in moved):
            continue
        if kind.moves:
            moved.append(path)
        found.setdefault(kind.about(row), []).append(row)
    return [group if side == PRE else group[::-1] for group in found.values()]


def differing(
    rows: list[Json], side: str, to_start: tuple[str, ...] = ()
) -> Iterator[tuple[list[Json], list[str]]]:
    """Gives each thing that is not as recorded: its rows, and the lines in which it differs.

    `to_start`: units that are down because the caller starts them. What cannot be read differs.
    """
    for group in _things(rows, side):
        entry = group[0 if side == PRE else -1]
        if any("left" in row for row in group):
            continue
        kind = kinds.of(entry)
        entry = kind.folded(group, side)
        if kind.phase == UNIT and subject(entry) in to_start:
            entry = {**entry, PRE: {**entry[PRE], "active": "inactive"}}
        try:
            lines = kind.verify(entry, side)
        except Exception as error:  # a row of a damaged journal as well
            lines = [f"{kind.about(entry)} cannot be looked at: {kinds.reason(error)}"]
        if lines:
            yield group, lines


def lines(rows: list[Json], side: str) -> list[str]:
    """Gives the lines in which the things of these rows are not as recorded."""
    return [line for _, found in differing(rows, side) for line in found]


def side_of(change: Json) -> str:
    """Gives whether the host is to be as the change left it, or (it went back) as it found it."""
    return PRE if change["status"] in ("ROLLED_BACK", "INCONSISTENT") else POST


def of_change(change: Json) -> list[str]:
    """Gives the lines in which the host is now not as the journal says of a change.

    Raises NodeError for one that another version wrote.
    """
    kinds.require_known(change)
    rows = change["steps"]
    if side_of(change) == PRE:
        return lines(rows, PRE)
    done = [row for row in rows if row["state"] == DONE]
    touched = {kinds.of(row).about(row) for row in done}
    back = [row for row in rows if row["state"] == UNDONE
            and kinds.of(row).about(row) not in touched]  # fmt: skip
    unclear = [journal.describe(row) for row in rows if row["state"] in (INTENT, UNKNOWN)]
    return [*lines(done, POST), *lines(back, PRE), *unclear]
