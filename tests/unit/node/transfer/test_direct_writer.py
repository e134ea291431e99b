"""Where blocks are written: past the page cache where it can be, and always all of them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from node.transfer import protocol
from node.transfer.direct_writer import Sink

PAGE = 4096


def aligned(raw: bytes) -> memoryview:
    """The bytes at the start of a page, as a line's buffer holds them."""
    buffer = mmap.mmap(-1, max(PAGE, len(raw)))
    buffer.write(raw)
    return memoryview(buffer)[: len(raw)]


def test_whole_pages_and_then_the_rest_arrive_in_order(tmp_path: Path) -> None:
    first, rest = os.urandom(4 * PAGE), os.urandom(1000)
    with Sink(str(tmp_path / "f"), 0, direct=True) as file:
        file.write(aligned(first))
        was = file.direct
        file.write(aligned(rest))
        assert not file.direct
    assert (tmp_path / "f").read_bytes() == first + rest
    # /tmp may be a tmpfs of an older kernel, which has no O_DIRECT at all
    fd = os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_DIRECT))
    except OSError:
        assert not was
    else:
        assert was


def test_bytes_anywhere_in_memory_and_any_offset_arrive(tmp_path: Path) -> None:
    """What came compressed lies where Python put it; a part may end anywhere."""
    raw = os.urandom(3 * PAGE + 7)
    (tmp_path / "f").write_bytes(raw[:777])
    with Sink(str(tmp_path / "f"), 777, direct=True) as file:
        file.write(raw[777:5000])
        file.write(memoryview(raw)[5000:])
    assert (tmp_path / "f").read_bytes() == raw


def test_a_write_that_fails_is_raised_at_the_latest_at_the_end(small_disk: Path) -> None:
    path = small_disk / "f"
    most = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    block = aligned(os.urandom(1 << 20))
    with pytest.raises(OSError, match="No space left"), Sink(str(path), 0, direct=True) as file:
        for _ in range(most // len(block) + 1):
            file.write(block)
    assert path.read_bytes()[: len(block)] == bytes(block)


def test_a_running_hash_takes_what_is_right_and_nothing_else() -> None:
    giver, taker = protocol.RunningDigest(), protocol.RunningDigest()
    word = giver.sent(b"one")
    assert not taker.came(b"onf", word)
    assert taker.came(b"one", word)
    assert taker.came(b"two", giver.sent(b"two"))
    assert taker.hexdigest() == giver.hexdigest()
