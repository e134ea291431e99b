"""undo: back to what was, never over a later edit unasked, and safe to repeat."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.change.test_tree_step import folders, tree_step, two
from tests.unit.node.support import strace
from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    file_step,
    mode,
    unit_step,
    unsigned,
)


@pytest.fixture
def units(host: Host) -> Path:
    """The folder of the stand-in systemctl, whose engine.service runs."""
    units = host.systemctl()
    (units / "engine.service.active").write_text("active\n")
    return units


def states(units: Path) -> tuple[str, ...]:
    """Whether engine.service runs, and whether it is enabled where that was touched."""
    files = (units / f"engine.service.{name}" for name in ("active", "enabled"))
    return tuple(file.read_text().strip() for file in files if file.exists())


def committed(host: Host, text: str = NEW, name: str = "change-1") -> Path:
    """A file that a blessed change wrote."""
    path = host.root / "file.conf" if (host.root / "file.conf").exists() else host.file()
    assert host.call("apply", apply_request(file_step(path, text), name=name))["changed"]
    assert host.call("close", {"change": name, "status": "COMMITTED"})["ok"]
    return path


def test_undo_brings_back_content_and_mode_and_twice_is_nothing(host: Host) -> None:
    path, fresh = host.file(), host.root / "fresh"
    host.call("apply", apply_request(file_step(path), file_step(fresh)))
    answer = host.call("undo")
    assert (answer["change"], answer["status"]) == ("change-1", "ROLLED_BACK")
    assert (path.read_text(), mode(path)) == (OLD, 0o640) and not fresh.exists()
    before = path.stat().st_ino
    again = host.call("undo", {"change": "change-1"})
    assert again["changed"] is False and path.stat().st_ino == before
    assert host.call("undo")["detail"] == "nothing to undo"


def test_two_steps_on_one_file_go_back_to_the_first(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path, "one\n"), file_step(path, "two\n")))
    host.call("undo")
    assert path.read_text() == OLD


EDITS: dict[str, Callable[[Path], object]] = {
    "content": lambda path: path.write_text("mine\n"),
    "mode": lambda path: path.chmod(0o600), "gone": Path.unlink,
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_later_edit_is_refused_by_name(host: Host, edit: str) -> None:
    path, other = host.file(), host.file("other")
    host.call("apply", apply_request(file_step(path), file_step(other)))
    EDITS[edit](path)
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and str(path) in answer["error"]
    assert str(other) not in answer["error"] and f"--overwrite {path}" in answer["remedy"]
    assert other.read_text() == NEW
    assert host.call("undo", {"overwrite": [str(other)]})["code"] == "later_edit"
    assert host.call("undo", {"overwrite": [str(path)]})["status"] == "ROLLED_BACK"
    assert (path.read_text(), mode(path), other.read_text()) == (OLD, 0o640, OLD)


def test_an_overwritten_edit_is_kept(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    path.write_text("mine\n")
    host.call("undo", {"overwrite": [str(path)]})
    step = host.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (host.state / "blobs" / step["overwrote"]).read_text() == "mine\n"


def test_a_blessed_change_is_undone_only_by_its_id(host: Host) -> None:
    path = committed(host)
    assert host.call("undo")["changed"] is False and path.read_text() == NEW
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD


def test_a_blessed_change_under_a_later_one_is_refused(host: Host) -> None:
    path = committed(host)
    committed(host, "third\n", "change-2")
    assert host.call("undo", {"change": "change-1"})["code"] == "later_edit"
    assert path.read_text() == "third\n"


def test_the_newest_unblessed_change_is_picked(host: Host) -> None:
    first, second = host.file("first"), host.file("second")
    host.call("apply", apply_request(file_step(first)))
    host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"})
    host.call("apply", apply_request(file_step(second), name="change-2"))
    assert host.call("undo")["change"] == "change-2"
    assert host.call("undo")["change"] == "change-1"
    assert (first.read_text(), second.read_text()) == (OLD, OLD)


def test_a_damaged_pre_image_is_named_first_and_the_rest_is_put_back_if_asked(host: Host) -> None:
    path, other = host.file(text="precious\n"), host.file("other")
    host.call("apply", apply_request(file_step(path), file_step(other)))
    entry = host.call("journal", {"change": "change-1"})["change"]["steps"][0]
    blob = host.state / "blobs" / entry["pre"]["sha256"]
    blob.write_text("flipped\n")
    assert host.call("undo")["code"] == "blob_damaged"
    assert (path.read_text(), other.read_text()) == (NEW, NEW)
    answer = host.call("undo", {"overwrite": [str(path)]})
    assert answer["code"] == "undo_incomplete" and "damaged" in answer["error"]
    assert (path.read_text(), other.read_text()) == (NEW, OLD)
    seen = host.call("journal", {"change": "change-1"})["change"]
    assert seen["status"] == "INCONSISTENT" and "damaged" in seen["reason"]
    blob.write_text("precious\n")
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == "precious\n"


def test_units_go_back_in_order(host: Host, units: Path) -> None:
    host.call("apply", apply_request(file_step(host.file()), unit_step("restart", enabled=True)))
    (units / "log").unlink()
    host.call("undo")
    ran = [line for line in (units / "log").read_text().splitlines() if line[:4] != "show"]
    assert ran == ["stop engine.service", "disable engine.service", "daemon-reload ",
                   "reset-failed engine.service", "start --no-block engine.service"]  # fmt: skip
    assert states(units) == ("active", "disabled")


def test_without_start_units_it_stops_and_names_what_to_start(host: Host, units: Path) -> None:
    host.call("apply", apply_request(unit_step("restart")))
    answer = host.call("undo", {"start_units": False})
    assert answer["to_start"] == ["engine.service"] and answer["status"] == "ROLLED_BACK"
    assert states(units) == ("inactive",)


def test_a_stop_step_is_undone_by_a_start_and_a_new_unit_is_not_left_running(
    host: Host, units: Path
) -> None:
    host.call("apply", apply_request(unit_step("stop")))
    assert states(units) == ("inactive",)
    host.call("undo")
    assert states(units) == ("active",)
    (units / "engine.service.active").unlink()
    host.call("apply", apply_request(unit_step("start", enabled=True), name="change-2"))
    host.call("undo")
    assert states(units) == ("inactive", "disabled")


def test_a_unit_that_will_not_start_ends_inconsistent_and_can_be_repeated(
    host: Host, units: Path
) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path), unit_step("restart")))
    (units / "fail-start").touch()
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and path.read_text() == OLD
    assert host.call("journal")["changes"][0]["status"] == "INCONSISTENT"
    (units / "fail-start").unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK" and states(units) == ("active",)


def test_a_second_apply_of_as_wanted_unit_runs_nothing(host: Host) -> None:
    units = host.systemctl()
    request = apply_request(unit_step("start", enabled=True))
    assert host.call("apply", request)["changed"] is True
    (units / "log").unlink()
    assert host.call("apply", request)["changed"] is False
    assert {line.split()[0] for line in (units / "log").read_text().splitlines()} == {"show"}


def test_a_folder_that_is_in_use_stays(host: Host) -> None:
    folder = host.root / "made"
    make = {"op": "directory", "path": str(folder), "mode": "0755"}
    host.call("apply", apply_request(make))
    (folder / "theirs").write_text("x")
    answer = host.call("undo")
    assert "not empty" in answer["steps"][0]["detail"] and (folder / "theirs").exists()


def test_a_blessed_change_is_not_undone_under_another_one_that_is_open(host: Host) -> None:
    """A's undo would stop the engine that B's run is about to prove."""
    path = committed(host)
    other = host.root / "other.conf"
    host.call("apply", apply_request(file_step(other), name="change-2"))
    answer = host.call("undo", {"change": "change-1"})
    assert answer["code"] == "change_open" and "change-2 (serve, tester@here)" in answer["error"]
    assert path.read_text() == NEW and "rignode undo change-2" in answer["remedy"]
    assert host.call("undo", {"change": "change-1", "despite": "change-9"})["ok"] is False
    done = host.run(host.argv("undo", "change-1", "--despite", "change-2"))
    assert done.returncode == 0 and path.read_text() == OLD


def test_an_open_change_that_is_older_is_no_reason_to_keep_a_newer_one(host: Host) -> None:
    """The newest goes first."""
    first = host.file("first.conf")
    host.call("apply", apply_request(file_step(first)))
    stored = host.state / "journal/change-1.json"
    newer = unsigned(stored)
    newer.update(id="change-2", opened_unix_s=newer["opened_unix_s"] + 9, steps=[])
    (stored.parent / "change-2.json").write_text(json.dumps(newer))
    assert host.call("undo", {"change": "change-1"})["code"] == "change_open"
    assert host.call("undo", {"change": "change-2"})["status"] == "ROLLED_BACK"


# An undo ends with a look: what lies there decides the status, not that nothing was raised.

ACL = "system.posix_acl_access"
NO_ATTRIBUTES = ["-e", "trace=fsetxattr", "-e", "inject=fsetxattr:error=ENOSPC"]


def journalled(host: Host, name: str = "change-1") -> dict[str, Any]:
    """A change as the journal has it."""
    found: dict[str, Any] = host.call("journal", {"change": name})["change"]
    return found


def test_a_file_that_is_written_again_while_the_undo_works(host: Host, units: Path) -> None:
    """By the very unit that the undo starts; so did a device plugin that copies its own back."""
    path = host.file()
    host.call("apply", apply_request(file_step(path), unit_step("restart")))
    script = host.bin / "systemctl"
    plain = script.read_text()
    script.write_text(plain.replace("start|restart)", f"start|restart) echo theirs > {path};", 1))
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and f"{path}: mode is 0644" not in answer["error"]
    assert f"{path}: sha256 is " in answer["error"] and "rignode undo change-1" in answer["remedy"]
    seen = journalled(host)
    assert seen["status"] == "INCONSISTENT" and str(path) in seen["reason"]
    # from now on it is a later edit, and goes when it is named
    script.write_text(plain)
    assert host.call("undo")["code"] == "later_edit"
    assert host.call("undo", {"overwrite": [str(path)]})["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD


UNITS: dict[str, tuple[dict[str, Any], Callable[[Path], object], str]] = {
    "it starts and ends": (
        {"active": "restart"},
        lambda units: (units / "engine.service.becomes").write_text("inactive\n"),
        "engine.service running is False, not True"),
    "enabling does nothing": (
        {"active": None, "enabled": False},
        lambda units: (script := units.parent / "systemctl").write_text(
            script.read_text().replace("enable) echo enabled >", "enable) echo disabled >")),
        "engine.service enabled is disabled, not enabled"),
    "systemd has not read its files": (
        {"active": "restart"},
        lambda units: (script := units.parent / "systemctl").write_text(
            script.read_text().replace("NeedDaemonReload=no", "NeedDaemonReload=yes")),
        "engine.service needs_reload is True, not False"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNITS)
def test_a_unit_that_is_not_as_before(host: Host, units: Path, case: str) -> None:
    step, broken, words = UNITS[case]
    (units / "engine.service.enabled").write_text("enabled\n")
    host.call("apply", apply_request(unit_step(**step)))
    broken(units)
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and words in answer["error"], answer
    assert journalled(host)["status"] == "INCONSISTENT"


def test_a_mask_that_the_change_made_is_no_former_state(host: Host, units: Path) -> None:
    """firmware masks by a link, then has systemd read it: the step finds its own mask."""
    (units / "engine.service.enabled").write_text("masked\n")
    host.call("apply", apply_request(file_step(host.file()), unit_step(None)))
    (units / "engine.service.enabled").write_text("static\n")
    assert host.call("undo")["status"] == "ROLLED_BACK"


def test_a_unit_that_the_caller_starts_is_no_difference(host: Host, units: Path) -> None:
    host.call("apply", apply_request(unit_step("restart")))
    answer = host.call("undo", {"start_units": False})
    assert (answer["status"], answer["to_start"]) == ("ROLLED_BACK", ["engine.service"])
    assert states(units) == ("inactive",)


def test_a_mended_thing_is_looked_at_again(host: Host, units: Path) -> None:
    """The next undo looks again, and ends the change where all is well."""
    tag = units / "engine.service.becomes"
    host.call("apply", apply_request(file_step(host.file()), unit_step("restart")))
    tag.write_text("inactive\n")
    assert host.call("undo")["code"] == "undo_incomplete"
    tag.unlink()
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert states(units) == ("active",)


def same_inode(tree: Path, wanted: int) -> None:
    """Make `tree` anew until the file system gives it the inode of the one that was removed."""
    held = []
    for n in range(2000):
        tree.mkdir()
        if tree.stat().st_ino == wanted:
            break
        held.append(tree.rename(tree.with_name(f"held-{n}")))
    for other in held:
        other.rmdir()
    assert tree.stat().st_ino == wanted, "this file system never gives an inode again"


def test_a_tree_is_not_known_by_its_inode_alone(host: Host) -> None:
    """ext4 gives an inode again at the first try; the undo said: was as before."""
    two(host)
    tree = host.root / "tree"
    inode = tree.stat().st_ino
    host.call("apply", apply_request(tree_step(host)))
    shutil.rmtree(host.root / "kept")
    (host.root / "tree").rename(host.root / "aside")
    same_inode(tree, inode)
    (tree / "version").write_text("third")
    answer = host.call("undo")
    assert answer["ok"] is False and answer["code"] in ("tree_gone", "later_edit"), answer
    assert "fresh" not in folders(host) and folders(host)["tree"] == "third"
    forced = host.call("undo", {"overwrite": [str(tree)]})
    assert forced["ok"] is False
    closed = host.call("close", {"change": "change-1", "status": "INCONSISTENT"})
    assert closed["change"]["status"] == "INCONSISTENT"


def acl(uid: int) -> bytes:
    """A POSIX ACL that lets one more user read: linux/posix_acl_xattr.h."""
    none = 0xFFFFFFFF
    rows = ((1, 6, none), (2, 4, uid), (4, 4, none), (16, 4, none), (32, 0, none))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


@pytest.mark.parametrize("step", ["file", "absent"])
def test_acl_and_xattrs_of_a_replaced_file_come_back(host: Host, step: str) -> None:
    path = host.file()
    os.setxattr(path, ACL, acl(1234))
    os.setxattr(path, "user.origin", b"ours")
    wanted = {"op": "absent", "path": str(path)} if step == "absent" else file_step(path)
    host.call("apply", apply_request(wanted))
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD
    assert os.getxattr(path, ACL) == acl(1234) and os.getxattr(path, "user.origin") == b"ours"


def test_an_acl_that_cannot_come_back_is_told(host: Host, tmp_path: Path) -> None:
    """The blob is whole, and the file system no longer takes the attribute (fault by strace)."""
    path = host.file()
    os.setxattr(path, "user.origin", b"ours")
    host.call("apply", apply_request(file_step(path)))
    done = strace.traced(host, "undo", "{}", NO_ATTRIBUTES, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert answer["code"] == "undo_incomplete" and "user.origin" in answer["error"], answer
    assert journalled(host)["status"] == "INCONSISTENT" and path.read_text() == OLD
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert os.getxattr(path, "user.origin") == b"ours"


def test_a_take_back_ends_with_the_look(host: Host, tmp_path: Path) -> None:
    path = host.file()
    os.setxattr(path, "user.origin", b"ours")
    bad = file_step(host.file("other"), validate=["false"])
    request = json.dumps(apply_request(file_step(path), bad))
    done = strace.traced(host, "apply", request, NO_ATTRIBUTES, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert "taking back failed too" in answer["error"] and "user.origin" in answer["error"], answer
    assert journalled(host)["status"] == "OPEN"
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert os.getxattr(path, "user.origin") == b"ours"


def test_close_does_not_call_it_rolled_back_unseen(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    (file,) = (host.state / "journal").glob("*.json")
    found = unsigned(file)
    found["steps"][0]["state"] = "undone"
    file.write_text(json.dumps(found))
    asked = {"change": "change-1", "status": "ROLLED_BACK", "reason": "by hand"}
    answer = host.call("close", asked)
    assert answer["code"] == "unfinished" and f"{path}: mode is 0644" in answer["error"], answer
    assert host.call("close", {**asked, "status": "INCONSISTENT"})["ok"]
    assert host.call("close", asked)["code"] == "unfinished"
    path.write_text(OLD)
    path.chmod(0o640)
    assert host.call("close", asked)["change"]["status"] == "ROLLED_BACK"


def test_two_steps_about_one_path_are_looked_at_as_one(host: Host) -> None:
    path, fresh = host.file(), host.root / "fresh"
    steps = [file_step(path, "one\n"), file_step(path, "two\n"), file_step(fresh),
             {"op": "absent", "path": str(fresh)}]  # fmt: skip
    host.call("apply", apply_request(*steps))
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD and not fresh.exists()


def down(state: str) -> Callable[[Path, Path], object]:
    """The engine's unit comes to a state by itself."""
    return lambda path, units: (units / "engine.service.active").write_text(f"{state}\n")


