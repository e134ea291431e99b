"""Weights pass by the page cache: what was not in it before is not in it after, and what was there,
which a live engine may read from, stays (incident C11)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.files import cold_read
from node.snapshot import weights as weights_section
from tests.unit.node.support.residency import empty, resident
from tests.unit.node.support.transfers import Ends, files

MIB = 1 << 20
SIZE = 96 * MIB
# what readahead may leave behind the last byte that was asked for
SLACK = 8 * MIB


def given(ends: Ends, source: Path) -> None:
    got, gave = ends.move(streams=1)
    assert got["ok"] and gave["ok"] and (ends.target / source.name).stat().st_size == SIZE


def hashed(ends: Ends, source: Path) -> None:
    assert ends.giver.call("weights hash", {"path": str(ends.source), "again": True})["ok"]


def looked_at(ends: Ends, source: Path) -> None:
    (row,) = weights_section.read([str(ends.source)], deep=True)
    assert row["files"][0]["sha256"]


READERS: dict[str, Callable[[Ends, Path], None]] = {
    "given": given, "hashed": hashed, "a deep snapshot": looked_at,
}  # fmt: skip


@pytest.mark.parametrize("how", READERS)
def test_what_is_read_is_not_left_in_the_page_cache(ends: Ends, how: str) -> None:
    files(ends.source, a_bin=SIZE)
    source = ends.source / "a.bin"
    empty(source)
    READERS[how](ends, source)
    assert resident(source) <= SLACK


@pytest.mark.parametrize("how", READERS)
def test_what_a_live_engine_has_there_stays(ends: Ends, how: str) -> None:
    """Half of the file was read by somebody, and a page behind it is mapped."""
    files(ends.source, a_bin=SIZE)
    source = ends.source / "a.bin"
    empty(source)
    with source.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert len(file.read(SIZE // 2)) == SIZE // 2
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            # no readahead, which would still be under way when the reading begins
            mapped.madvise(mmap.MADV_RANDOM)
            assert mapped[SIZE - 40 * MIB] >= 0
            before = resident(source)
            assert before >= SIZE // 2
            READERS[how](ends, source)
            # the kernel may take a little of it back meanwhile, and we would take half
            assert before - SLACK <= resident(source) <= before + SLACK


def test_what_came_is_not_left_in_the_page_cache(ends: Ends) -> None:
    made = files(ends.source, a_bin=SIZE, b_bin=5 * MIB + 7)
    assert ends.move()[0]["ok"]
    assert resident(*(ends.target / name for name in made)) <= MIB


def test_a_part_that_is_read_again_is_not_left_there(ends: Ends) -> None:
    files(ends.source, a_bin=SIZE)
    ends.killed_taker(SIZE // 2)
    (part,) = ends.parts()
    empty(part)
    assert ends.move()[0]["resumed_bytes"] > SIZE // 2
    assert resident(ends.target / "a.bin") <= SLACK


def test_where_the_kernel_does_not_tell_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is not absent: the pages may be the engine's."""
    files(tmp_path, a_bin=8 * MIB)
    path = tmp_path / "a.bin"
    monkeypatch.setattr(cold_read, "_residency", lambda fd, start, size: None)
    with path.open("rb") as file, cold_read.Passing(file.fileno()) as passing:
        before = resident(path)
        passing.upto(len(file.read()))
    assert resident(path) == before == 8 * MIB
