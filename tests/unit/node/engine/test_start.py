"""The memory that a start needs: on unified memory, on cards, and without GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node import gpus, units
from node.core import proc
from node.core.errors import CannotRead
from node.engine import start
from node.engine.config import Engine
from node.rules.engine import GIB as engine_GIB
from tests.unit.node.support.host import UNIT as host_UNIT
from tests.unit.node.support.host import change, engine
from tests.unit.node.support.reap_world import TITLE, UNIT, World

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
    monkeypatch.setattr(gpus, "read_memory", lambda: seen)


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
    monkeypatch.setattr(gpus, "read_gpus", lambda: {"gpus": found, "processes": [holder]})


def gpu_engine(count: int, **more: object) -> Engine:
    need = {"gpu_memory_utilization": 0.9, "gpus": count, "cpu_bytes": 0, **more}
    return engine(needs_nvidia=True, memory=need)


def test_memory_of_a_gb10_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=109)
    assert start.shortage(gpu_engine(1)) is None
    system(monkeypatch, available=107.9)
    short = start.shortage(gpu_engine(1))
    assert short and "107.90 GiB available, 108.00 GiB needed" in short.evidence


@pytest.mark.parametrize(("lost", "holds", "told"), [(83, 0, True), (4, 0, False), (83, 1, False)])
def test_memory_that_nobody_holds_needs_a_reboot(
    monkeypatch: pytest.MonkeyPatch, lost: int, holds: int, told: bool
) -> None:
    """After failed starts (eugr/spark-vllm-docker#257), not beside a process that may end."""
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    report = gpus.read_gpus()
    monkeypatch.setattr(
        gpus, "read_gpus", lambda: {**report, "processes": report["processes"][:holds]}
    )
    system(monkeypatch, available=104, lost=lost)
    short = start.shortage(gpu_engine(1))
    assert short is not None
    assert ("no process holds 83.00 GiB: only a reboot" in short.evidence) == told


@pytest.mark.parametrize(("took", "told"), [(None, False), (1, False), (2, True)])
def test_a_start_that_may_take_what_it_needs_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, took: int | None, told: bool
) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=109, took=took)
    assert start.shortage(gpu_engine(1)) is None
    said = start.memory_margin(gpu_engine(1))
    assert ("2.00 GiB of it went to the last start" in (said or "")) == told
    assert start.memory_margin(engine()) is None, "an engine without GPUs has no such start"


def test_memory_of_a_card_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    system(monkeypatch, available=0)
    cards(monkeypatch, ("RTX", 16000, 14400), ("RTX", 16000, 14399))
    assert start.shortage(gpu_engine(1)) is None
    short = start.shortage(gpu_engine(2))
    assert short and "GPU 1 (RTX): 14399 of 16000 MiB free, 14400 MiB needed" in short.evidence
    assert "no listed process" in short.evidence
    cards(monkeypatch, ("NVIDIA H200", 143771, 128840), reserved=616)
    assert start.shortage(gpu_engine(1)) is None, "0.9 of 143771 would be 129394"
    cards(monkeypatch, ("RTX", 16000, 100))
    short = start.shortage(gpu_engine(1))
    assert short and "held by: pid 7 python3 15000 MiB" in short.evidence
    cards(monkeypatch, ("RTX", None, None))
    assert start.shortage(gpu_engine(1)) and start.shortage(gpu_engine(2))


@pytest.mark.parametrize("chosen", [["1"], ["GPU-1"], ["2", "1"]])
def test_only_the_gpus_that_the_engine_gets_count(
    monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    """Another service fills GPU 0: that is none of ours."""
    cards(monkeypatch, ("RTX", 16000, 100), ("RTX", 16000, 16000), ("RTX", 16000, 16000))
    assert start.shortage(gpu_engine(1, devices=chosen)) is None
    assert start.shortage(gpu_engine(1, devices=["0"]))
    gone = start.shortage(gpu_engine(1, devices=["7"]))
    assert gone and "0 GPUs for 1 ranks" in gone.evidence


def test_memory_of_a_rig_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    need = {"gpu_memory_utilization": 0.9, "gpus": 0, "cpu_bytes": 3 * GIB}
    system(monkeypatch, available=3)
    assert start.shortage(engine(memory=need)) is None
    system(monkeypatch, available=2.9)
    assert start.shortage(engine(memory=need))


@pytest.mark.parametrize(("free", "dropped"), [(107, True), (109, False)])
def test_the_cache_is_dropped_where_it_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, dropped: bool
) -> None:
    cards(monkeypatch, ("NVIDIA GB10", None, None))
    system(monkeypatch, available=115, free=free)
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(start, "drop_caches",
                        lambda found, need: str(asked.append((found.container, need))))  # fmt: skip
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    start.make_room(gpu_engine(1))
    assert asked == ([("rigbook-engine", 108 * GIB)] if dropped else [])
    assert gpus.load_start_memory()["available"] == 115 * GIB


