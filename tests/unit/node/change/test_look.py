"""An undo ends with a look: what lies there decides the status, not that nothing was raised."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.change.test_link_and_tree_step import folders, tree_step, two
from tests.unit.node.change.test_undo import states, units
from tests.unit.node.support import strace
from tests.unit.node.support.host import OLD, Host, apply_request, file_step, unit_step, unsigned

__all__ = ["units"]
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
