"""An undo holds the stopped engine's unit, ends its orphans and waits for memory, in that order."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.change import undo
from node.core import systemctl
from node.core.errors import NodeError
from node.core.step_kind import Steps
from node.engine import before_start, held_stopped, memory_need
from node.engine.memory_need import Shortage
from node.systemd import hold
from tests.unit.node.support.enginefile import UNIT, engine_file
from tests.unit.node.support.host import Host, apply_request, file_step


class Look:
    """What was done in order: systemctl's calls, and the parts that are no command."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.units = host, host.systemctl()
        self.log = self.units / "log"
        self.file = host.root / "run" / f"{UNIT}.d" / hold.FILE
        self.held_while: list[tuple[str, bool]] = []
        (host.root / "run").mkdir()
        path = engine_file(host)
        monkeypatch.setenv("RIGBOOK_ENGINE", str(path))
        monkeypatch.setenv("PATH", host.environ()["PATH"])
        monkeypatch.setattr(systemctl, "BOOTED", str(host.root / "run"))
        monkeypatch.setattr(held_stopped, "MEMORY_S", 0.3)
        ended = ["ended pid 7"]
        monkeypatch.setattr(before_start, "orphans", lambda _: self.note("orphans", ended))
        monkeypatch.setattr(memory_need, "shortage", lambda _: self.note("memory", None))

    def note(self, what: str, answer: object) -> object:
        """Notes a part, and whether the unit was held then."""
        self.held_while.append((what, self.file.exists()))
        with self.log.open("a") as log:
            log.write(f"{what}\n")
        return answer

    def ran(self) -> list[str]:
        """All of it but the looks."""
        lines = self.log.read_text().splitlines()
        return [line.strip() for line in lines if not line.startswith(("show", "reset-failed"))]


@pytest.fixture
def look(host: Host, monkeypatch: pytest.MonkeyPatch) -> Look:
    """A rig whose engine ran, and a change that wrote a file and restarted it."""
    found = Look(host, monkeypatch)
    (found.units / f"{UNIT}.active").write_text("active\n")
    restart = {"op": "unit", "unit": UNIT, "active": "restart", "daemon_reload": True}
    assert host.call("apply", apply_request(file_step(host.file()), restart))["ok"]
    found.log.write_text("")
    return found


def test_stop_hold_reap_files_memory_start(look: Look) -> None:
    answer = undo.undo({}, held_stopped.EngineHold())
    assert answer["status"] == "ROLLED_BACK"
    first, between, last = look.ran()[:3], look.ran()[3:5], look.ran()[5:]
    assert first == [f"stop {UNIT}", "daemon-reload", "orphans"]
    assert sorted(between) == ["daemon-reload", "memory"]
    assert last == [f"start --no-block {UNIT}"]
    assert look.held_while == [("orphans", True), ("memory", False)]
    assert not look.file.parent.exists(), "nothing of the hold is left"
    told = [row["detail"] for row in answer["steps"] if row["op"] == "clear"]
    assert told == ["ended pid 7"]


def test_a_way_that_is_not_free_is_told_and_the_files_go_back_all_the_same(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    def foreign(_: object) -> list[str]:
        raise NodeError("refused: port 8000 is held by pid 9 (python3, no unit)", "orphans")

    short = Shortage("1.00 GiB available, 3 needed", 3)
    monkeypatch.setattr(before_start, "orphans", foreign)
    monkeypatch.setattr(memory_need, "shortage", lambda _: short)
    answer = undo.undo({}, held_stopped.EngineHold())
    assert answer["status"] == "ROLLED_BACK"
    told = [row["detail"] for row in answer["steps"] if row["op"] == "clear"]
    assert "port 8000 is held by pid 9" in told[0] and "1.00 GiB available" in told[1]
    assert look.ran()[-1] == f"start --no-block {UNIT}", "the start itself has the last word"


def test_a_hold_of_an_undo_that_was_killed_is_lifted_by_the_next(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What a kill -9 leaves behind it: nothing runs any more."""

    def killed(_: object) -> list[str]:
        raise Killed

    monkeypatch.setattr(before_start, "orphans", killed)
    with pytest.raises(Killed):
        undo.undo({}, held_stopped.EngineHold())
    assert look.file.exists()
    monkeypatch.setattr(before_start, "orphans", lambda _: [])
    assert undo.undo({}, held_stopped.EngineHold())["status"] == "ROLLED_BACK"
    assert not look.file.exists()
    assert (look.units / f"{UNIT}.active").read_text() == "active\n"


def test_an_engine_that_goes_on_is_neither_held_nor_cleared(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Look(host, monkeypatch)
    (found.units / f"{UNIT}.active").write_text("active\n")
    assert host.call("apply", apply_request(file_step(host.file())))["ok"]
    assert undo.undo({}, held_stopped.EngineHold())["status"] == "ROLLED_BACK"
    assert found.held_while == [] and not found.file.exists()


def test_a_restore_holds_the_unit_and_lifts_it_on_an_error(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Look(host, monkeypatch)
    opened = {"id": "change-2", "steps": []}
    saved: list[bool] = []
    steps = Steps(opened, lambda: saved.append("held" in opened))
    with pytest.raises(OSError), held_stopped.unit_held(steps, held_stopped.engine_if_stopped()):
        assert found.file.exists() and "AssertPathExists=!" in found.file.read_text()
        raise OSError("full")
    assert saved == [True] and not found.file.exists() and "held" not in opened
