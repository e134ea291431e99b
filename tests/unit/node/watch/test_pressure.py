"""Memory that runs out is told before it has, once; what is usual in use is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from node.watch import pressure
from tests.unit.node.support.host import Host
from tests.unit.node.support.servers import completion, serving
from tests.unit.node.support.watched import Rig

GIB = 1 << 30
TOTAL = 122 * GIB
Row = tuple[float, float, float | None]
# (seconds since the start, GiB available, per cent stalled) of looks in a row, and what is told
CASES: dict[str, tuple[list[Row], list[str]]] = {
    # an engine that serves on a GB10
    "in use": ([(60 * n, 6.5, 0.0) for n in range(10)], []),
    # a load takes 100 GiB in minutes and then stays
    "a load": ([(0, 110, 0), (60, 70, 0), (120, 30, 0), (180, 8, 1), (240, 7, 0), (300, 7, 0)], []),
    "low": ([(0, 7, 0), (60, 3, 0), (120, 3.5, 0), (180, 3, 0)], ["memory runs out: 3072 of"]),
    "stalled": ([(0, 9, 2), (60, 9, 12.5)], ["12 % of the last minute"]),
    "falling": ([(0, 11, 0), (60, 10, 0), (120, 9, 0), (180, 8, 0), (240, 7, 0)],
                ["gone within 10 min"]),
    "slowly": ([(0, 12, 0), (60, 11.9, 0), (120, 11.8, 0), (180, 11.7, 0), (240, 11.6, 0)], []),
    "over": ([(0, 3, 0), (60, 5, 0), (120, 7, 0), (180, 7, 0)],
             ["memory runs out", "memory is there again: 7168"]),
    "no PSI": ([(0, 7, None), (60, 2, None)], ["memory runs out: 2048 of 124928 MiB available"]),
    # the watch was off for an hour: no trend
    "off": ([(0, 100, 0), (4000, 9, 0), (8000, 8, 0), (12000, 7, 0), (16000, 6.9, 0)], []),
    # a clock that was set back
    "back": ([(9000, 11, 0), (60, 10.5, 0), (0, 10, 0)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_told_and_what_is_not(name: str) -> None:
    looks, wanted = CASES[name]
    state, told = pressure.fresh(), []
    for at, gib, stalled in looks:
        seen = {"available": int(gib * GIB), "total": TOTAL, "stalled": stalled}
        state, text = pressure.judge(state, seen, 1_790_000_000.0 + at)
        told += [text] if text else []
    assert len(told) == len(wanted), told
    assert all(words in text for words, text in zip(wanted, told, strict=True)), told


def test_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n")
    assert pressure.read(str(tmp_path)) == {"available": 1 << 19, "total": 1 << 20, "stalled": None}
    (tmp_path / "pressure").mkdir()
    # Debian 12 (Documentation/accounting/psi.rst)
    (tmp_path / "pressure/memory").write_text(
        "some avg10=0.22 avg60=0.17 avg300=1.11 total=58761459\n"
        "full avg10=0.23 avg60=0.16 avg300=1.08 total=58556450\n"
    )
    found: Any = pressure.read(str(tmp_path))
    assert found["stalled"] == 0.16
    shutil.rmtree(tmp_path)
    assert pressure.read(str(tmp_path)) is None


def test_the_watch_tells_it_once_and_again_when_it_is_over(host: Host) -> None:
    with (
        serving(lambda body: (200, completion())) as endpoint,
        serving(lambda body: (200, {})) as hook,
    ):
        rig = Rig(host, endpoint, hook)
        assert rig.look() == ""
        rig.memory(2000)
        assert "lab1 of lab: memory runs out: 2000 of 124928 MiB" in rig.look()
        assert rig.look() == ""
        rig.memory(9000)
        assert "memory is there again" in rig.look()
        assert [notice["status"] for notice in hook.got] == ["memory-low", "memory-ok"]
