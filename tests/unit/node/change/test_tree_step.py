"""The link and tree steps of a change: done once, undone in whole, never over a later edit."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from facts import pack
from node.change.apply import apply as apply_apply
from node.change.journal import read_all
from node.change.transaction import Around, claim, close, undo
from tests.unit.node.support import strace
from tests.unit.node.support.host import (
    NEW,
    Host,
    apply_request,
    change,
    file_step,
    target,
    unit_step,
)
from tests.unit.node.support.host import OLD as host_OLD
from tests.unit.node.support.strace import Faulted


def link_step(host: Host, target: str = "venvs/new", **more: object) -> dict[str, object]:
    """A step that points the link `venv` elsewhere."""
    return {"op": "link", "path": str(host.root / "venv"), "target": target, **more}


def tree_step(host: Host, **more: object) -> dict[str, object]:
    """A step that puts `fresh` in place of `tree`."""
    names = {"path": "tree", "source": "fresh", "displaced": "kept"}
    paths = {key: str(host.root / name) for key, name in names.items()}
    return {"op": "tree", **paths, **more}


def folders(host: Host) -> dict[str, str]:
    """What lies in `tree`, `fresh` and `kept`: the text of their only file."""
    there = [name for name in ("tree", "fresh", "kept") if (host.root / name).is_dir()]
    return {name: (host.root / name / "version").read_text() for name in there}


def two(host: Host) -> None:
    """An old tree and a fresh one."""
    for name, text in (("tree", "old"), ("fresh", "new")):
        (host.root / name).mkdir()
        (host.root / name / "version").write_text(text)


OLD, DONE = {"tree": "old", "fresh": "new"}, {"tree": "new", "kept": "old"}


@pytest.fixture
def link(host: Host) -> Path:
    """A link to the old one."""
    (host.root / "venv").symlink_to("venvs/old")
    return host.root / "venv"


def test_a_link_is_replaced_and_put_back(host: Host, link: Path) -> None:
    os.chown(link, 1234, 4321, follow_symlinks=False)
    asked = apply_request(link_step(host, expect="venvs/old"))
    assert host.call("apply", {**asked, "dry": True})["changed"] is True
    assert target(link) == "venvs/old"
    assert host.call("apply", asked)["changed"] is True and target(link) == "venvs/new"
    assert host.call("apply", apply_request(link_step(host)))["changed"] is False
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert target(link) == "venvs/old" and link.lstat().st_uid == 1234
    assert host.call("undo")["changed"] is False and host.leftovers() == []


def test_a_new_link_is_removed_by_undo(host: Host) -> None:
    assert host.call("apply", apply_request(link_step(host, expect="absent")))["changed"] is True
    assert host.call("undo")["ok"] and not os.path.lexists(host.root / "venv")


def test_a_link_that_was_edited_later_is_not_overwritten_unasked(host: Host, link: Path) -> None:
    host.call("apply", apply_request(link_step(host)))
    link.unlink()
    link.symlink_to("venvs/mine")
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and target(link) == "venvs/mine"
    assert host.call("undo", {"overwrite": [str(link)]})["ok"]
    assert target(link) == "venvs/old"


@pytest.mark.parametrize(("more", "words"), [
    ({"target": "-rf"}, "not the target"), ({"target": ""}, "not the target"),
    ({"target": "a\nb"}, "newline"), ({"target": "a/../b"}, "not the target"),
    ({"expect": "venvs/other"}, "not what the caller saw"),
    ({"expect": "absent"}, "not what the caller saw"), ({"owner": "x"}, "unknown key"),
])  # fmt: skip
def test_bad_link_steps(host: Host, link: Path, more: dict[str, object], words: str) -> None:
    answer = host.call("apply", apply_request({**link_step(host), **more}))
    assert answer["ok"] is False and words in answer["error"], answer
    assert target(link) == "venvs/old"


def test_a_folder_where_the_link_should_be_is_not_touched(host: Host) -> None:
    (host.root / "venv").mkdir()
    answer = host.call("apply", apply_request(link_step(host)))
    assert answer["code"] == "not_a_link" and (host.root / "venv").is_dir()


def test_trees_trade_places_and_undo_trades_back(host: Host) -> None:
    two(host)
    asked = apply_request(tree_step(host, expect="present"))
    assert host.call("apply", {**asked, "dry": True})["changed"] is True and folders(host) == OLD
    assert host.call("apply", asked)["changed"] is True and folders(host) == DONE
    # the same request again, as after a lost connection: it is done
    assert host.call("apply", apply_request(tree_step(host)))["changed"] is False
    assert folders(host) == DONE
    assert host.call("undo")["status"] == "ROLLED_BACK" and folders(host) == OLD
    assert host.call("undo")["changed"] is False and folders(host) == OLD


def test_a_tree_where_none_was(host: Host) -> None:
    two(host)
    shutil.rmtree(host.root / "tree")
    assert host.call("apply", apply_request(tree_step(host, expect="absent")))["changed"] is True
    assert folders(host) == {"tree": "new"}
    assert host.call("undo")["ok"] and folders(host) == {"fresh": "new"}


def test_a_tree_that_only_goes_away(host: Host) -> None:
    two(host)
    assert host.call("apply", apply_request(tree_step(host, source=None)))["changed"] is True
    assert folders(host) == {"kept": "old", "fresh": "new"}
    assert host.call("undo")["ok"] and folders(host) == OLD


@pytest.mark.parametrize(("more", "code"), [
    ({"source": "/none/here"}, "no_source"), ({"displaced": "fresh"}, "bad_request"),
    ({"displaced": "tree/in"}, "bad_request"), ({"expect": "absent"}, "changed_meanwhile"),
    ({"source": "relative"}, "bad_request"), ({"displaced": "file.conf"}, "not_free"),
    ({"displaced": "/none/here/x"}, "no_folder"),
])  # fmt: skip
def test_bad_tree_steps(host: Host, more: dict[str, str], code: str) -> None:
    two(host)
    host.file()
    step = tree_step(host)
    for key, value in more.items():
        ours = key == "displaced" and not value.startswith("/")
        step[key] = str(host.root / value) if ours else value
    answer = host.call("apply", apply_request(step))
    assert answer["code"] == code, answer
    assert folders(host) == OLD and host.call("undo")["changed"] is False


def test_where_the_file_system_cannot_exchange(host: Host, tmp_path: Path) -> None:
    """As on older ZFS and on NFS: plain renames, and the same end."""
    two(host)
    asked = json.dumps(apply_request(tree_step(host)))
    for verb, request, wanted in (("apply", asked, DONE), ("undo", "{}", OLD)):
        options = ["-e", "trace=renameat2", "-e", "inject=renameat2:error=EINVAL"]
        done = strace.traced(host, verb, request, options, tmp_path / "log")
        assert json.loads(done.stdout)["ok"], done.stdout
        assert "INJECTED" in (tmp_path / "log").read_text()
        assert folders(host) == wanted


def test_a_tree_that_was_replaced_later_is_kept(host: Host) -> None:
    two(host)
    host.call("apply", apply_request(tree_step(host)))
    (host.root / "tree").rename(host.root / "aside")
    (host.root / "tree").mkdir()
    (host.root / "tree" / "version").write_text("mine")
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and folders(host) == {"tree": "mine", "kept": "old"}
    assert host.call("undo", {"overwrite": [str(host.root / "tree")]})["ok"]
    assert folders(host) == {"tree": "old", "fresh": "mine"}


def test_files_in_a_tree_that_traded_places(host: Host) -> None:
    """Patched before in the old one, and after in the new one: undo takes each where it lies."""
    two(host)
    inside = host.root / "tree" / "patched"
    inside.write_text("as found\n")
    first, then = file_step(inside, "old, patched\n"), file_step(inside, "new, patched\n")
    # what `plan` looks at is what lies there now, so the patch of the new tree comes by itself
    host.call("apply", apply_request(first, tree_step(host)))
    assert not inside.exists()
    assert host.call("apply", apply_request(then))["changed"] is True
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert inside.read_text() == "as found\n" and folders(host)["tree"] == "old"
    assert not (host.root / "fresh" / "patched").exists()


def test_a_step_that_fails_takes_the_others_back(host: Host, link: Path) -> None:
    two(host)
    bad = file_step(host.root / "x.conf", validate=["false"])
    answer = host.call("apply", apply_request(tree_step(host), link_step(host), bad))
    assert answer["code"] == "not_valid" and "nothing was changed" in answer["error"]
    assert folders(host) == OLD and target(link) == "venvs/old"
    assert host.call("journal")["changes"] == []


# Killed at any changing system call: each path is old or new, and the journal tells the truth.


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
        apply_apply(apply_request(*self.steps))

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
    return Steps(host, Host.file, steps, {"file.conf": (host_OLD, 0o640)}, new)


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
        assert apply_apply(again)["changed"] is True, point
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
        apply_apply(apply_request(*steps.steps))
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
        assert apply_apply(apply_request(*steps.steps, run="c3"))["changed"], point
        done = {"change": "change-1", "status": "COMMITTED", "run": "c3"}
        assert close(done)["changed"], point
        steps.check(steps.new, point)


# Disk errors and a full disk: one clear line, the old file in whole, nothing left over.


def error_line(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The program's error answer: exit status 1, one line, no traceback."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    answer: dict[str, str] = json.loads(done.stdout)
    assert "\n" not in answer["error"] and "Traceback" not in done.stdout + done.stderr
    return answer


@pytest.mark.parametrize(("call", "error", "words"), [
    ("fsync", "EIO", "Input/output error"), ("write", "ENOSPC", "No space left on device"),
    ("rename", "EROFS", "Read-only file system"),
])  # fmt: skip
def test_a_failing_call_leaves_the_old_file(host: Host, call: str, error: str, words: str) -> None:
    steps = files(host)
    points = [point for point in steps.apply().points() if point[0].startswith(call)]
    # the last write is the answer to the caller: all is done by then
    hit = points[: -1 if call == "write" else None]
    assert len(hit) >= 4
    for point, done in steps.apply().each(hit, f"error={error}"):
        answer = error_line(done)
        assert answer["code"] == "io" and words in answer["error"], (point, answer)
        steps.check(steps.old, point)
        assert undo({})["changed"] is False, point


def test_no_room_for_the_new_file(host: Host, small_disk: Path) -> None:
    path = small_disk / "file.conf"
    path.write_text(host_OLD)
    request = json.dumps(apply_request(file_step(path, "x" * (3 << 20))))
    answer = error_line(host.run(host.argv("apply"), request))
    assert "No space left on device" in answer["error"] and "nothing was changed" in answer["error"]
    assert [p.name for p in small_disk.iterdir()] == ["file.conf"] and path.read_text() == host_OLD


def test_no_room_for_the_journal(host: Host, small_disk: Path) -> None:
    path = host.file()
    host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    with (small_disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    answer = error_line(host.run(host.argv("apply"), json.dumps(apply_request(file_step(path)))))
    assert "No space left on device" in answer["error"]
    assert path.read_text() == host_OLD and host.leftovers() == []


def test_no_room_for_the_undo_is_told_and_can_be_repeated(host: Host, small_disk: Path) -> None:
    path = small_disk / "file.conf"
    path.write_text("o" * 900_000)
    host.call("apply", apply_request(file_step(path, NEW)))
    (small_disk / "full").write_bytes(bytes(1_500_000))
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and "No space left" in answer["error"]
    assert path.read_text() == NEW
    (small_disk / "full").unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == "o" * 900_000


def test_a_target_that_went_read_only_is_named_and_the_rest_goes_back(
    host: Host, small_disk: Path
) -> None:
    """The disk of one target met an error and was remounted read-only; the journal is elsewhere."""
    units = host.systemctl()
    paths = [
        host.file("a.conf"),
        small_disk / "b.conf",
        small_disk / "gone.conf",
        host.file("z.conf"),
    ]
    paths[1].write_text(host_OLD)
    paths[2].write_text(host_OLD)
    steps = [file_step(path) for path in paths]
    steps[2] = {"op": "absent", "path": str(paths[2])}
    assert host.call("apply", apply_request(*steps, unit_step("start", True)))["ok"] is True
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for _ in range(2):  # as often as somebody tries
        answer = host.call("undo")
        assert answer["code"] == "undo_incomplete", answer
        for path in paths[1:3]:
            assert f"{path.name}: Read-only file system" in answer["error"], answer
        change = host.call("journal", {"change": "change-1"})["change"]
        assert change["status"] == "INCONSISTENT"
        assert [row["state"] for row in change["steps"]] == ["undone", "done", "done", "undone",
                                                             "undone"]  # fmt: skip
        assert paths[0].read_text() == paths[3].read_text() == host_OLD
        assert (units / "engine.service.active").read_text().strip() == "inactive"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert [path.read_text() for path in paths] == [host_OLD] * 4 and host.leftovers() == []


REFUSED = {
    "EPERM": ("Operation not permitted", "lsattr -d {folder} {path}"),
    "EPERM of the folder": ("Operation not permitted", "lsattr -d {folder} {path}"),
    "EROFS": ("Read-only file system", "findmnt -T {folder}"),
    "EBUSY": ("Device or resource busy", "findmnt -T {path}"),
    "ENOSPC": ("No space left on device", "df -h {folder}; df -i {folder}"),
}


@contextlib.contextmanager
def refusing(how: str, disk: Path, path: Path) -> Iterator[None]:
    """While a path cannot be written, for real."""
    on: list[str]
    if how == "EROFS":
        on, off = ["mount", "-o", "remount,ro", str(disk)], ["mount", "-o", "remount,rw", str(disk)]
    elif how == "EBUSY":
        on, off = ["mount", "--bind", str(path), str(path)], ["umount", str(path)]
    elif how == "ENOSPC":
        on, off = ["sh", "-c", f"! cat /dev/zero > {disk}/full 2>&1"], ["rm", f"{disk}/full"]
    else:
        at = str(path.parent if "folder" in how else path)
        on, off = ["chattr", "+i", at], ["chattr", "-i", at]
    subprocess.run(on, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(off, check=True)


@pytest.mark.parametrize(("how", "op"), [
    *(("EPERM", op) for op in ("file", "absent", "directory")),
    *(("EPERM of the folder", op) for op in ("file", "absent", "link")),
    *(("EROFS", op) for op in ("file", "absent", "directory", "link")),
    ("EBUSY", "file"), ("EBUSY", "absent"), ("ENOSPC", "file"),
])  # fmt: skip
def test_what_the_kernel_refuses_is_told_with_path_step_and_command(
    host: Host, small_disk: Path, how: str, op: str
) -> None:
    """It said `.rigbook-457bd083cd91-x.conf: Operation not permitted`, and no remedy."""
    # a tmpfs has no immutable files before Linux 6.6
    place = host.root / "place" if "EPERM" in how else small_disk / "the place"
    place.mkdir()
    path, other, size = place / "x.conf", host.file("other"), 100_000
    step: dict[str, object] = {"op": op, "path": str(path)}
    if op == "directory":
        path.mkdir(mode=0o711)
        step["mode"] = "0755"
    elif op == "link":
        path.symlink_to("old")
        step["target"] = "new"
    else:
        path.write_text("o" * size)
        step = step if op == "absent" else file_step(path, "n" * size)
    before = path.lstat()[:6]
    asked = apply_request(file_step(other), step)
    words, look = REFUSED[how]
    look = look.format(folder=shlex.quote(str(place)), path=shlex.quote(str(path)))
    with refusing(how, small_disk, path):
        answer = error_line(host.run(host.argv("apply"), json.dumps(asked)))
        assert answer["error"] == f"{op} {path}: {words}; nothing was changed", answer
        assert answer["code"] == "io" and answer["remedy"] == look
        assert other.read_text() == host_OLD and [one.name for one in place.iterdir()] == ["x.conf"]
        assert host.call("journal")["changes"] == []
    assert path.lstat()[:6] == before
    host.call("apply", asked)
    if op == "absent" and how in ("EPERM", "EBUSY"):
        path.touch()  # nothing is left there that would be immutable or mounted over
        asked = {"overwrite": [str(path)]}
    else:
        asked = {}
    with refusing(how, small_disk, path):
        answer = host.call("undo", asked)
        assert answer["code"] == "undo_incomplete"
        assert f"{op} {path}: {words}" in answer["error"], answer
        assert answer["remedy"].startswith(f"{look}; mend it, then run again: rignode undo")
        assert other.read_text() == host_OLD
    assert host.call("undo", asked)["status"] == "ROLLED_BACK" and host.leftovers() == []


def test_an_undo_that_finds_no_room_for_its_journal_says_what_to_type(
    host: Host, small_disk: Path
) -> None:
    """`No space left on device`, and no remedy: the file was back, and the change OPEN."""
    path, full = host.file(), small_disk / "full"
    host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    host.call("apply", apply_request(file_step(path)))
    with full.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    answer = host.call("undo")
    at = small_disk / "state" / "journal"
    assert f"{at}/change-1.json: No space left on device" in answer["error"], answer
    assert answer["remedy"] == (f"df -h {at}; df -i {at}; "
                                "mend it, then run again: rignode undo change-1")  # fmt: skip
    full.unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == host_OLD


@pytest.mark.parametrize("op", ["file", "absent", "directory", "link", "tree"])
@pytest.mark.parametrize("size", [255, 256])
def test_a_name_of_the_most_bytes_works_or_is_refused_first(host: Host, op: str, size: int) -> None:
    """The change stayed OPEN, and its undo was INCONSISTENT for ever."""
    path, other = host.root / ("n" * size), host.file("other")
    step: dict[str, object] = {"op": op, "path": str(path)}
    if op == "directory":
        step["mode"] = "0755"
    elif op == "link":
        step["target"] = "new"
    elif op == "file":
        step = file_step(path)
    elif op == "absent" and size < 256:
        path.write_text(host_OLD)
    elif op == "tree":
        (host.root / "fresh").mkdir()
        step.update(source=str(host.root / "fresh"), displaced=str(host.root / "displaced"))
    answer = host.call("apply", apply_request(file_step(other), step))
    if size < 256:
        assert answer["ok"] and host.call("undo")["status"] == "ROLLED_BACK"
    else:
        assert "File name too long" in answer["error"], answer
        assert host.call("journal")["changes"] == []
    assert other.read_text() == host_OLD and host.leftovers() == []


# A disk that is full when somebody wants to go back: the incident to undo (docker fills /var).

BALLAST = 4 << 20
BIG = "o" * 900_000
OTHER = "0123456789ab"


@pytest.fixture
def disk(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host whose state, program and files are on one disk of 32 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=500", "tmpfs", str(path)],
                   check=True)  # fmt: skip
    for name, value in (("STATE", path / "state"), ("BALLAST", BALLAST)):
        host.env[f"RIGBOOK_{name}"] = str(value)
        monkeypatch.setenv(f"RIGBOOK_{name}", str(value))
    (host.bin / "python3").symlink_to(sys.executable)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(disk: Path) -> None:
    """Write until there is not a byte left."""
    with (disk / "full").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0


def fill_inodes(disk: Path) -> None:
    """Make files until no more can be made."""
    (disk / "many").mkdir()
    with contextlib.suppress(OSError):
        for n in range(10_000):
            (disk / "many" / str(n)).touch()
    assert os.statvfs(disk).f_favail == 0


def send(
    host: Host, disk: Path, verb: str, request: dict[str, object], version: str | None = None
) -> dict[str, object]:
    """A verb as rollback sends it: the program is installed first, on that disk.

    `version`: as from a checkout of that version, which the host has not.
    """
    line, stdin = pack.install_call(verb, request, str(disk / "lib"), str(disk / "rignode"))
    if version:
        word, _, program = stdin.partition(":")
        header = json.loads(zlib.decompress(base64.b64decode(word)))
        header[4] = f"rignode-{version}.pyz"
        stdin = f"{pack._word(header)}:{program}"
    done = host.run(["sh", "-c", line], stdin)
    assert done.stderr == "", done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_lock_is_taken_on_a_full_disk(host: Host, disk: Path) -> None:
    assert host.call("undo")["detail"] == "nothing to undo"
    host.call("apply", apply_request(file_step(host.file())))
    assert host.call("undo")["status"] == "ROLLED_BACK"
    fill(disk)
    assert host.call("undo")["detail"] == "nothing to undo"
    assert len(list((disk / "state" / "ballast").iterdir())) == 8, "it goes at need"


@pytest.mark.parametrize("filled", [fill, fill_inodes])
def test_an_undo_on_a_full_disk(host: Host, disk: Path, filled: Callable[[Path], None]) -> None:
    path, gone = disk / "file.conf", disk / "gone.conf"
    path.write_text(BIG)
    gone.write_text(host_OLD)
    absent: dict[str, object] = {"op": "absent", "path": str(gone)}
    host.call("apply", apply_request(file_step(path), absent))
    ballast = disk / "state" / "ballast"
    assert sum(one.stat().st_blocks * 512 for one in ballast.iterdir()) == BALLAST
    filled(disk)
    answer = host.call("undo")
    assert answer["ok"] and answer["status"] == "ROLLED_BACK", answer
    assert (path.read_text(), gone.read_text()) == (BIG, host_OLD)


def test_the_ballast_is_made_anew_when_there_is_room(host: Host, disk: Path) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    fill(disk)
    assert host.call("undo")["status"] == "ROLLED_BACK"
    ballast = disk / "state" / "ballast"
    assert list(ballast.iterdir()) == []
    # a failing call may take it again; one that works where there is room makes it anew
    (disk / "full").unlink()
    host.call("apply", apply_request(file_step(path), name="change-2"))
    assert sum(one.stat().st_blocks * 512 for one in ballast.iterdir()) == BALLAST


def test_a_failing_apply_goes_back_on_a_full_disk(host: Host, disk: Path) -> None:
    path = disk / "file.conf"
    path.write_text(host_OLD)
    host.call("undo")  # the state folder
    host.call("apply", apply_request(file_step(host.file())))
    host.call("undo")
    script = (
        f"while dd if=/dev/zero bs=4k count=100 >> {disk}/full; do :; done 2> /dev/null; exit 1"
    )
    fails = file_step(host.file("other"), validate=["sh", "-c", script, "{tmp}"])
    answer = host.call("apply", apply_request(file_step(path), fails, name="change-2"))
    assert not answer["ok"] and "nothing was changed" in str(answer["error"]), answer
    assert (
        path.read_text() == host_OLD and host.call("journal", {"change": "change-2"})["ok"] is False
    )


def test_a_change_is_closed_on_a_full_disk(host: Host, disk: Path) -> None:
    host.call("apply", apply_request(file_step(host.file())))
    fill(disk)
    request = {"change": "change-1", "status": "INCONSISTENT", "reason": "r" * 2000}
    assert host.call("close", request)["ok"] is True


def test_rollback_from_another_checkout_on_a_full_disk(host: Host, disk: Path) -> None:
    """As rollback.py does it: `claim`, `journal`, `undo`, each sent with a program that finds no
    room.
    """
    path = disk / "file.conf"
    path.write_text(BIG)
    assert send(host, disk, "apply", apply_request(file_step(path)))["ok"] is True
    fill(disk)
    installed = sorted(one.name for one in (disk / "lib").iterdir())
    asked = {"change": "change-1", "run": "b2", "former": None, "operator": "anna@desk",
             "deploy": "rollback"}  # fmt: skip
    claimed = send(host, disk, "claim", asked, OTHER)
    assert claimed.get("claimed") is True, claimed
    assert len(list((disk / "state" / "ballast").iterdir())) == 8, "the undo still comes"
    assert send(host, disk, "journal", {"change": "change-1"}, OTHER)["ok"] is True
    answer = send(host, disk, "undo", {"change": "change-1", "run": "b2"}, OTHER)
    assert answer["ok"] and answer["status"] == "ROLLED_BACK", answer
    assert path.read_text() == BIG
    # what changes the host needs its program there: a change without one has no way back
    fill(disk)
    refused = send(host, disk, "apply", {"change": change("change-2"), "steps": []}, OTHER)
    assert refused["code"] == "install" and "No space left" in str(refused["error"]), refused
    assert "df -h" in str(refused["remedy"])
    assert sorted(one.name for one in (disk / "lib").iterdir()) == installed
    assert NEW not in path.read_text()


def test_a_dead_run_is_taken_back_on_a_full_disk(host: Host, disk: Path) -> None:
    path = disk / "file.conf"
    path.write_text(BIG)
    host.call("apply", apply_request(file_step(path)))
    fill(disk)
    asked = {"change": "change-1", "run": "b2", "former": None, "operator": "anna@desk",
             "deploy": "serve", "take_back": True}  # fmt: skip
    answer = host.call("claim", asked)
    assert answer.get("claimed") is True and path.read_text() == BIG, answer


def test_rollback_where_the_program_cannot_be_written(host: Host, disk: Path) -> None:
    """/usr went read-only, the state is elsewhere."""
    usr = disk / "usr"
    usr.mkdir()
    path = host.file()
    assert send(host, usr, "apply", apply_request(file_step(path)))["ok"] is True
    subprocess.run(["mount", "--bind", str(usr), str(usr)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(usr)], check=True)
    try:
        answer = send(host, usr, "undo", {}, OTHER)
    finally:
        subprocess.run(["umount", str(usr)], check=True)
    assert answer["ok"] and answer["status"] == "ROLLED_BACK" and path.read_text() == host_OLD
