"""Killed at any changing system call: every file is old or new, and the journal tells the truth."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from node.change.apply import apply
from node.change.close import close
from node.change.journal import read_all
from node.change.undo import undo
from tests.unit.node.support import strace
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step


def request_for(host: Host, name: str = "change-1") -> str:
    """An apply that replaces one file and makes another."""
    steps = (file_step(host.root / "file.conf"), file_step(host.root / "made.conf", mode="0600"))
    return json.dumps(apply_request(*steps, name=name))


def state_of(path: Path) -> tuple[str, int] | None:
    """Content and mode, or None where there is no file."""
    return (path.read_text(), stat.S_IMODE(path.stat().st_mode)) if path.exists() else None


OLD_STATE = {"file.conf": (OLD, 0o640), "made.conf": None}
NEW_STATE = {"file.conf": (NEW, 0o644), "made.conf": (NEW, 0o600)}


def check_old_or_new(host: Host) -> None:
    """Both files are old or new in whole, and the journal's steps agree with them."""
    changes, broken = read_all()
    assert broken == []
    states = {}
    for change in changes:
        for step in change["steps"]:
            states[Path(step["path"]).name] = step["state"]
    for name in OLD_STATE:
        now = state_of(host.root / name)
        assert now in (OLD_STATE[name], NEW_STATE[name]), (name, now)
        if states.get(name) == "done":
            assert now == NEW_STATE[name], f"the journal says done, but {name} is old"
        if states.get(name) in (None, "undone"):
            assert now == OLD_STATE[name], f"the journal knows nothing of the new {name}"


def check_all(host: Host, wanted: dict[str, tuple[str, int] | None]) -> None:
    """Both files are as wanted and nothing is left over beside them."""
    assert {name: state_of(host.root / name) for name in wanted} == wanted
    assert host.leftovers() == []
    names = sorted(path.name for path in host.root.iterdir() if path.is_file())
    assert names == sorted(name for name, state in wanted.items() if state)


def reset(host: Host) -> None:
    """Back to the old file and an empty journal."""
    host.file()
    (host.root / "made.conf").unlink(missing_ok=True)
    for path in sorted(host.state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if host.state.exists():
        host.state.rmdir()


def test_apply_killed_at_every_changing_call(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    reset(host)
    points = strace.points(host, "apply", request_for(host), log)
    kinds = {call for call, _ in points}
    assert {"write", "fsync", "openat", "fchmod"} <= kinds and kinds & {"rename", "renameat"}
    assert len(points) > 40
    killed = 0
    for point in points:
        reset(host)
        done = strace.inject(host, "apply", request_for(host), "signal=SIGKILL", point, log)
        killed += done.returncode != 0
        check_old_or_new(host)
        undone = undo({})
        assert undone["status"] in (None, "ROLLED_BACK"), (point, undone)
        check_all(host, OLD_STATE)
        assert apply(json.loads(request_for(host, "change-2")))["changed"] is True, point
        check_all(host, NEW_STATE)
    assert killed == len(points)


def test_the_same_apply_again_after_a_kill_gets_through(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    reset(host)
    points = strace.points(host, "apply", request_for(host), log)
    for point in (p for p in points if p[0] in ("renameat", "rename", "fchmod")):
        reset(host)
        strace.inject(host, "apply", request_for(host), "signal=SIGKILL", point, log)
        apply(json.loads(request_for(host)))
        check_all(host, NEW_STATE)
        blessed = close({"change": "change-1", "status": "COMMITTED"})
        assert blessed["change"]["status"] == "COMMITTED", point
        undo({"change": "change-1"})
        check_all(host, OLD_STATE)


def test_undo_killed_at_every_changing_call_is_finished_by_the_next(
    host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "strace.log"
    reset(host)
    apply(json.loads(request_for(host)))
    points = strace.points(host, "undo", "{}", log)
    assert len(points) > 15
    for point in points:
        reset(host)
        apply(json.loads(request_for(host)))
        strace.inject(host, "undo", "{}", "signal=SIGKILL", point, log)
        assert read_all()[1] == []
        for name in OLD_STATE:
            assert state_of(host.root / name) in (OLD_STATE[name], NEW_STATE[name]), point
        undo({})
        check_all(host, OLD_STATE)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGHUP"])
def test_a_signal_waits_for_the_end_of_the_step(host: Host, tmp_path: Path, signal: str) -> None:
    log = tmp_path / "strace.log"
    reset(host)
    points = strace.points(host, "apply", request_for(host), log)
    # the first rename in the folder of the files: past blob and journal, within the first step
    renames = [p for p in points if p[0] in ("renameat", "rename")]
    reset(host)
    done = strace.inject(host, "apply", request_for(host), f"signal={signal}", renames[1], log)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["code"]) == (1, "interrupted") and signal in answer["error"]
    assert state_of(host.root / "file.conf") == NEW_STATE["file.conf"]
    assert state_of(host.root / "made.conf") is None
    host.call("undo")
    check_all(host, OLD_STATE)