# caches: dropped once, only when a need is not met, and never while an engine loads or runs.

NEVER = 1 << 49
CODE = """
import json, sys
from node.engine import start
from node.core.errors import NodeError
start.DROP = "SWITCH"  # a double: this machine's stay
try:
    print(json.dumps(start.caches(json.load(sys.stdin))))
except NodeError as error:
    print(json.dumps(error.as_json()))
"""


def call(world: World, **more: object) -> dict[str, object]:
    """The verb's answer, with the world's switch."""
    world.file("drop_caches", "")
    return switched(world, change=change(), **more)


def switched(world: World, **more: object) -> dict[str, object]:
    """The verb's answer, with the world's switch as it is."""
    code = CODE.replace("SWITCH", str(world.root / "drop_caches"))
    return world.code(code, more)


def dropped(world: World) -> str:
    """What was written to the switch."""
    return (world.root / "drop_caches").read_text()


def test_dropped_once_with_the_memory_before_and_after(world: World) -> None:
    answer = call(world, need_available_bytes=NEVER)
    assert (answer["verdict"], answer["met"], dropped(world)) == ("dropped", False, "3\n")
    step = world.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (step["op"], step["state"]) == ("caches", "done")
    keys = {"total", "free", "available", "shmem", "page_cache", "dirty", "gpus", "processes"}
    assert keys <= set(step["before"]) and keys <= set(step["after"])


def test_dirty_pages_are_written_back_first_or_nothing_is_dropped(world: World) -> None:
    """Dropping frees clean pages only."""
    switch = world.root / "drop_caches"
    # a labelled stand-in for sync: what the switch held when it was called
    world.double("sync", f"#!/bin/sh\ncp {switch} {world.root}/at-sync\n")
    assert call(world, need_available_bytes=NEVER)["verdict"] == "dropped"
    assert ((world.root / "at-sync").read_text(), dropped(world)) == ("", "3\n")
    world.double("sync", "#!/bin/sh\necho 'Input/output error' >&2; exit 1\n")
    answer = call(world, need_available_bytes=NEVER)
    assert answer["code"] == "io" and "sync: Input/output error" in str(answer["error"])
    assert dropped(world) == ""


@pytest.mark.parametrize("needs", [{}, {"need_available_bytes": 1}, {"need_free_bytes": 1}])
def test_nothing_is_done_without_a_need_that_is_not_met(
    world: World, needs: dict[str, object]
) -> None:
    answer = call(world, **needs)
    assert (answer["verdict"], answer["met"], dropped(world)) == ("nothing", True, "")
    assert answer["change"] is None and world.call("journal")["changes"] == []


def test_a_need_of_free_memory_counts_by_itself(world: World) -> None:
    answer = call(world, need_available_bytes=1, need_free_bytes=NEVER, dry=True)
    assert (answer["verdict"], dropped(world)) == ("would_drop", "")


@pytest.mark.parametrize("stay", [True, False])
def test_refused_while_an_engine_lives_with_an_owner_or_without(world: World, stay: bool) -> None:
    pid = world.launch(stay=stay)
    answer = call(world, need_available_bytes=NEVER)
    assert (answer["verdict"], dropped(world)) == ("refused", "")
    assert f"pid {pid} {TITLE} is an engine" in str(answer["why"])


@pytest.mark.parametrize("state", ["active", "activating"])
def test_refused_while_the_unit_starts_or_runs(world: World, state: str) -> None:
    (world.bin / "units" / f"{UNIT}.active").write_text(state)
    answer = call(world, need_available_bytes=NEVER)
    assert answer["verdict"] == "refused" and f"the unit {UNIT} is {state}" in str(answer["why"])