LATER: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a file is edited": (lambda path, units: path.write_text("mine\n"), "{path}: sha256 is "),
    "a file is removed": (lambda path, units: path.unlink(), "{path}: absent, not file"),
    "a file's mode": (lambda path, units: path.chmod(0o600), "{path}: mode is 0600, not 0644"),
    "a unit is stopped": (down("inactive"), "engine.service running is False, not True"),
    "a unit fails": (down("failed"), "engine.service running is False, not True"),
}


@pytest.mark.parametrize("case", LATER)
def test_close_does_not_call_it_committed_unseen(host: Host, units: Path, case: str) -> None:
    path = host.file()
    spoil, words = LATER[case]
    host.call("apply", apply_request(file_step(path, "first\n")))
    host.call("apply", apply_request(file_step(path), unit_step("restart")))
    spoil(path, units)
    asked = {"change": "change-1", "status": "COMMITTED", "reason": "proven"}
    answer = host.call("close", asked)
    assert answer["code"] == "later_edit", answer
    assert words.format(path=path) in answer["error"] and "\n" not in answer["error"]
    assert journalled(host)["status"] == "OPEN"
    # who keeps it says so, in two steps that the journal has
    typed = re.findall(r"rignode (close) '([^']*)'", answer["remedy"])
    assert [host.call(verb, json.loads(body))["change"]["status"] for verb, body in typed] == [
        "INCONSISTENT", "COMMITTED"]  # fmt: skip


