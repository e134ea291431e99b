"""Whether compressing a block before it is sent pays: measured, link against core."""

from __future__ import annotations

import time
import zlib

CHOICES = ("auto", "yes", "no")
# Blocks of one measurement: more than what the buffers of both ends hold.
WINDOW = 16
# A sample of a block is compressed, for a whole one costs 25 ms of a core; and while the answer
# stays the same it is taken less and less often, down to once in so many windows (1 GiB).
SAMPLE = 64 << 10
PIECES = 4
RAREST = 64


class Chooser:
    """Decides for each block of one connection; `auto` measures, the others are fixed.

    A byte costs 1/link to send plain; compressed it costs 1/core + share/link. The link is the
    fastest window seen, for a slow one may be the receiver's disk; the first fills buffers only.
    """

    def __init__(self, choice: str) -> None:
        self._choice = choice
        self._blocks = 0
        self._bytes = 0
        self._seconds = 0.0
        self._next = WINDOW
        self._pause = 1
        self.link = 0.0
        self.on = choice == "yes"

    def decide(self, block: bytes | bytearray | memoryview) -> bool:
        """Gives whether to compress this block."""
        if self._choice == "auto" and self._blocks >= self._next and self.link > 0:
            part = sample(block)
            started = time.monotonic()
            share = len(zlib.compress(part, 1)) / max(1, len(part))
            core = len(part) / max(1e-9, time.monotonic() - started)
            before, self.on = self.on, pays(self.link, core, share)
            self._pause = 1 if self.on != before else min(RAREST, 2 * self._pause)
            self._next = self._blocks + self._pause * WINDOW
        return self.on

    def sent(self, wire_bytes: int, seconds: float) -> None:
        """Notes what a block cost to send; of compressed ones nothing about the link is learned."""
        self._blocks += 1
        if self.on:
            return
        self._bytes += wire_bytes
        self._seconds += seconds
        if self._blocks % WINDOW == 0:
            if self._blocks > WINDOW and self._seconds > 0:
                self.link = max(self.link, self._bytes / max(1e-9, self._seconds))
            self._bytes, self._seconds = 0, 0.0


def sample(block: bytes | bytearray | memoryview) -> bytes:
    """Gives pieces from all over a block, together SAMPLE bytes; a small block as it is."""
    if len(block) <= SAMPLE:
        return bytes(block)
    step = len(block) // PIECES
    return b"".join(
        bytes(block[at : at + SAMPLE // PIECES]) for at in range(0, step * PIECES, step)
    )


def pays(link: float, core: float, share: float) -> bool:
    """Gives whether compressing is clearly faster: bytes/s of link and core, share packed/plain.

    By a third at least: the receiver has to unpack, and its cores have docker to feed.
    """
    return 1 / core + share / link < 0.67 / link
