"""Killed at any changing system call: each path is old or new, and the journal tells the truth."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.change.apply import apply
from node.change.claim import claim
from node.change.close import close
from node.change.journal import read_all
from node.change.undo import Around, undo
from tests.unit.node.change.test_link_and_tree_step import link_step, tree_step, two
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step, target
from tests.unit.node.support.strace import Faulted


def lies(host: Host) -> dict[str, object]:
    """All that lies on the host: files with their modes, links, and trees by their version."""
    found: dict[str, object] = {}
    for path in host.root.iterdir():
        if path.is_symlink():
            found[path.name] = target(path)
        elif path.is_file():
            found[path.name] = (path.read_text(), stat.S_IMODE(path.stat().st_mode))
        elif path not in (host.bin, host.state):
            found[path.name] = (path / "version").read_text()
    return found


@dataclass
class Steps:
    """A change on a host: its steps, what lies there before, and what after it."""

    host: Host
    make: Callable[[Host], object]
    steps: list[dict[str, object]]
    old: dict[str, object]
    new: dict[str, object]

    def reset(self) -> None:
        """The old state and an empty journal."""
        for path in self.host.root.iterdir():
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path != self.host.bin:
                shutil.rmtree(path)
        self.make(self.host)

    def applied(self) -> None:
        """The new state, by a change that is open."""
        self.reset()
        apply(apply_request(*self.steps))

    def apply(self) -> Faulted:
        """The apply, to be hit."""
        return Faulted(self.host, "apply", apply_request(*self.steps), self.reset)

    def check_between(self, at: object) -> None:
        """Each path of the steps is old or new in whole, and the journal agrees with it."""
        changes, broken = read_all()
        assert broken == []
        told = {row["path"]: row["state"] for found in changes for row in found["steps"]}
        now = lies(self.host)
        for name in (Path(str(step["path"])).name for step in self.steps):
            before, after = self.old.get(name), self.new.get(name)
            assert now.get(name) in (before, after), (at, name, now)
            state = told.get(str(self.host.root / name))
            if state == "done":
                assert now.get(name) == after, f"{at}: the journal says done, but {name} is old"
            if state in (None, "undone"):
                assert now.get(name) == before, f"{at}: the journal knows nothing of new {name}"

    def check(self, wanted: dict[str, object], at: object = None) -> None:
        """All is as wanted and nothing is left over beside it."""
        assert lies(self.host) == wanted, at
        assert self.host.leftovers() == [], at


def files(host: Host) -> Steps:
    """A change that replaces one file and makes another."""
    steps = [file_step(host.root / "file.conf"), file_step(host.root / "made.conf", mode="0600")]
    new: dict[str, object] = {"file.conf": (NEW, 0o644), "made.conf": (NEW, 0o600)}
    return Steps(host, Host.file, steps, {"file.conf": (OLD, 0o640)}, new)


def trees(host: Host) -> Steps:
    """A change that puts a fresh tree in place and points a link elsewhere."""

    def make(host: Host) -> None:
        two(host)
        (host.root / "venv").symlink_to("venvs/old")

    old: dict[str, object] = {"tree": "old", "fresh": "new", "venv": "venvs/old"}
    new: dict[str, object] = {"tree": "new", "kept": "old", "venv": "venvs/new"}
    return Steps(host, make, [tree_step(host), link_step(host)], old, new)


both = pytest.mark.parametrize("made", [files, trees])


@both
def test_apply_killed_at_every_changing_call(host: Host, made: Callable[[Host], Steps]) -> None:
    steps = made(host)
    points = steps.apply().points()
    kinds = {call for call, _ in points}
    assert {"write", "fsync", "openat"} <= kinds and kinds & {"rename", "renameat"}
    assert len(points) > {files: 40, trees: 15}[made]
    for point, done in steps.apply().each(points):
        assert done.returncode != 0, point
        steps.check_between(point)
        assert undo({})["status"] in (None, "ROLLED_BACK"), point
        steps.check(steps.old, point)
        again = apply_request(*steps.steps, name="change-2")
        assert apply(again)["changed"] is True, point
        steps.check(steps.new, point)


@both
def test_undo_killed_at_every_changing_call_is_finished_by_the_next(
    host: Host, made: Callable[[Host], Steps]
) -> None:
    steps = made(host)
    faulted = Faulted(host, "undo", {}, steps.applied)
    points = faulted.points()
    assert len(points) > 15
    for point, _ in faulted.each(points):
        assert read_all()[1] == []
        now = lies(host)
        for name in (Path(str(step["path"])).name for step in steps.steps):
            assert now.get(name) in (steps.old.get(name), steps.new.get(name)), point
        undo({})
        steps.check(steps.old, point)


def test_the_same_apply_again_after_a_kill_gets_through(host: Host) -> None:
    steps = files(host)
    points = steps.apply().points("renameat", "rename", "fchmod")
    for point, _ in steps.apply().each(points):
        apply(apply_request(*steps.steps))
        steps.check(steps.new, point)
        blessed = close({"change": "change-1", "status": "COMMITTED"})
        assert blessed["change"]["status"] == "COMMITTED", point
        undo({"change": "change-1"})
        steps.check(steps.old, point)


def test_killed_where_the_file_system_cannot_exchange(host: Host) -> None:
    """Between two plain renames nothing lies at the path; undo knows what belongs there."""
    steps, seen = trees(host), set()
    for number in range(1, 12):
        steps.apply().traced(
            "-e", "trace=renameat2,renameat,rename", "-e", "inject=renameat2:error=EINVAL",
            "-e", f"inject=renameat,rename:signal=SIGKILL:when={number}",
        )  # fmt: skip
        seen.add(lies(host).get("tree"))
        assert undo({})["status"] in (None, "ROLLED_BACK"), number
        steps.check(steps.old, number)
    assert seen == {"old", "new", None}


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGHUP"])
def test_a_signal_waits_for_the_end_of_the_step(host: Host, signal: str) -> None:
    steps = files(host)
    # the first rename in the folder of the files: past blob and journal, within the first step
    renames = steps.apply().points("renameat", "rename")
    done = steps.apply().hit(renames[1], f"signal={signal}")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["code"]) == (1, "interrupted") and signal in answer["error"]
    assert lies(host) == {"file.conf": steps.new["file.conf"]}
    host.call("undo")
    steps.check(steps.old)


@both
def test_a_claim_killed_at_every_changing_call_is_finished_by_another_run(
    host: Host, made: Callable[[Host], Steps]
) -> None:
    """What it takes back is back after the next claim, and that run goes on in the same change."""
    steps = made(host)
    asked = {"change": "change-1", "run": "b2", "former": None, "operator": "anna@desk",
             "deploy": "serve", "take_back": True}  # fmt: skip
    faulted = Faulted(host, "claim", asked, steps.applied)
    points = faulted.points()
    assert len(points) > 15
    for point, _ in faulted.each(points):
        changes, broken = read_all()
        assert broken == [] and [row["status"] for row in changes] == ["OPEN"], point
        third = {**asked, "run": "c3", "former": changes[0].get("run")}
        assert claim(third, Around())["claimed"], point
        steps.check(steps.old, point)
        assert apply(apply_request(*steps.steps, run="c3"))["changed"], point
        done = {"change": "change-1", "status": "COMMITTED", "run": "c3"}
        assert close(done)["changed"], point
        steps.check(steps.new, point)
