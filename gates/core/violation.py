"""A gate's finding: what is wrong, how we know, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from node.rules.patterns import printable


class Layer(IntEnum):
    """Where a cause lives. Lowest first: a lower finding usually explains the higher ones."""

    FIRMWARE = 1
    KERNEL = 2
    DRIVER = 3
    MEMORY = 4
    PROCESSES = 5
    FABRIC = 6
    STORAGE = 7
    CONTAINER = 8
    UNIT = 9
    ARTIFACT = 10
    RECIPE = 11
    ENDPOINT = 12


@dataclass(frozen=True)
class Violation:
    """One finding on one node (or on the rig, node None).

    `code` is stable and has a section in docs/gates.md. `severity` "block" stops every deploy
    that changes something; "warn" is shown. `remedy` is a command or an action a person can take.
    `unknown` marks a finding that exists because something could not be read (it blocks, too).
    `cause` is this finding's likely cause where it can be told better than gates/doctor/rank.py
    does."""

    code: str
    layer: Layer
    severity: Literal["block", "warn"]
    summary: str
    evidence: str
    remedy: str
    node: str | None = None
    unknown: bool = False
    cause: str = ""

    def __post_init__(self) -> None:
        """What a host said stands in these lines: no escape and no newline leaves with them."""
        for name in ("summary", "evidence", "remedy", "cause"):
            object.__setattr__(self, name, printable(getattr(self, name)))
