"""A limit for what would otherwise run for hours."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StillRunning(BaseException):
    """The limit is over; no handler of the tested code takes it for an error of its own."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails once this much CPU time of the process was used."""

    def over(number: int, frame: FrameType | None) -> None:
        raise StillRunning(f"it still runs after {seconds:g} s of CPU")

    former = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
