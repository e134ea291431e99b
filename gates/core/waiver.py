"""Waivers: `--data waive=CODE --data reason="…"` lets one known risk pass, in writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gates.core.codes import CODES, UNWAIVABLE
from gates.core.violation import Violation
from schema.core.errors import SpecError, unknown
from schema.core.strings import single_line

__all__ = ["UNWAIVABLE", "apply_waivers", "blocking"]


def blocking(violations: Iterable[Violation]) -> list[Violation]:
    """The findings that stop every deploy which changes something."""
    return [found for found in violations if found.severity == "block"]


def apply_waivers(
    violations: Sequence[Violation], waive: tuple[str, ...], reason: str | None
) -> tuple[list[Violation], list[Violation]]:
    """(what remains, what was waived); SpecError for a waiver that is not allowed.

    A code is waived on all nodes. The reason goes to the journal, so there must be one.
    """
    problems = [f"--data waive: {unknown('code', c, CODES)}" for c in waive if c not in CODES]
    problems += [
        f"--data waive: {code} cannot be waived; mend it as docs/gates.md says "
        f"(never waived: {', '.join(sorted(UNWAIVABLE))})"
        for code in waive
        if code in UNWAIVABLE
    ]
    problems += _reason_problems(waive, reason)
    if problems:
        raise SpecError(*problems)
    waived = [found for found in violations if found.code in waive]
    return [found for found in violations if found.code not in waive], waived


def _reason_problems(waive: tuple[str, ...], reason: str | None) -> list[str]:
    if not waive:
        return []
    if reason is None or not reason.strip():
        return ['--data waive needs --data reason="…"; it is written to the journal']
    try:
        single_line(reason)
    except ValueError as error:
        return [f"--data reason {error}"]
    return []