def test_what_is_put_back_is_committed(host: Host, units: Path) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path), unit_step("restart")))
    written = path.read_text()
    path.write_text("mine\n")
    asked = {"change": "change-1", "status": "COMMITTED"}
    assert host.call("close", asked)["code"] == "later_edit"
    path.write_text(written)
    assert host.call("close", asked)["change"]["status"] == "COMMITTED"


def test_what_a_change_leaves_in_the_end_is_committed(host: Host, units: Path) -> None:
    """Of a path and a unit the last step counts; a oneshot has ended, and a stop needs no look: a
    reboot in the change starts the unit again."""
    path, other = host.file(), host.file("other")
    script = units.parent / "systemctl"
    kind = '[ "$last" = once.service ] && echo Type=oneshot'
    script.write_text(script.read_text().replace("show) echo", f"show) {kind}; echo", 1))
    (units / "once.service.becomes").write_text("inactive\n")
    once = {**unit_step("start"), "unit": "once.service"}
    host.call("apply", apply_request(file_step(path), file_step(other), once, unit_step("restart")))
    host.call("apply", apply_request({"op": "absent", "path": str(path)}, unit_step("stop")))
    host.call("apply", apply_request(file_step(other, "last\n")))
    down("active")(other, units)
    closed = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert closed["ok"] and closed["change"]["status"] == "COMMITTED", closed


