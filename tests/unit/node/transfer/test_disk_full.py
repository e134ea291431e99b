"""Weights for a disk that cannot hold them: told before, or found in the middle of a transfer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.node.support.transfers import Ends, answer, content, files, slow, wait_for

MIB = 1 << 20


@pytest.fixture
def ends(ends: Ends) -> Iterator[Ends]:
    """A giver, and a taker whose folder is a small disk of its own; needs root."""
    target = ends.target
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", str(target)], check=True)
    yield ends
    subprocess.run(["umount", "-l", str(target)], check=True)


def fill(path: Path) -> None:
    """Takes what room there is on the disk of `path`."""
    with path.open("wb") as file:
        size, step = 0, 64 * MIB
        while step >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError:
                step //= 2


def test_no_room_is_told_before_anything_comes(ends: Ends) -> None:
    """600 MB hold 20 MiB beside the 512 MiB that stay free, and not 100 MiB."""
    files(ends.source, a_bin=20 * MIB)
    with (ends.source / "b.bin").open("wb") as file:
        file.truncate(100 * MIB)
    with ends.offering():
        got = ends.taker.call("weights receive", ends.receive())
    assert (got["ok"], got["code"]) == (False, "no_room"), got
    assert f"{ends.target} has 0.63 GB free, the transfer needs 0.66 GB" in got["error"]
    assert f"df -h {ends.target};" in got["remedy"] and "docker" not in got["remedy"]
    assert content(ends.target) == {} and not ends.parts()
    (ends.source / "b.bin").unlink()
    got, _ = ends.move()
    assert got["ok"] and content(ends.target) == content(ends.source)


def test_a_disk_that_fills_in_the_middle_leaves_no_half_file_and_goes_on(ends: Ends) -> None:
    made = files(ends.source, a_bin=40 * MIB)
    with ends.meddled(slow), ends.offering():
        taker = ends.start(ends.taker, "weights receive", ends.receive())
        wait_for(lambda: ends.part_bytes() > 2 * MIB)
        fill(ends.target / "other")
        got = answer(taker, 60)
    assert not got["ok"] and "No space left" in got["error"], got
    assert "a.bin" not in content(ends.target) and ends.part_bytes() > 2 * MIB
    (ends.target / "other").unlink()
    got, _ = ends.move()
    assert got["ok"] and got["resumed_bytes"] > 2 * MIB and content(ends.target) == made
