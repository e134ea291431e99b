"""Checklists: how a board's firmware must be set, what Linux reads of it, what a person attests.

catalog/checklists/*.yaml: one for each board that somebody knows, and `generic` for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schema.core.base import Frozen
from schema.core.errors import SpecError
from schema.core.parse import build
from schema.core.strings import single_line
from schema.core.yaml_file import read_map
from schema.observed.hardware import Board

CHECKLISTS_DIR = "catalog/checklists"
GENERIC = "generic"
# What gates/firmware/checklist.py can read an answer from.
ProbeName = Literal["wol", "display", "boot_order", "sleep_targets", "clock_battery"]
Line = Annotated[str, Field(min_length=1), AfterValidator(single_line)]
ItemId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,40}$")]


class Item(Frozen):
    """One thing that must be so.

    `how` are the steps of a person at the board. `probe` reads it where Linux can; what it cannot
    read, a person attests for `valid_days` (None: it cannot be attested). `blocks` names the
    deploys that a headless board must not run without it.
    """

    id: ItemId
    expected: Line
    why: Line
    how: Annotated[tuple[Line, ...], Field(min_length=1)]
    probe: ProbeName | None = None
    valid_days: Annotated[int, Field(ge=1, le=3650)] | None = None
    blocks: tuple[Literal["reboot"], ...] = ()

    @model_validator(mode="after")
    def _can_be_known(self) -> Item:
        if self.probe is None and self.valid_days is None:
            raise ValueError(
                f"{self.id} can be neither read nor attested; allowed: probe, valid_days, or both"
            )
        return self


class BoardMatch(Frozen):
    """Which boards a list is for: shell patterns over SMBIOS' vendor and product name."""

    vendor: Line
    name: Line

    def fits(self, board: Board) -> bool:
        """True for a board that both patterns fit."""
        pairs = ((board.vendor, self.vendor), (board.name, self.name))
        return all(fnmatchcase((value or "").lower(), want.lower()) for value, want in pairs)


class Checklist(Frozen):
    """A board's list; `board` None: for every board that no other list names."""

    name: str
    title: Line
    board: BoardMatch | None = None
    items: Annotated[tuple[Item, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_item_once(self) -> Checklist:
        ids = [item.id for item in self.items]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands twice; allowed: each id once")
        return self


def checklists(root: Path) -> dict[str, Checklist]:
    """All lists by name. SpecError: everything wrong in their files, and a missing `generic`."""
    found: dict[str, Checklist] = {}
    problems: list[str] = []
    for path in sorted((root / CHECKLISTS_DIR).glob("*.yaml")):
        try:
            found[path.stem] = _checklist(path)
        except SpecError as error:
            problems += error.problems
    if GENERIC not in found and not problems:
        problems.append(f"{CHECKLISTS_DIR}/{GENERIC}.yaml: is missing; boards of no list need it")
    if problems:
        raise SpecError(*problems)
    return found


def _checklist(path: Path) -> Checklist:
    """The list of one file; SpecError: everything wrong in it."""
    shown = f"{CHECKLISTS_DIR}/{path.name}"
    made = build(Checklist, read_map(path, shown), lambda key: shown, {"name": path.stem})
    if (made.board is None) != (path.stem == GENERIC):
        raise SpecError(f"{shown}: board: allowed: in every list but {GENERIC}.yaml")
    return made


def checklist_for(board: Board | None, lists: Mapping[str, Checklist]) -> Checklist:
    """The list for a board, `generic` where none names it. SpecError when two do."""
    fitting = [made for made in lists.values() if board and made.board and made.board.fits(board)]
    if len(fitting) > 1:
        names = ", ".join(made.name for made in fitting)
        raise SpecError(
            f"{CHECKLISTS_DIR}: {board.title if board else ''} fits {names}; allowed: one list"
        )
    return fitting[0] if fitting else lists[GENERIC]
