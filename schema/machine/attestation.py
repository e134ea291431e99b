"""Attestations: what a person has seen in a board's BIOS, for how long, and for which BIOS.

One file an item on the node itself, root's alone, written as a journalled file step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from schema.core.base import Frozen
from schema.desired.plan import Document
from schema.machine.checklist import Item
from schema.observed.hardware import Board, HardwareFacts
from schema.observed.snapshot import Unreadable

FOLDER = "/var/lib/rigbook/attestations"
DAY_S = 86400


class Attestation(Frozen):
    """Who saw it, when (Unix seconds of the operator's clock), for how long, on which board."""

    format: Literal[1]
    item: str
    by: str
    at_unix_s: int
    valid_days: int
    bios_version: str
    board_serial: str
    board: str


def path_of(item: str) -> str:
    """The file of an item's attestation."""
    return f"{FOLDER}/{item}.json"


def document(item: Item, by: str, now: float, board: Board) -> Document:
    """The attestation's file. ValueError where there is no BIOS version to bind it to."""
    if not board.bios_version:
        raise ValueError("the board does not say its BIOS version")
    assert item.valid_days is not None
    said = Attestation(
        format=1, item=item.id, by=by, at_unix_s=int(now), valid_days=item.valid_days,
        bios_version=board.bios_version, board_serial=board.serial or "", board=board.title,
    )  # fmt: skip
    text = json.dumps(said.model_dump(), indent=1, sort_keys=True) + "\n"
    return Document(path_of(item.id), text, "0600")


def recorded(facts: HardwareFacts) -> Mapping[str, Attestation | str]:
    """By item: the attestation, or why its file is none."""
    if isinstance(facts.attestations, Unreadable):
        return {}
    found: dict[str, Attestation | str] = {}
    for row in facts.attestations:
        item = row.file.removesuffix(".json")
        try:
            made = Attestation.model_validate(row.said, strict=True)
            found[item] = made if made.item == item else f"{row.file} is about {made.item}"
        except ValidationError:
            found[item] = f"{FOLDER}/{row.file} is no attestation"
    return found


def standing(
    said: Attestation | str | None, item: Item, board: Board | None, now: float
) -> tuple[bool, str]:
    """Whether an attestation holds, and why not: never made, expired, or made for another BIOS."""
    if said is None:
        return False, "never attested"
    if isinstance(said, str):
        return False, said
    who = f"attested by {said.by}"
    if board is None or board.bios_version is None:
        return False, f"{who}, but the board does not say its BIOS version now"
    if said.bios_version != board.bios_version:
        return False, f"{who} for BIOS {said.bios_version}; it is {board.bios_version} now"
    if said.board_serial != (board.serial or ""):
        return False, f"{who} for another board (serial {said.board_serial or 'none'})"
    days = (now - said.at_unix_s) / DAY_S
    if days < -1:
        return False, f"{who}, dated {-days:.0f} days in the future"
    # The list may have become stricter since.
    valid = min(said.valid_days, item.valid_days or said.valid_days)
    if days > valid:
        return False, f"{who} {days:.0f} days ago, valid for {valid}"
    return True, f"{who}, {valid - days:.0f} days left"