def test_docker_that_does_not_say_counts_as_a_container_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is not absent: a load that is under way would lose its pages."""
    socket = tmp_path / "docker.sock"
    socket.touch()

    def silent(path: str, **_: object) -> None:
        raise CannotRead("no answer in 8 s")

    monkeypatch.setattr(start, "_engines", list)
    monkeypatch.setattr(start.api, "SOCKET", str(socket))
    monkeypatch.setattr(start.api, "get", silent)
    said = start.engines_running("rigbook-engine")
    assert said == "whether the container rigbook-engine runs is not known: no answer in 8 s"
    for runs, words in ((True, "the container rigbook-engine runs"), (False, "")):
        row = {"State": {"Running": runs}}
        monkeypatch.setattr(start.api, "get", lambda *_, row=row, **__: row)
        monkeypatch.setattr(start, "BOOTED", str(tmp_path / "not-systemd"))
        assert start.engines_running("rigbook-engine") == words


def test_where_the_kernel_does_not_let_us_the_error_is_clear(world: World) -> None:
    world.file("drop_caches", "")
    # no change: the state lies there too, and could not be written
    world.sh(f"mount --bind -o ro {world.root} {world.root}; mount -o remount,ro,bind {world.root}")
    answer = switched(world, need_available_bytes=NEVER)
    assert answer["code"] == "no_drop_caches" and "Read-only file system" in answer["error"]
    assert "in a container" in json.dumps(answer)


def test_the_program_itself_takes_the_request(world: World) -> None:
    answer = world.call("caches", {"need_available_bytes": 1})
    assert answer["verdict"] == "nothing"
    assert world.call("caches", {"need": 1})["code"] == "bad_request"


# What a start takes of a unified memory, of its note and of what vLLM then logs.
#
# The lines: of a GB10 that started (0.83, 105.9 GiB seen) in a public page about its KV cache, of
# one
# that did not in eugr/spark-vllm-docker#257, and of GLM-5.3-Flash-EXL3-2x#47.

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
        assert unit == host_UNIT and until == since + 30, "no longer than the start may take"
        return lines

    monkeypatch.setattr(units, "log_between", between)
    return lines


@pytest.mark.parametrize(
    ("line", "taken"),
    [(STARTED, 110.8 - 105.9), (REFUSED, 110.8 - 102.2), (FOREIGN, None), ("loading", None)],
)
def test_a_start_is_measured_once(logged: list[str], line: str, taken: float | None) -> None:
    assert gpus.start_memory_taken() is None
    start.note_start(int(110.8 * engine_GIB))
    logged += ["Starting", line, "more"]
    start.measure_start(engine())
    found = gpus.start_memory_taken()
    assert (found is None) == (taken is None)
    assert found is None or found == pytest.approx(taken and taken * engine_GIB, abs=2)
    logged[:] = [REFUSED]
    start.measure_start(engine())
    assert gpus.start_memory_taken() == found, "the note is used up"


def test_a_start_that_says_nothing_leaves_the_last_measurement(logged: list[str]) -> None:
    start.note_start(110 * engine_GIB)
    logged.append(REFUSED)
    start.measure_start(engine())
    before = gpus.start_memory_taken()
    start.note_start(111 * engine_GIB)
    logged.clear()
    start.measure_start(engine())
    assert before is not None and gpus.start_memory_taken() == before


def test_no_note_no_file(logged: list[str], tmp_path: Path) -> None:
    """A host with cards, or without GPUs, keeps nothing."""
    start.measure_start(engine())
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_cannot_be_written_does_not_stop_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("")
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    start.note_start(engine_GIB)
    start.measure_start(engine())
    assert "start-memory.json" in "".join(capfd.readouterr())


def test_the_memory_section_has_it_and_what_no_category_holds(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start.note_start(110 * engine_GIB)
    logged.append(REFUSED)
    start.measure_start(engine())
    rows = {
        "MemTotal": 1000, "MemFree": 100, "MemAvailable": 300, "Buffers": 10, "Cached": 200,
        "SwapCached": 1, "Shmem": 50, "Dirty": 0, "SwapTotal": 0, "SwapFree": 0, "AnonPages": 80,
        "Slab": 20, "KernelStack": 2, "PageTables": 3, "VmallocUsed": 4, "Mapped": 60,
    }  # fmt: skip
    text = "".join(f"{name}: {size} kB\n" for name, size in rows.items())
    monkeypatch.setattr(proc, "read_text", lambda path: text)
    seen = gpus.read_memory()
    assert seen["start_took"] == gpus.start_memory_taken()
    assert seen["unaccounted"] == (1000 - 100 - 10 - 200 - 1 - 80 - 20 - 2 - 3 - 4) * 1024