# Whose an open change is: a run takes up a dead one's change, and what that one writes is refused.
#
# Runs are real processes of the program, with real locks and real files.

UNIT = "engine.service"
MINE, THEIRS = "a1", "b2"


def asked(run: str = THEIRS, former: str | None = MINE, **more: object) -> dict[str, object]:
    """A claim of change-1 by anna's run."""
    return {"change": "change-1", "run": run, "former": former, "operator": "anna@desk",
            "deploy": "serve", **more}  # fmt: skip


@pytest.fixture
def begun(host: Host) -> Path:
    """A file that a run wrote before it was cut off."""
    path = host.file()
    assert host.call("apply", apply_request(file_step(path), run=MINE))["status"] == "OPEN"
    return path


def test_what_a_run_writes_after_another_one_took_up_is_refused(host: Host, begun: Path) -> None:
    """An operator's laptop slept, another operator went on: each verb of the first is refused."""
    assert host.call("claim", asked())["claimed"] is True
    sleeper: dict[str, dict[str, object]] = {
        "apply": apply_request(file_step(begun, "late\n"), run=MINE),
        "close": {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": MINE},
        "undo": {"change": "change-1", "run": MINE},
    }
    for verb, request in sleeper.items():
        answer = host.call(verb, request)
        assert answer["code"] == "taken_up", answer
        assert "anna@desk (serve)" in answer["error"] and "this run is over" in answer["error"]
    assert begun.read_text() == NEW
    request = apply_request(file_step(begun, "hers\n"), run=THEIRS)
    assert host.call("apply", request)["changed"] and begun.read_text() == "hers\n"
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done)["changed"]
    # also once the change is closed, and no other one is open
    assert host.call("apply", sleeper["apply"])["code"] == "taken_up"


