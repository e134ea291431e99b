"""A secret's value on its way from the operator to a host."""

from __future__ import annotations


class Secret:
    """A value that no text shows: not repr, str or format, and json refuses it.

    facts/rignode/pack.py alone writes it, into what a host reads from its stdin.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"


def revealed(value: object) -> str:
    """json's `default` for a request that goes through stdin; TypeError for anything else."""
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"a {type(value).__name__} is no plain data")
