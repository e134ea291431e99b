"""The one error that wrong input raises: lines that a person reads and acts on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SpecError(Exception):
    """Wrong input: one line a problem, each naming the file, the key and what is allowed.

    `problems` holds the lines; str() joins them. Show it as it is, without a traceback.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class HiddenValueError(ValueError):
    """A refusal of a value that may be a secret: the error must not show it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known word, or the empty text."""
    close = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The text for a word that is none of the known: the nearest one and the whole list."""
    names = sorted(known)
    listed = ", ".join(names) if names else "none exist"
    return f"unknown {what} {shown(word)}{nearest(word, names)}; allowed: {listed}"


def shown(value: object, secret: bool = False) -> str:
    """A value as an error shows it: one short line, control characters escaped; `***` a secret."""
    if secret:
        return "***"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
