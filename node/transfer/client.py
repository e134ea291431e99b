"""The taking end of a transfer: an item into a file, block by block, over a line that may break.

What is in the file is always a correct beginning of the item: a block is written once its checksum
holds. A line that breaks is called again from there; a process that was killed goes on from there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from node.core import dirfd
from node.core.errors import Json, NodeError
from node.transfer import protocol

# Where the blocks of a transfer go: the end of a file, past the page cache where that is possible.
#
# 150 GB of weights that pass through the page cache push out everything else, and on a machine
# whose
# GPU shares the memory they are taken from what the engine asks for (incident C11).


class Sink:
    """A file that is written from `offset` on, made where it is not there; a context manager.

    `dir_fd`: the folder that `path` is in, where it is a bare name.
    `direct`: try to write past the page cache (O_DIRECT). What cannot be written so, because the
    filesystem does not do it or the end of a file is no whole sector, goes through the cache. Such
    a write waits for the disk, so a thread does it while the next block comes: one block at most is
    on its way, and what fails is raised by the next write, or at the end.
    """

    def __init__(self, path: str, offset: int, direct: bool, dir_fd: int | None = None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = -1
        self._writer = ThreadPoolExecutor(1) if direct else None
        self._pending: Future[None] | None = None
        self._direct = direct and hasattr(os, "O_DIRECT")
        if self._direct:
            try:
                self._fd = os.open(path, flags | os.O_DIRECT, 0o600, dir_fd=dir_fd)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
        if self._fd < 0:
            self._fd = os.open(path, flags, 0o600, dir_fd=dir_fd)
        os.lseek(self._fd, offset, os.SEEK_SET)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self._settle()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
            os.close(self._fd)

    @property
    def direct(self) -> bool:
        """Gives whether the next block is tried past the page cache. Raises OSError."""
        self._settle()
        return self._direct

    def write(self, block: protocol.Bytes) -> None:
        """Takes a block, which stays as it is until the next call has returned. Raises OSError."""
        self._settle()
        if self._writer is None:
            self._whole(block)
        else:
            self._pending = self._writer.submit(self._whole, block)

    def _settle(self) -> None:
        """Waits for the block that is on its way. Raises OSError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _whole(self, block: protocol.Bytes) -> None:
        left = memoryview(block)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._cached()

    def _cached(self) -> None:
        """From here on through the page cache: the rest is not aligned as the disk wants it."""
        self._direct = False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)


# How long a link may be away before the transfer gives up (less than the giver's IDLE_S).
PATIENCE_S = 60.0
MAX_DAMAGED = 20
# A giver that hangs up on the key may only have lost the line in between: it is asked again.
MAX_REFUSED = 3
# Between two calls of a giver that is not there: it may be starting, so soon at first.
_SOONEST_S, _LATEST_S = 0.02, 0.5
# How long a giver that does not answer yet is told that it is no longer needed.
_BYE_S = 20.0
# Told to a giver that waits while this end reads what it has: less than wire.SILENCE_S.
_HERE_EVERY_S = 5.0
Grown = Callable[[int], None]
Write = Callable[[memoryview], None]