def test_a_change_that_another_one_took_meanwhile_is_not_claimed(host: Host, begun: Path) -> None:
    assert host.call("claim", asked())["claimed"]
    late = host.call("claim", asked(run="c3"))
    assert (late["claimed"], late["run"], late["operator"]) == (False, THEIRS, "anna@desk")
    assert late["quiet_s"] < 60
    # the same run asks again after a line that was lost
    assert host.call("claim", asked())["claimed"]


def test_of_two_claims_at_once_one_gets_it(host: Host, begun: Path) -> None:
    runs = [f"r{n}" for n in range(6)]
    started = [
        subprocess.Popen(host.argv("claim"), env=host.environ(), text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in runs
    ]  # fmt: skip
    for run, child in zip(runs, started, strict=True):
        assert child.stdin
        child.stdin.write(json.dumps(asked(run)))
        child.stdin.close()
    answers = [json.loads(child.stdout.read()) for child in started if child.stdout]
    won = [answer["run"] for answer in answers if answer.get("claimed")]
    assert len(won) == 1 and {child.wait() for child in started} == {0}
    assert host.call("journal", {"change": "change-1"})["change"]["run"] == won[0]


def test_a_change_of_an_older_version_is_taken_up_too(host: Host) -> None:
    """It has no token: nobody's."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    stored = host.state / "journal/change-1.json"
    change = unsigned(stored)
    del change["run"]
    stored.write_text(json.dumps(change))
    assert host.call("claim", asked(former=None))["claimed"]
    assert host.call("apply", apply_request(file_step(path, "x\n")))["code"] == "taken_up"


def test_a_claim_meets_the_lock_of_the_dead_runs_last_step(host: Host, begun: Path) -> None:
    holder = host.holding()
    answer = host.call("claim", asked())
    assert answer["code"] == "locked" and f"pid {holder.pid}" in answer["error"]
    holder.communicate("")
    assert host.call("claim", asked())["claimed"]


def claim_units(host: Host, **state: str) -> Path:
    """The stand-in systemctl with engine.service in these states."""
    folder = host.systemctl()
    for name, word in state.items():
        (folder / f"{UNIT}.{name}").write_text(f"{word}\n")
    return folder


def runs(folder: Path) -> str:
    """Whether engine.service runs."""
    return (folder / f"{UNIT}.active").read_text().strip()


def rows(host: Host) -> list[tuple[str, str]]:
    """The change's steps, each with its state."""
    change = host.call("journal", {"change": "change-1"})["change"]
    assert change["status"] == "OPEN"
    return [(step["op"], step["state"]) for step in change["steps"]]


def test_taken_back_is_all_but_the_start_of_the_former_engine(host: Host) -> None:
    """The new engine stops, the files are back, the former one is not started: the next run's
    undo still does, since its unit's steps know what ran before.
    """
    folder, path = claim_units(host, active="active", enabled="enabled"), host.file()
    steps = (file_step(path), unit_step("stop"), unit_step("start"))
    host.call("apply", apply_request(*steps, run=MINE))
    assert runs(folder) == "active"
    claimed = host.call("claim", asked(take_back=True, keep=[UNIT]))
    assert claimed["claimed"] and path.read_text() == OLD and runs(folder) == "inactive"
    assert rows(host) == [("file", "undone"), ("unit", "done"), ("unit", "done")]
    again = (file_step(path, "third\n"), unit_step("start"))
    assert host.call("apply", apply_request(*again, run=THEIRS))["changed"]
    undone = host.call("undo", {"change": "change-1", "run": THEIRS})
    assert undone["status"] == "ROLLED_BACK" and path.read_text() == OLD
    assert runs(folder) == "active" and (folder / "log").read_text().count("start") == 3


def test_what_was_taken_back_and_done_anew_can_be_blessed(host: Host) -> None:
    folder, path = claim_units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    host.call("claim", asked(take_back=True, keep=[UNIT]))
    host.call("apply", apply_request(file_step(path, "third\n"), unit_step("start"), run=THEIRS))
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done)["change"]["status"] == "COMMITTED"
    assert path.read_text() == "third\n" and runs(folder) == "active"


