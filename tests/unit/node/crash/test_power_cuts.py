"""Power cuts: whatever was not synced is lost, in any order (the model: disk.py).

Each verb runs once for real; every disk that a cut may leave is laid out, and the program is asked
to mend it. Nothing may be lost, and nothing said that is not so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.change.test_killed_anywhere import Steps, files, lies, trees
from tests.unit.node.crash.cases import Lied, Lost, Run, cut, journal, undone
from tests.unit.node.crash.disk import Sync
from tests.unit.node.support.host import Host, apply_request, file_step, unit_step
from tests.unit.node.support.libs import library
from tests.unit.node.support.table_lines import Show
from tests.unit.node.vgpu.test_look import swap_step

Make = Callable[[Host], Steps]


def told(steps: Steps) -> list[str]:
    """Paths whose row in the journal is not what lies there."""
    states = {row["path"]: row["state"] for found in journal() for row in found["steps"]}
    now, wrong = lies(steps.host), []
    for name in (Path(str(step["path"])).name for step in steps.steps):
        before, after = steps.old.get(name), steps.new.get(name)
        if now.get(name) not in (before, after):
            raise Lost(f"{name} is {now.get(name)}")
        state = states.get(str(steps.host.root / name))
        if (state == "done" and now.get(name) != after) or (
            state in (None, "undone") and now.get(name) != before
        ):
            wrong.append(f"the journal says {state} of {name}, which is {now.get(name)}")
    return wrong


def clean(steps: Steps) -> None:
    """Raises Lost where temp files lie about after the undo."""
    if steps.host.leftovers():
        raise Lost(f"left over: {steps.host.leftovers()}")


def an_apply(steps: Steps) -> Run:
    """The change is applied; undo takes it back from wherever it came to."""

    def check(answered: bool) -> str:
        if wrong := told(steps):
            raise Lied("; ".join(wrong))
        if answered and lies(steps.host) != steps.new:
            raise Lied(f"it answered, but there is {lies(steps.host)}")
        end = undone(steps.old, lambda: lies(steps.host))
        clean(steps)
        return end

    return Run(steps.host, "apply", apply_request(*steps.steps), steps.reset, check)


def an_undo(steps: Steps) -> Run:
    """The change is undone; a second undo finishes what the first began."""

    def check(answered: bool) -> str:
        status = journal()[0]["status"]
        if (answered or status == "ROLLED_BACK") and lies(steps.host) != steps.old:
            raise Lied(f"{status}, but there is {lies(steps.host)}")
        if answered and status != "ROLLED_BACK":
            raise Lied(f"it answered, but the change is {status}")
        undone(steps.old, lambda: lies(steps.host))
        clean(steps)
        return str(status)

    return Run(steps.host, "undo", {}, steps.applied, check)


def a_close(steps: Steps) -> Run:
    """The change is blessed; what is COMMITTED is new."""

    def check(answered: bool) -> str:
        status = journal()[0]["status"]
        if status != "COMMITTED" and answered:
            raise Lied(f"it answered, but the change is {status}")
        if lies(steps.host) != steps.new:
            raise Lost(f"{status}, and there is {lies(steps.host)}")
        return str(status)

    request = {"change": "change-1", "status": "COMMITTED"}
    return Run(steps.host, "close", request, steps.applied, check)


def units(host: Host) -> dict[str, str]:
    """What systemctl's stand-in keeps of the unit."""
    return {path.name: path.read_text() for path in (host.bin / "units").glob("engine.service.*")
            if path.suffix in (".active", ".enabled")}  # fmt: skip


def test_a_unit_with_its_file(host: Host, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd keeps its own state; the file and the journal may lose theirs."""
    states = host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    path = host.root / "engine.service"

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        path.write_text("old")
        (states / "engine.service.active").write_text("inactive\n")
        (states / "engine.service.enabled").write_text("disabled\n")

    def seen() -> object:
        return path.read_text(), units(host)

    steps = [file_step(path, "new"), unit_step("start", enabled=True)]
    reset()
    old = seen()

    def check(answered: bool) -> str:
        text, unit = path.read_text(), units(host)
        if text not in ("old", "new"):
            raise Lost(f"the unit's file is {text!r}")
        is_up = unit["engine.service.active"] == "active\n"
        if text != "new" and (is_up or answered):
            raise Lied(f"the unit is up: {is_up}, answered: {answered}, and its file is old")
        return undone(old, seen)

    holds(Run(host, "apply", apply_request(*steps), reset, check), show, "apply of a unit")


def test_a_swap_of_a_library(host: Host, tmp_path: Path, show: Show) -> None:
    """As libvgpu.py swaps it: the former one is kept by name, and in the journal."""
    for name, size in (("original.so", 30_000), ("ours.so", 20_000)):
        library(tmp_path / name, size, size)
    path = host.root / "libvgpu.so"

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        for there in host.root.glob("libvgpu*"):
            there.unlink()
        shutil.copy(tmp_path / "original.so", path)

    reset()
    old, new = path.read_bytes(), (tmp_path / "ours.so").read_bytes()
    step = swap_step(path, tmp_path / "ours.so")

    def check(answered: bool) -> str:
        now = path.read_bytes()
        if now not in (old, new) or (answered and now != new):
            raise Lost(f"the library has {len(now)} bytes; answered: {answered}")
        return undone(old, path.read_bytes)

    holds(Run(host, "apply", apply_request(step), reset, check), show, "swap of a library")


RUNS: dict[str, tuple[Callable[[Steps], Run], Make]] = {
    "apply of files": (an_apply, files),
    "apply of a tree and a link": (an_apply, trees),
    "undo of files": (an_undo, files),
    "undo of a tree and a link": (an_undo, trees),
    "close": (a_close, files),
}


def holds(run: Run, show: Show, name: str = "") -> None:
    """No disk that a cut may leave has lost something, and nothing is said that is not so."""
    table = cut(run)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(table.ends.items()))
    show(f"TABLE power cut, {name or run.verb}: {table.states} disks ({ends}), "
         f"lost {len(table.lost)}, lied {len(table.lied)}")  # fmt: skip
    assert (table.lost, table.lied) == ([], [])
    assert table.states > 10


@pytest.mark.parametrize("name", RUNS)
def test_a_power_cut(host: Host, show: Show, name: str) -> None:
    run, make = RUNS[name]
    holds(run(make(host)), show, name)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_without_its_syncs_it_would_lose(host: Host, what: str) -> None:
    """The proof that these tests can fail: the same run with one kind of sync left out."""
    run = an_apply(files(host))
    run.without = lambda done: isinstance(done, Sync) and done.what == what
    table = cut(run)
    assert table.lost or table.lied