class Peer:
    """The giving node, called when needed and called again when the line broke."""

    def __init__(self, place: Json, key: str, gone: Callable[[], str | None]) -> None:
        self._place, self._key, self._gone = place, key, gone
        self._line: protocol.Connection | None = None
        self._damaged = 0
        self._last = time.monotonic()
        self._bytes = 0
        self._over = False
        self._told = time.monotonic()

    @property
    def wire_bytes(self) -> int:
        """Gives the bytes that came over the wire."""
        return self._bytes + (self._line.wire_bytes if self._line else 0)

    def progressed(self) -> None:
        """Notes that something came: patience starts anew."""
        self._last = time.monotonic()

    def line(self) -> protocol.Connection:
        """Gives the line; calls until the patience is over.

        Raises NodeError: `wrong_key` at once, `no_peer` when nobody answers, `interrupted`.
        """
        pause, refused = _SOONEST_S, 0
        while self._line is None:
            self.stop_if_gone()
            try:
                self._line = protocol.connect(
                    self._place["address"], self._place["port"], self._key, self._place["device"]
                )
            except protocol.Refused as error:
                refused += 1
                if refused == MAX_REFUSED or not isinstance(error, protocol.HandshakeAborted):
                    self._over = True  # whoever listens there does not wait for this peer
                    raise NodeError(str(error), "wrong_key", "run the deploy again") from None
            except protocol.WireError as error:
                self._out_of_patience(error)
            if self._line is None:
                time.sleep(pause)
                pause = min(_LATEST_S, 2 * pause)
        return self._line

    def _out_of_patience(self, error: protocol.WireError) -> None:
        """Raises NodeError (`no_peer`) when nothing has come for too long."""
        if time.monotonic() - self._last > PATIENCE_S:
            self._over = True  # nor would it hear that it is not needed
            device = self._place["device"]
            way = f" out of {device}" if device else ""
            raise NodeError(f"{error}{way}; tried for {PATIENCE_S:g} s", "no_peer",
                            f"ip route get {self._place['address']}") from None  # fmt: skip

    def broke(self, error: protocol.WireError) -> None:
        """Drops the line; the next `line` calls again. Raises NodeError after too much damage."""
        if isinstance(error, protocol.Damaged):
            self._damaged += 1
            if self._damaged > MAX_DAMAGED:
                raise NodeError(f"{self._damaged} blocks were damaged on the wire", "damaged",
                                "look at the cable: ethtool -S, ip -s link") from None  # fmt: skip
        self.hang_up()
        # One that greets and then always breaks off is as good as none.
        self._out_of_patience(error)
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
        """Gives the answer to a request, however long the giver reads for it. Raises NodeError
        (`source`) with the giver's own words."""
        while True:
            line = self.line()
            try:
                line.send_message(message)
                found, _ = line.receive()
                while found is not None and "wait" in found:
                    self.progressed()
                    self.stop_if_gone()
                    found, _ = line.receive()
                if found is None:
                    raise protocol.WireError("data came where an answer was due")
            except protocol.WireError as error:
                self.broke(error)
                continue
            self.progressed()
            if "error" in found:
                raise NodeError(f"the giving node: {found['error']}", "source")
            return found

    def here(self) -> None:
        """Tells a giver that this peer is alive and needs nothing at the moment."""
        if time.monotonic() - self._told < _HERE_EVERY_S:
            return
        self._told = time.monotonic()
        line = self.line()
        try:
            line.send_message({"wait": True})
        except protocol.WireError as error:
            self.broke(error)
        self.progressed()

    def hang_up(self) -> None:
        """Closes the line, if one is open."""
        if self._line is not None:
            self._bytes += self._line.wire_bytes
            self._line.close()
            self._line = None

    def bye(self, error: str | None) -> None:
        """Tells the giver that this peer needs it no longer, once; never raises."""
        if self._over:
            return
        self._over = True
        # A line of its own: the other may be silent for too long by now, or full of blocks.
        self.hang_up()
        until = time.monotonic() + _BYE_S
        while not self._said_bye(error):
            # One that refuses at once may be faster than the giver's start.
            if self._gone() or time.monotonic() > until:
                return
            time.sleep(_LATEST_S)

    def _said_bye(self, error: str | None) -> bool:
        with contextlib.suppress(protocol.WireError):
            line = protocol.connect(
                self._place["address"], self._place["port"], self._key, self._place["device"]
            )
            line.send_message({"bye": error})
            line.close()
            return True
        return False


def digest_of(
    path: str,
    digest: Any,
    tick: Callable[[], None] = lambda: None,
    dir_fd: int | None = None,
) -> int:
    """Adds a file's bytes to a hash, with a `tick` now and then; gives their number.

    0 where there is no file.
    """
    count = 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return 0
    with os.fdopen(fd, "rb", buffering=0) as file, dirfd.Passing(fd) as passing:
        for chunk in iter(lambda: file.read(4 << 20), b""):
            digest.update(chunk)
            count += len(chunk)
            passing.upto(count)
            tick()
    return count


def fetch(
    peer: Peer, item: int, path: str, size: int, want: str | None, grown: Grown, dir_fd: int | None
) -> str:
    """Brings an item of `size` bytes into the file at `path`, from where the file ends; gives its
    sha256.

    `want` is the sha256 that it must have; where it is None, what the giver says in the end.
    `grown` is called with the bytes that came; `dir_fd` is the folder where `path` is a bare name.
    Raises NodeError: those of Peer, and `not_the_same`: the file is removed then.
    """
    _remove_too_long(path, size, dir_fd)
    running = protocol.RunningDigest()

    def here() -> None:
        peer.stop_if_gone()
        peer.here()

    # What a killed run left may be 40 GB: the giver is told meanwhile that somebody is there.
    offset = digest_of(path, running, here, dir_fd)
    said = _fetch_with_retries(peer, item, path, (offset, size), running, grown, dir_fd)
    found = running.hexdigest()
    wanted = want or said.get("sha256")
    if found != wanted:
        os.unlink(path, dir_fd=dir_fd)
        raise NodeError(
            f"what came is {found[:12]}, its source says {str(wanted)[:12]}",
            "not_the_same",
            "run it again, it is fetched anew; a second time: deploys/weights.py --data "
            "verify=true reads the source's own files",
        )
    return found


