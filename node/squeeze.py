"""Whether compressing a block before it is sent pays: measured, link against core."""

from __future__ import annotations

import time
import zlib
from typing import Union

CHOICES = ("auto", "yes", "no")
# Blocks of one measurement: more than what the buffers of both ends hold.
WINDOW = 16


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
        self.link = 0.0
        self.on = choice == "yes"

    def decide(self, block: Union[bytes, bytearray, memoryview]) -> bool:
        """Gives whether to compress this block."""
        if self._choice == "auto" and self._blocks % WINDOW == 0 and self.link > 0:
            started = time.monotonic()
            share = len(zlib.compress(block, 1)) / max(1, len(block))
            core = len(block) / max(1e-9, time.monotonic() - started)
            self.on = pays(self.link, core, share)
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


def pays(link: float, core: float, share: float) -> bool:
    """Gives whether compressing is clearly faster: bytes/s of link and core, share packed/plain.

    By a third at least: the receiver has to unpack, and its cores have docker to feed.
    """
    return 1 / core + share / link < 0.67 / link
