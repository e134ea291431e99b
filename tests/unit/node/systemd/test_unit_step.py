"""The unit step: a start is begun, not waited out; what fails is said at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from node.change import transaction, unit_step
from node.change.kinds import Steps
from node.core import systemctl
from node.core.errors import Json, NodeError
from node.engine import start
from node.engine.start import Shortage
from tests.unit.node.support.host import UNIT, Host, apply_request, engine_file, file_step

NAME = "engine.service"
# As systemd lists them at a boot: job, unit, type, state.
JOBS = f"""  9 {NAME} start waiting
 12 systemd-networkd-wait-online.service start running
 11 network-online.target start waiting
"""


class Systemd:
    """A stand-in for systemctl: the states that a unit goes through, one a question."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.calls: list[str] = []

    def __call__(self, *words: str) -> str:
        self.calls.append(" ".join(words))
        if words[0] == "list-jobs":
            return JOBS
        if words[0] != "show":
            return ""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        active, invocation, job = state.partition(" ")[0].split("/")
        text = f"ActiveState={active}\nInvocationID={invocation}\nResult=exit-code\n"
        return text + (f"Job={job}\n" if job else "")


def begin(monkeypatch: pytest.MonkeyPatch, verb: str, *states: str) -> Systemd:
    """Begin a unit that goes through these states, the first before the call."""
    systemd = Systemd(*states)
    monkeypatch.setattr(systemctl, "systemctl", systemd)
    monkeypatch.setattr(systemctl, "POLL_S", 0.01)
    monkeypatch.setattr(systemctl, "BEGIN_S", 0.2)
    monkeypatch.setattr(systemctl, "QUEUED_S", 1.0)
    systemctl.begin(verb, NAME)
    return systemd


def test_a_start_is_over_when_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine loads for minutes; systemd calls it activating until its first answer."""
    systemd = begin(monkeypatch, "start", "inactive//", "inactive//9", "activating/new/9")
    assert systemd.calls[0] == f"reset-failed {NAME}"
    assert f"start --no-block {NAME}" in systemd.calls


@pytest.mark.parametrize(("verb", "states"), [
    ("start", ("activating/old/7",)), ("start", ("inactive//", "active/new/")),
    ("restart", ("active/old/", "active/old/9", "deactivating/old/9", "activating/new/9")),
    ("start", ("inactive/old/", "activating/new/3", "inactive/new/")),
    ("start", ("inactive/old/", "inactive/new/")),
])  # fmt: skip
def test_what_counts_as_begun(
    monkeypatch: pytest.MonkeyPatch, verb: str, states: tuple[str, ...]
) -> None:
    """Also: one that starts already, a restart after its stop, a oneshot that is done."""
    systemd = begin(monkeypatch, verb, *states)
    assert systemd.states == [states[-1]]


@pytest.mark.parametrize(("verb", "states", "said"), [
    ("start", ("inactive//", "failed/new/"), "it failed (exit-code)"),
    ("restart", ("active/old/", "failed/new/"), "it failed"),
    ("start", ("inactive//", "inactive//9", "inactive//"), "what it requires failed"),
    ("start", ("inactive//", "inactive//9"),
     "it waits behind systemd-networkd-wait-online.service"),
    ("start", ("inactive//", "maintenance//"), "it is maintenance and has not begun"),
])  # fmt: skip
def test_a_start_that_fails_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, verb: str, states: tuple[str, ...], said: str
) -> None:
    started = time.monotonic()
    with pytest.raises(NodeError) as caught:
        begin(monkeypatch, verb, *states)
    assert said in str(caught.value) and caught.value.code == "unit_failed"
    assert f"journalctl -u {NAME}" in caught.value.remedy
    assert time.monotonic() - started < 15


def test_at_boot_a_start_waits_for_what_it_is_ordered_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """network-online.target may take two minutes: a queued start is not one that failed."""
    queued = ["inactive//9"] * 40
    systemd = begin(monkeypatch, "start", "inactive//", *queued, "activating/new/9")
    assert systemd.states == ["activating/new/9"]


def test_a_stop_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """TimeoutStopSec is longer than a start may take to begin."""
    states = ["active/old/", *["deactivating/old/9"] * 60, "activating/new/9"]
    begin(monkeypatch, "restart", *states)
    with pytest.raises(NodeError, match="deactivating"):
        monkeypatch.setattr(systemctl, "TIMEOUT_S", 0.1)
        begin(monkeypatch, "restart", "active/old/", "deactivating/old/9")


def test_a_changed_unit_file_is_enabled_again(tmp_path: Path) -> None:
    """Its [Install] may ask for further links, and `enable` adds those alone."""
    step = {"unit": NAME, "enabled": True, "active": None, "daemon_reload": True}
    seen = {"enabled": "enabled", "active": "active", "needs_reload": False}
    assert unit_step.actions(step, seen, False) == []
    assert unit_step.actions(step, seen, True) == [["daemon-reload"], ["enable", NAME]]


UP, ENDED = "active", "inactive"
PASSING: dict[str, tuple[tuple[str, ...], str]] = {
    # fault 56: the pair's timer restarts the worker; it stops, and is about to start
    "a restart that is stopping": (("deactivating/old/9 restart",), UP),
    "a restart between its stop and its start": (("inactive/old/9 start",), UP),
    "a failed unit whose start is queued": (("failed/old/9 start",), UP),
    "one that systemd restarts by itself, between two starts": (("activating/old/",), UP),
    "one that ends by itself, and is then restarted by systemd": (
        ("deactivating/old/", "deactivating/old/", "activating/old/"), UP),
    "a reload": (("reloading/old/",), UP),
    "one that ends by itself for good": (("deactivating/old/", "failed/old/"), "failed"),
    "a stop of somebody's": (("deactivating/old/9 stop", "inactive/old/"), ENDED),
    "a job that is over when it is asked for": (("inactive/old/9 done", "active/new/"), UP),
    "one that is down": (("inactive/old/",), ENDED),
    "one that has failed": (("failed/old/",), "failed"),
    "one that runs": (("active/old/",), UP),
}  # fmt: skip


class Jobs(Systemd):
    """The same with the kind of a unit's job behind its number; a stop ends in `inactive`."""

    def __call__(self, *words: str) -> str:
        kind = self.states[0].partition(" ")[2]
        if words[0] == "show":
            self.listed = "" if kind in ("", "done") else f"  9 {NAME} {kind} waiting\n"
        if words[0] == "stop":
            self.states = ["inactive/old/"]
        said = super().__call__(*words)
        return self.listed if words[0] == "list-jobs" else said