def fetch_without_digest(peer: Peer, item: int, path: str, size: int, grown: Grown) -> None:
    """Brings an item as `fetch` does, its blocks checked and its sha256 left to who reads it next.

    Docker takes the sha256 of each layer that it registers: a second one here would cost a core.
    """
    _remove_too_long(path, size, None)
    offset = os.stat(path).st_size if os.path.exists(path) else 0
    _fetch_with_retries(peer, item, path, (offset, size), None, grown, None)


def _remove_too_long(path: str, size: int, dir_fd: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_size > size:
            os.unlink(path, dir_fd=dir_fd)


def _fetch_with_retries(
    peer: Peer,
    item: int,
    path: str,
    span: tuple[int, int],
    running: protocol.RunningDigest | None,
    grown: Grown,
    dir_fd: int | None,
) -> Json:
    """Brings an item's blocks of `span` (first byte, end) into its file; gives the giver's closing
    message. Raises NodeError; `not_the_same`, and the file is removed, where another number came.
    """
    # What nobody hashes here is read again at once, from the page cache; weights are not.
    with Sink(path, span[0], running is not None, dir_fd) as file:
        try:
            return pass_on(peer, item, file.write, span, running, grown)
        except NodeError as error:
            if error.code == "not_the_same":
                os.unlink(path, dir_fd=dir_fd)
            raise


def pass_on(
    peer: Peer,
    item: int,
    write: Write,
    span: tuple[int, int],
    running: protocol.RunningDigest | None = None,
    grown: Grown = lambda _: None,
) -> Json:
    """Hands an item's blocks from the first byte of `span` to its end on, over as many lines as it
    takes; gives the giver's closing message. Raises what `write` does, and NodeError."""
    offset, size = span
    said = None
    while said is None:
        line = peer.line()
        try:
            said, offset = _blocks(peer, line, item, write, running, (offset, size), grown)
        except _LineBroke as broken:
            offset = broken.offset
            peer.broke(broken.error)
    if "error" in said:
        raise NodeError(f"the giving node: {said['error']}", "source")
    if offset != size:
        least = "more than " if offset > size else ""
        raise NodeError(f"{least}{min(offset, size)} bytes came, the giving node said {size} bytes",
                        "not_the_same", "run it again: it is fetched anew")  # fmt: skip
    return said


class _LineBroke(Exception):
    """The line broke after `offset` good bytes."""

    def __init__(self, error: protocol.WireError, offset: int) -> None:
        super().__init__(str(error))
        self.error, self.offset = error, offset


def _blocks(
    peer: Peer,
    line: protocol.Connection,
    item: int,
    write: Write,
    running: protocol.RunningDigest | None,
    span: tuple[int, int],
    grown: Grown,
) -> tuple[Json, int]:
    """Asks for an item and writes the blocks that come, up to its end; gives the closing message
    and the offset reached, which is beyond the end where more came. Raises _LineBroke."""
    offset, size = span
    try:
        line.send_message(
            {"get": item, "offset": offset, "hashes": running is not None and not offset}
        )
    except protocol.WireError as error:
        raise _LineBroke(error, offset) from None
    checks: protocol.RunningDigest | None = None
    while True:
        peer.stop_if_gone()
        try:
            said, block = line.receive(checks)
            if said is not None and "checks" in said and (running is None or offset):
                raise protocol.WireError("the giver checks by a hash that is not taken here")
        except protocol.WireError as error:
            raise _LineBroke(error, offset) from None
        if said is not None:
            if "checks" in said:
                checks = running
                continue
            if "wait" in said:
                peer.progressed()
                continue
            return said, offset
        if offset + len(block) > size:
            return {}, offset + len(block)
        if running is not None and checks is None:
            running.update(block)
        write(block)
        offset += len(block)
        peer.progressed()
        grown(len(block))
