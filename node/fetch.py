"""The taking end of a transfer: an item into a file, block by block, over a line that may break.

What is in the file is always a correct beginning of the item: a block is written once its checksum
holds. A line that breaks is called again from there; a process that was killed goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Any, Callable, Optional, Tuple

from node import sink, wire
from node.errors import Json, NodeError

# How long a link may be away before the transfer gives up (less than the giver's IDLE_S).
PATIENCE_S = 60.0
MAX_DAMAGED = 20
Grown = Callable[[int], None]


class Peer:
    """The giving node, called when needed and called again when the line broke."""

    def __init__(self, place: Json, key: str, gone: Callable[[], Optional[str]]) -> None:
        self._place, self._key, self._gone = place, key, gone
        self._line: Optional[wire.Line] = None
        self._damaged = 0
        self._last = time.monotonic()
        self._bytes = 0
        self._over = False

    @property
    def wire_bytes(self) -> int:
        """Gives the bytes that came over the wire."""
        return self._bytes + (self._line.wire_bytes if self._line else 0)

    def progressed(self) -> None:
        """Notes that something came: patience starts anew."""
        self._last = time.monotonic()

    def line(self) -> wire.Line:
        """Gives the line; calls until the patience is over.

        Raises NodeError: `wrong_key` at once, `no_peer` when nobody answers, `interrupted`.
        """
        while self._line is None:
            self.stop_if_gone()
            try:
                self._line = wire.call(
                    self._place["address"], self._place["port"], self._key, self._place["device"]
                )
            except wire.Refused as error:
                raise NodeError(str(error), "wrong_key", "run the deploy again") from None
            except wire.WireError as error:
                if time.monotonic() - self._last > PATIENCE_S:
                    device = self._place["device"]
                    way = f" out of {device}" if device else ""
                    raise NodeError(f"{error}{way}; tried for {PATIENCE_S:g} s", "no_peer",
                                    f"ip route get {self._place['address']}") from None  # fmt: skip
                time.sleep(0.5)
        return self._line

    def broke(self, error: wire.WireError) -> None:
        """Drops the line; the next `line` calls again. Raises NodeError after too much damage."""
        if isinstance(error, wire.Damaged):
            self._damaged += 1
            if self._damaged > MAX_DAMAGED:
                raise NodeError(f"{self._damaged} blocks were damaged on the wire", "damaged",
                                "look at the cable: ethtool -S, ip -s link") from None  # fmt: skip
        self.hang_up()
        # Not faster than this: a giver that always breaks off must not be hammered.
        time.sleep(0.1)

    @property
    def damaged(self) -> int:
        """Gives how many blocks came damaged and were asked for again."""
        return self._damaged

    def stop_if_gone(self) -> None:
        """Raises NodeError (`interrupted`) when nobody waits for this transfer any more."""
        why = self._gone()
        if why:
            raise NodeError(f"the transfer stopped: {why}; it goes on from here when it is run"
                            " again", "interrupted")  # fmt: skip

    def ask(self, message: Json) -> Json:
        """Gives the answer to a request. Raises NodeError (`source`) with the giver's own words."""
        while True:
            line = self.line()
            try:
                line.say(message)
                found, _ = line.hear()
                if found is None:
                    raise wire.WireError("data came where an answer was due")
            except wire.WireError as error:
                self.broke(error)
                continue
            self.progressed()
            if "error" in found:
                raise NodeError(f"the giving node: {found['error']}", "source")
            return found

    def hang_up(self) -> None:
        """Closes the line, if one is open."""
        if self._line is not None:
            self._bytes += self._line.wire_bytes
            self._line.close()
            self._line = None

    def bye(self, error: Optional[str]) -> None:
        """Tells the giver that this peer needs it no longer, once; never raises."""
        if self._over:
            return
        self._over = True
        # A line of its own: the other may be silent for too long by now, or full of blocks.
        self.hang_up()
        with contextlib.suppress(wire.WireError):
            line = wire.call(
                self._place["address"], self._place["port"], self._key, self._place["device"]
            )
            line.say({"bye": error})
            line.close()


def digest_of(path: str, digest: Any) -> int:
    """Adds a file's bytes to a hash; gives their number (0 where there is no file)."""
    count = 0
    try:
        with open(path, "rb", buffering=0) as file:
            for chunk in iter(lambda: file.read(4 << 20), b""):
                digest.update(chunk)
                count += len(chunk)
    except FileNotFoundError:
        pass
    return count


def fetch(peer: Peer, item: int, path: str, want: Optional[str], grown: Grown) -> str:
    """Brings an item into the file at `path`, from where the file ends; gives its sha256.

    `want` is the sha256 that it must have; where it is None, what the giver says in the end.
    `grown` is called with the bytes that came. Raises NodeError: those of Peer, and
    `not_the_same`: the file is removed then.
    """
    running = wire.Running()
    said = _all(peer, item, path, digest_of(path, running), running, grown)
    found = running.hexdigest()
    wanted = want or said.get("sha256")
    if found != wanted:
        os.unlink(path)
        raise NodeError(
            f"{os.path.basename(path)} came as {found[:12]}, its source has {str(wanted)[:12]}",
            "not_the_same",
            "run it again: it is fetched anew",
        )
    return found


def fetch_unhashed(peer: Peer, item: int, path: str, grown: Grown) -> None:
    """Brings an item as `fetch` does, its blocks checked and its sha256 left to who reads it next.

    Docker takes the sha256 of each layer that it registers: a second one here would cost a core.
    """
    offset = os.stat(path).st_size if os.path.exists(path) else 0
    _all(peer, item, path, offset, None, grown)


def _all(
    peer: Peer,
    item: int,
    path: str,
    offset: int,
    running: Optional[wire.Running],
    grown: Grown,
) -> Json:
    """Brings an item's blocks from `offset` on into its file; gives the giver's closing message."""
    # What nobody hashes here is read again at once, from the page cache; weights are not.
    with sink.Sink(path, offset, direct=running is not None) as file:
        said = None
        while said is None:
            line = peer.line()
            try:
                said, offset = _blocks(peer, line, item, file, running, offset, grown)
            except _Broken as broken:
                offset = broken.offset
                peer.broke(broken.error)
        if "error" in said:
            raise NodeError(f"the giving node: {said['error']}", "source")
    return said


class _Broken(Exception):
    """The line broke after `offset` good bytes."""

    def __init__(self, error: wire.WireError, offset: int) -> None:
        super().__init__(str(error))
        self.error, self.offset = error, offset


def _blocks(
    peer: Peer,
    line: wire.Line,
    item: int,
    file: sink.Sink,
    running: Optional[wire.Running],
    offset: int,
    grown: Grown,
) -> Tuple[Json, int]:
    """Asks for an item and writes the blocks that come; gives the closing message and the offset
    reached. Raises _Broken."""
    try:
        line.say({"get": item, "offset": offset, "hashes": running is not None and not offset})
    except wire.WireError as error:
        raise _Broken(error, offset) from None
    checks: Optional[wire.Running] = None
    while True:
        peer.stop_if_gone()
        try:
            said, block = line.hear(checks)
            if said is not None and "checks" in said and (running is None or offset):
                raise wire.WireError("the giver checks by a hash that is not taken here")
        except wire.WireError as error:
            raise _Broken(error, offset) from None
        if said is not None:
            if "checks" in said:
                checks = running
                continue
            if "wait" in said:
                peer.progressed()
                continue
            return said, offset
        if running is not None and checks is None:
            running.update(block)
        file.write(block)
        offset += len(block)
        peer.progressed()
        grown(len(block))
