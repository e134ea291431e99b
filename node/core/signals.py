"""Signals that ask the program to end: the step under way is finished, the next is not begun."""

from __future__ import annotations

import signal

_caught: list[int] = []


def on_signal(number: int, _frame: object) -> None:
    """Remember a signal."""
    _caught.append(number)


def catch_signals() -> None:
    """Make SIGTERM, SIGHUP and SIGINT wait for the end of a step."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, on_signal)


def interrupted() -> str:
    """Gives the name of the signal that asked to end, or ""."""
    return signal.Signals(_caught[0]).name if _caught else ""