def recorded(monkeypatch: pytest.MonkeyPatch, systemd: Systemd, active: str = "stop") -> Json:
    """The entry of a step of a unit that goes through these states; {} where nothing is done."""
    monkeypatch.setattr(systemctl, "systemctl", systemd)
    monkeypatch.setattr(systemctl, "POLL_S", 0.01)
    steps = Steps({"steps": []}, lambda: None)
    kind = unit_step.UnitKind("unit")
    kind.do({"unit": NAME, "enabled": None, "active": active, "daemon_reload": False}, steps)
    return steps.rows[0] if steps.rows else {}


@pytest.mark.parametrize("case", PASSING)
def test_what_a_unit_is_on_its_way_to_is_recorded(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A passing state is none to go back to; what is down already is not stopped, nor recorded."""
    states, goal = PASSING[case]
    systemd = Jobs(*states)
    entry = recorded(monkeypatch, systemd)
    if goal == UP:
        assert entry["pre"]["active"] == UP and f"stop {NAME}" in systemd.calls
        assert systemctl.is_running(entry["pre"])
    else:
        assert entry == {} and f"stop {NAME}" not in systemd.calls


@pytest.mark.parametrize(("states", "goal"), [
    (("inactive/old/",), ENDED), (("failed/old/",), "failed"),
    (("deactivating/old/9 stop", "inactive/old/"), ENDED),
])  # fmt: skip
def test_what_was_down_is_recorded_as_down(
    monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], goal: str
) -> None:
    monkeypatch.setattr(systemctl, "begin", lambda *_: None)
    entry = recorded(monkeypatch, Jobs(*states), "start")
    assert entry["pre"]["active"] == goal and entry["state"] == "done"


def test_a_unit_that_does_not_settle_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is changed, and the line says what to look at."""
    monkeypatch.setattr(systemctl, "SETTLE_S", 0.05)
    systemd = Jobs("deactivating/old/")
    with pytest.raises(
        NodeError, match=r"still deactivating after 0 s; nothing was done"
    ) as caught:
        recorded(monkeypatch, systemd)
    assert caught.value.remedy == f"systemctl status {NAME}" and f"stop {NAME}" not in systemd.calls


def test_of_several_steps_the_first_tells_what_was_and_the_last_what_was_asked_for() -> None:
    rows = [
        {"unit": NAME, "pre": {"active": "active"}, "enabled": True, "active": "stop"},
        {"unit": NAME, "pre": {"active": "inactive"}, "enabled": None, "active": "start"},
    ]
    kind = unit_step.UnitKind("unit")
    assert kind.folded(rows, "pre")["pre"] == {"active": "active"}
    left = kind.folded(rows, "post")
    assert (left["enabled"], left["active"]) == (True, "start")


@pytest.mark.parametrize(
    ("left", "forgotten"), [("failed//", True), ("inactive//", False), ("active/new/", False)]
)
def test_an_ordered_stop_leaves_nothing_failed(
    monkeypatch: pytest.MonkeyPatch, left: str, forgotten: bool
) -> None:
    """Stopped while ExecStartPost waits, a unit is `failed`; the doctor called it a crash loop."""
    systemd = Systemd(left)
    monkeypatch.setattr(systemctl, "systemctl", systemd)
    systemctl.end(NAME)
    assert systemd.calls[0] == f"stop {NAME}"
    assert (f"reset-failed {NAME}" in systemd.calls) == forgotten


# An undo holds the stopped engine's unit, ends its orphans and waits for memory, in that order.


class Look:
    """What was done in order: systemctl's calls, and the parts that are no command."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.units = host, host.systemctl()
        self.log = self.units / "log"
        self.file = host.root / "run" / f"{UNIT}.d" / unit_step.HOLD_FILE
        self.held_while: list[tuple[str, bool]] = []
        (host.root / "run").mkdir()
        path = engine_file(host)
        monkeypatch.setenv("RIGBOOK_ENGINE", str(path))
        monkeypatch.setenv("PATH", host.environ()["PATH"])
        monkeypatch.setattr(systemctl, "BOOTED", str(host.root / "run"))
        monkeypatch.setattr(start, "MEMORY_S", 0.3)
        ended = ["ended pid 7"]
        monkeypatch.setattr(start, "end_orphans", lambda _: self.note("orphans", ended))
        monkeypatch.setattr(start, "shortage", lambda _: self.note("memory", None))

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
    answer = transaction.undo({}, start.EngineHold())
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
    monkeypatch.setattr(start, "end_orphans", foreign)
    monkeypatch.setattr(start, "shortage", lambda _: short)
    answer = transaction.undo({}, start.EngineHold())
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

    monkeypatch.setattr(start, "end_orphans", killed)
    with pytest.raises(Killed):
        transaction.undo({}, start.EngineHold())
    assert look.file.exists()
    monkeypatch.setattr(start, "end_orphans", lambda _: [])
    assert transaction.undo({}, start.EngineHold())["status"] == "ROLLED_BACK"
    assert not look.file.exists()
    assert (look.units / f"{UNIT}.active").read_text() == "active\n"


def test_an_engine_that_goes_on_is_neither_held_nor_cleared(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Look(host, monkeypatch)
    (found.units / f"{UNIT}.active").write_text("active\n")
    assert host.call("apply", apply_request(file_step(host.file())))["ok"]
    assert transaction.undo({}, start.EngineHold())["status"] == "ROLLED_BACK"
    assert found.held_while == [] and not found.file.exists()


def test_a_restore_holds_the_unit_and_lifts_it_on_an_error(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Look(host, monkeypatch)
    opened = {"id": "change-2", "steps": []}
    saved: list[bool] = []
    steps = Steps(opened, lambda: saved.append("held" in opened))
    with pytest.raises(OSError), start.unit_held(steps, start.engine_if_stopped()):
        assert found.file.exists() and "AssertPathExists=!" in found.file.read_text()
        raise OSError("full")
    assert saved == [True] and not found.file.exists() and "held" not in opened
