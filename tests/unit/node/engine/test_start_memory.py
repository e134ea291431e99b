"""What a start takes of a unified memory, of its note and of what vLLM then logs.

The lines: of a GB10 that started (0.83, 105.9 GiB seen) in a public page about its KV cache, of one
that did not in eugr/spark-vllm-docker#257, and of GLM-5.3-Flash-EXL3-2x#47.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from node.core import proc
from node.engine import start_memory
from node.rules.memory_need import GIB
from node.snapshot import memory, unit_log
from node.snapshot import start_memory as kept
from tests.unit.node.support.enginefile import UNIT, engine

STARTED = (
    "(Worker_TP0 pid=77) INFO 09-13 10:11:12 [gpu_worker.py:789] Free memory on device "
    "(105.9/121.69 GiB) on startup. Desired GPU memory utilization is (0.83, 101.0 GiB). Actual "
    "usage is 91.5 GiB"
)
REFUSED = (
    "ValueError: Free memory on device cuda:0 (102.2/121.69 GiB) on startup is less than desired "
    "GPU memory utilization (0.87, 105.87 GiB)."
)
FOREIGN = (
    "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired "
    "GPU memory utilization (0.85, 103.38 GiB)."
)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the unit logs in the time that is asked for; the state lies in a folder of the test."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    lines: list[str] = []

    def between(unit: str, since: int, until: int) -> list[str]:
        assert unit == UNIT and until == since + 30, "no longer than the start may take"
        return lines

    monkeypatch.setattr(unit_log, "between", between)
    return lines


@pytest.mark.parametrize(
    ("line", "taken"),
    [(STARTED, 110.8 - 105.9), (REFUSED, 110.8 - 102.2), (FOREIGN, None), ("loading", None)],
)
def test_a_start_is_measured_once(logged: list[str], line: str, taken: float | None) -> None:
    assert kept.taken() is None
    start_memory.note(int(110.8 * GIB))
    logged += ["Starting", line, "more"]
    start_memory.measure(engine())
    found = kept.taken()
    assert (found is None) == (taken is None)
    assert found is None or found == pytest.approx(taken and taken * GIB, abs=2)
    logged[:] = [REFUSED]
    start_memory.measure(engine())
    assert kept.taken() == found, "the note is used up"


def test_a_start_that_says_nothing_leaves_the_last_measurement(logged: list[str]) -> None:
    start_memory.note(110 * GIB)
    logged.append(REFUSED)
    start_memory.measure(engine())
    before = kept.taken()
    start_memory.note(111 * GIB)
    logged.clear()
    start_memory.measure(engine())
    assert before is not None and kept.taken() == before


def test_no_note_no_file(logged: list[str], tmp_path: Path) -> None:
    """A host with cards, or without GPUs, keeps nothing."""
    start_memory.measure(engine())
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_cannot_be_written_does_not_stop_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("")
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    start_memory.note(GIB)
    start_memory.measure(engine())
    assert "start-memory.json" in "".join(capfd.readouterr())


def test_the_memory_section_has_it_and_what_no_category_holds(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_memory.note(110 * GIB)
    logged.append(REFUSED)
    start_memory.measure(engine())
    rows = {
        "MemTotal": 1000, "MemFree": 100, "MemAvailable": 300, "Buffers": 10, "Cached": 200,
        "SwapCached": 1, "Shmem": 50, "Dirty": 0, "SwapTotal": 0, "SwapFree": 0, "AnonPages": 80,
        "Slab": 20, "KernelStack": 2, "PageTables": 3, "VmallocUsed": 4, "Mapped": 60,
    }  # fmt: skip
    text = "".join(f"{name}: {size} kB\n" for name, size in rows.items())
    monkeypatch.setattr(proc, "read_text", lambda path: text)
    seen = memory.read()
    assert seen["start_took"] == kept.taken()
    assert seen["unaccounted"] == (1000 - 100 - 10 - 200 - 1 - 80 - 20 - 2 - 3 - 4) * 1024