def test_another_unit_is_taken_back_whole(host: Host) -> None:
    """Only the engine waits for the run that goes on."""
    folder, path = claim_units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    host.call("claim", asked(take_back=True, keep=["rigbook-engine.service"]))
    assert rows(host) == [("file", "undone"), ("unit", "undone")]
    assert runs(folder) == "active"


@pytest.mark.parametrize(("wanted", "before", "now"), [
    ("stop", "active", "inactive"), ("start", "inactive", "active"),
])  # fmt: skip
def test_a_unit_step_whose_outcome_can_be_seen_is_done(
    host: Host, wanted: str, before: str, now: str
) -> None:
    """A node lost its power in a stop: the stop that took it up had nothing to do, and was not
    closed.
    """
    claim_units(host, active=before, enabled="enabled")
    host.call("apply", apply_request(unit_step(wanted), run=MINE))
    stored = host.state / "journal/change-1.json"
    change = unsigned(stored)
    change["steps"][0]["state"] = "intent"
    stored.write_text(json.dumps(change))
    assert host.call("claim", asked())["claimed"]
    assert not host.call("apply", apply_request(unit_step(wanted), run=THEIRS))["changed"]
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done).get("changed") is True, host.call("close", done)


def test_what_is_taken_back_is_looked_at(host: Host) -> None:
    """A unit that did not come back was called taken back; the engine's own stays down."""
    folder, path = claim_units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    (folder / f"{UNIT}.becomes").write_text("inactive\n")
    answer = host.call("claim", asked(take_back=True))
    assert answer["code"] == "undo_incomplete" and "running is False" in answer["error"], answer
    assert host.call("claim", asked(take_back=True, keep=[UNIT]))["claimed"]


