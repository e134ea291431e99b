"""The memory that a start needs: on unified memory, on cards, and without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine import before_start, memory_need, prelaunch
from node.engine.config import Engine
from node.snapshot import gpus, memory, start_memory
from tests.unit.node.support.enginefile import engine

GIB = 1 << 30


def system(
    monkeypatch: pytest.MonkeyPatch,
    available: float,
    free: float = 1,
    lost: int = 0,
    took: int | None = None,
) -> None:
    """A host with this much memory, of 120 GiB."""
    seen = {"total": 120 * GIB, "available": int(available * GIB), "free": int(free * GIB),
            "page_cache": 0, "shmem": 0, "unaccounted": lost * GIB,
            "start_took": None if took is None else took * GIB}  # fmt: skip
    monkeypatch.setattr(memory, "read", lambda: seen)


def cards(
    monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, int | None, int | None], reserved: int = 0
) -> None:
    """GPUs: name, total and free MiB; the driver keeps `reserved` of each."""
    found = [
        {"index": n, "uuid": f"GPU-{n}", "name": name, "memory_total_mib": total,
         "memory_used_mib": None if total is None or free is None else total - reserved - free,
         "memory_free_mib": free}
        for n, (name, total, free) in enumerate(rows)
    ]  # fmt: skip
    holder = {"gpu_uuid": "GPU-0", "pid": 7, "process_name": "python3", "used_mib": 15000}
    monkeypatch.setattr(gpus, "read", lambda: {"gpus": found, "processes": [holder]})


def gpu_engine(count: int, **more: object) -> Engine:
    need = {"gpu_memory_utilization": 0.9, "gpus": count, "cpu_bytes": 0, **more}
    return engine(needs_nvidia=True, memory=need)


def test_memory_of_a_gb10_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=109)
    assert memory_need.shortage(gpu_engine(1)) is None
    system(monkeypatch, available=107.9)
    short = memory_need.shortage(gpu_engine(1))
    assert short and "107.90 GiB available, 108.00 GiB needed" in short.evidence


@pytest.mark.parametrize(("lost", "holds", "told"), [(83, 0, True), (4, 0, False), (83, 1, False)])
def test_memory_that_nobody_holds_needs_a_reboot(
    monkeypatch: pytest.MonkeyPatch, lost: int, holds: int, told: bool
) -> None:
    """After failed starts (eugr/spark-vllm-docker#257), not beside a process that may end."""
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    report = gpus.read()
    monkeypatch.setattr(gpus, "read", lambda: {**report, "processes": report["processes"][:holds]})
    system(monkeypatch, available=104, lost=lost)
    short = memory_need.shortage(gpu_engine(1))
    assert short is not None
    assert ("no process holds 83.00 GiB: only a reboot" in short.evidence) == told


@pytest.mark.parametrize(("took", "told"), [(None, False), (1, False), (2, True)])
def test_a_start_that_may_take_what_it_needs_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, took: int | None, told: bool
) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=109, took=took)
    assert memory_need.shortage(gpu_engine(1)) is None
    said = memory_need.margin(gpu_engine(1))
    assert ("2.00 GiB of it went to the last start" in (said or "")) == told
    assert memory_need.margin(engine()) is None, "an engine without GPUs has no such start"


def test_memory_of_a_card_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    system(monkeypatch, available=0)
    cards(monkeypatch, ("RTX", 16000, 14400), ("RTX", 16000, 14399))
    assert memory_need.shortage(gpu_engine(1)) is None
    short = memory_need.shortage(gpu_engine(2))
    assert short and "GPU 1 (RTX): 14399 of 16000 MiB free, 14400 MiB needed" in short.evidence
    assert "no listed process" in short.evidence
    cards(monkeypatch, ("NVIDIA H200", 143771, 128840), reserved=616)
    assert memory_need.shortage(gpu_engine(1)) is None, "0.9 of 143771 would be 129394"
    cards(monkeypatch, ("RTX", 16000, 100))
    short = memory_need.shortage(gpu_engine(1))
    assert short and "held by: pid 7 python3 15000 MiB" in short.evidence
    cards(monkeypatch, ("RTX", None, None))
    assert memory_need.shortage(gpu_engine(1)) and memory_need.shortage(gpu_engine(2))


@pytest.mark.parametrize("chosen", [["1"], ["GPU-1"], ["2", "1"]])
def test_only_the_gpus_that_the_engine_gets_count(
    monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    """Another service fills GPU 0: that is none of ours."""
    cards(monkeypatch, ("RTX", 16000, 100), ("RTX", 16000, 16000), ("RTX", 16000, 16000))
    assert memory_need.shortage(gpu_engine(1, devices=chosen)) is None
    assert memory_need.shortage(gpu_engine(1, devices=["0"]))
    gone = memory_need.shortage(gpu_engine(1, devices=["7"]))
    assert gone and "0 GPUs for 1 ranks" in gone.evidence


def test_memory_of_a_rig_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    need = {"gpu_memory_utilization": 0.9, "gpus": 0, "cpu_bytes": 3 * GIB}
    system(monkeypatch, available=3)
    assert memory_need.shortage(engine(memory=need)) is None
    system(monkeypatch, available=2.9)
    assert memory_need.shortage(engine(memory=need))


@pytest.mark.parametrize(("free", "dropped"), [(107, True), (109, False)])
def test_the_cache_is_dropped_where_it_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, dropped: bool
) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=115, free=free)
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(before_start, "drop_caches",
                        lambda found, need: str(asked.append((found.container, need))))  # fmt: skip
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    prelaunch.make_room(gpu_engine(1))
    assert asked == ([("rigbook-engine", 108 * GIB)] if dropped else [])
    assert start_memory.load()["available"] == 115 * GIB
