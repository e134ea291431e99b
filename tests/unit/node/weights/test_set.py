"""A set of weights is switched as one, and what it replaces comes back: also after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.unit.node.support import transfers as t
from tests.unit.node.support.host import change
from tests.unit.node.support.transfers import Ends, content, files

MIB = 1 << 20
SECOND = {"id": "change-2", "deploy": "weights", "operator": "t"}


def two_sets(ends: Ends) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The giver's set and the good one of the taker, of the same names."""
    new = files(ends.source, config_json=40, one_safetensors=MIB, two_safetensors=2 * MIB)
    (ends.source / "sub").mkdir()
    (ends.source / "sub" / "x.txt").write_bytes(b"giver's")
    files(ends.target, old_bin=9)
    good = {name: bytes(reversed(raw)) for name, raw in new.items()}
    for name, raw in good.items():
        (ends.target / name).write_bytes(raw)
    os.chown(ends.target / "config.json", 12, 34)
    (ends.target / "config.json").chmod(0o600)
    return {**new, "sub/x.txt": b"giver's"}, content(ends.target)


def read(path: Path) -> bytes:
    """What it holds; nothing where it got another name meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def marks(ends: Ends) -> list[str]:
    """What says that the set is none, and what is kept of a former one."""
    own = ends.target / ".rigbook"
    return sorted(p.name for p in own.glob("*") if p.name.startswith(("incomplete", "displaced")))


def test_undo_brings_back_what_was_replaced_and_pruned(ends: Ends) -> None:
    """weights from=NODE of the wrong node replaced the good ones, and undo said ROLLED_BACK."""
    new, good = two_sets(ends)
    before = {name: (ends.target / name).stat() for name in good}
    got, _ = ends.move(prune=True)
    assert got["ok"] and content(ends.target) == new
    assert {row["name"]: row["size"] for row in got["replaced"]} == {
        name: len(raw) for name, raw in good.items()
    }
    assert marks(ends) == ["displaced-change-1"]
    assert got["displaced"] == str(ends.target / ".rigbook" / "displaced-change-1")
    undone = ends.taker.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and content(ends.target) == good
    for name, was in before.items():
        now = (ends.target / name).stat()
        assert (now.st_ino, now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns) == (
            was.st_ino, was.st_mode, was.st_uid, was.st_gid, was.st_mtime_ns)  # fmt: skip
    assert marks(ends) == [] and not (ends.target / "sub").exists()


def test_a_link_that_was_replaced_is_a_link_again(ends: Ends) -> None:
    files(ends.source, a_bin=10, b_bin=20)
    files(ends.target, real_bin=7)
    (ends.target / "a.bin").symlink_to("real.bin")
    assert ends.move()[0]["ok"] and not (ends.target / "a.bin").is_symlink()
    assert ends.taker.call("undo", {})["status"] == "ROLLED_BACK"
    assert str((ends.target / "a.bin").readlink()) == "real.bin" and marks(ends) == []


def test_a_giver_that_fails_between_two_files_leaves_the_former_set(ends: Ends) -> None:
    """Fault 61: shard 1 of one revision lay beside shard 2 of the other, both under their names."""
    new, good = two_sets(ends)
    with ends.meddled(t.slow), ends.offering() as offer:
        taker = ends.start(ends.taker, "weights receive", ends.receive(streams=1))
        whole = ends.target / ".rigbook"
        t.kill_when(offer, lambda: any(new["two.safetensors"] == read(p)
                                       for p in whole.glob("*") if p.is_file()),
                    signal.SIGKILL)  # fmt: skip
        taker.send_signal(signal.SIGTERM)
        assert t.answer(taker)["code"] == "interrupted"
    assert content(ends.target) == good and marks(ends) == []
    got, _ = ends.move()
    assert got["resumed_bytes"] >= 2 * MIB and got["wire_bytes"] < 2 * MIB
    assert content(ends.target) == {**new, "old.bin": good["old.bin"]}


def test_a_part_of_a_cut_off_run_is_no_change_to_undo(ends: Ends) -> None:
    files(ends.source, a_bin=20 * MIB)
    good = files(ends.target, a_bin=5, b_bin=6)
    ends.killed_taker(4 * MIB)
    undone = ends.taker.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and content(ends.target) == good
    (step,) = undone["steps"]
    assert "no file was replaced" in step["detail"]


def test_a_later_edit_is_kept_unless_it_is_named(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    (ends.target / "config.json").write_bytes(b"edited")
    said = ends.taker.call("undo", {})
    assert (said["code"], (ends.target / "config.json").read_bytes()) == ("later_edit", b"edited")
    assert str(ends.target) in said["error"]
    done = ends.taker.call("undo", {"overwrite": [str(ends.target)]})
    assert done["status"] == "ROLLED_BACK" and content(ends.target) == good


def test_former_files_that_were_removed_refuse_the_undo_before_anything_is_touched(
    ends: Ends,
) -> None:
    new, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    kept = ends.target / ".rigbook" / "displaced-change-1"
    (kept / "one.safetensors").unlink()
    said = ends.taker.call("undo", {})
    assert said["code"] == "displaced_gone" and str(kept / "one.safetensors") in said["error"]
    assert content(ends.target) == {**new, "old.bin": good["old.bin"]}


def test_one_former_set_at_most_is_kept(ends: Ends) -> None:
    """Until the next run that brings something, once its change is settled."""
    new, _ = two_sets(ends)
    first = ends.move(prune=True)[0]
    assert first["freed"] == []
    again = ends.move(change=change())[0]
    assert not again["changed"] and marks(ends) == ["displaced-change-1"]
    assert ends.taker.call("close", {"change": "change-1", "status": "COMMITTED"})["ok"]
    (ends.source / "config.json").write_bytes(b"a third")
    got, _ = ends.move(change=SECOND)
    (freed,) = got["freed"]
    assert (freed["change"], freed["files"]) == ("change-1", 4)
    assert freed["bytes"] == 3 * MIB + 40 + 9
    assert marks(ends) == ["displaced-change-2"]
    assert ends.taker.call("undo", {"change": "change-2"})["status"] == "ROLLED_BACK"
    assert content(ends.target) == new and marks(ends) == []
    assert ends.taker.call("undo", {"change": "change-1"})["code"] == "displaced_gone"


def test_a_blessed_change_can_be_undone_as_long_as_its_files_are_kept(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    assert ends.taker.call("close", {"change": "change-1", "status": "COMMITTED"})["ok"]
    assert ends.taker.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert content(ends.target) == good


def test_two_sets_of_one_change_are_undone_to_the_first(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    (ends.source / "config.json").write_bytes(b"a third")
    (ends.source / "one.safetensors").write_bytes(b"a fourth")
    assert ends.move()[0]["replaced"]
    assert marks(ends) == ["displaced-change-1", "displaced-change-1+1"]
    assert ends.taker.call("undo", {})["status"] == "ROLLED_BACK"
    assert content(ends.target) == good and marks(ends) == []