def test_a_later_edit_is_not_taken_back(host: Host, begun: Path) -> None:
    begun.write_text("mine\n")
    answer = host.call("claim", asked(take_back=True))
    assert answer["code"] == "later_edit" and begun.read_text() == "mine\n"
    assert host.call("claim", asked(take_back=True, overwrite=[str(begun)]))["claimed"]
    assert begun.read_text() == OLD


def test_a_beat_says_that_a_run_lives_and_the_last_one_that_it_is_over(
    host: Host, begun: Path
) -> None:
    stored = host.state / "journal/change-1.json"
    os.utime(stored, (0, time.time() - 500))

    def quiet() -> Any:
        # a run that has not seen whose it is
        return host.call("claim", asked(run="c3", former="nobody"))["quiet_s"]

    assert quiet() > 400
    assert host.call("beat", {"change": "change-1", "run": MINE})["mine"] is True
    assert quiet() < 60
    os.utime(stored, (0, time.time() - 500))
    assert host.call("beat", {"change": "change-1", "run": THEIRS})["mine"] is False
    assert quiet() > 400
    host.call("beat", {"change": "change-1", "run": MINE, "over": True})
    assert quiet() > 1e9


def test_a_beat_does_not_wait_for_a_step_that_holds_the_lock(host: Host, begun: Path) -> None:
    holder = host.holding()
    assert host.call("beat", {"change": "change-1", "run": MINE})["mine"] is True
    holder.communicate("")


def test_a_committed_change_is_not_taken_back(host: Host, begun: Path) -> None:
    """A sleeping laptop woke and closed its change between another one's look and its claim."""
    assert host.call("close", {"change": "change-1", "status": "COMMITTED", "run": MINE})["changed"]
    answer = host.call("claim", asked(take_back=True))
    assert (answer["claimed"], answer["status"]) == (False, "COMMITTED")
    assert begun.read_text() == NEW


def test_a_rollback_claims_a_committed_change(host: Host, begun: Path) -> None:
    assert host.call("close", {"change": "change-1", "status": "COMMITTED", "run": MINE})["changed"]
    assert host.call("claim", asked())["claimed"] is True
    assert begun.read_text() == NEW
