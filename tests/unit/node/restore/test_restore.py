"""tree restore: what comes back runs, what lay there is kept, and undo trades back."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from node.backup import store
from tests.unit.node.backup.test_verify import save
from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import target
from tests.unit.node.support.trees import Engine, picture


def upgrade(engine: Engine) -> None:
    """The seed's upgrade, in place."""
    trees.install(engine.tree, engine.wheels, "0.28.0")
    assert engine.run() == "stand-in vllm 0.28.0"


@pytest.fixture
def upgraded(engine: Engine) -> Engine:
    """A verified backup, and the upgrade after it."""
    engine.verified()
    upgrade(engine)
    return engine


def test_back_after_an_upgrade_in_place(engine: Engine) -> None:
    assert engine.run() == "stand-in vllm 0.27.0"
    before = picture(engine.tree)
    backup = engine.verified()
    upgrade(engine)
    broken = picture(engine.tree)
    answer = engine.restore()
    assert (answer["backup"], answer["changed"], answer["status"]) == (backup, True, "OPEN")
    assert picture(engine.tree) == before and engine.run() == "stand-in vllm 0.27.0"
    # kept for the post-mortem, in a folder that only root may enter
    kept = Path(answer["displaced"][0])
    assert picture(kept) == broken and oct(kept.parent.stat().st_mode) == "0o40700"
    engine.close()
    assert engine.ask("list")["displaced"] == [
        {"path": str(kept.parent), "change": "restore-1", "status": "COMMITTED"}
    ]


def test_undo_trades_back_and_again_changes_nothing(upgraded: Engine) -> None:
    broken = picture(upgraded.tree)
    upgraded.restore()
    for answer in ({"status": "ROLLED_BACK"}, {"changed": False}):
        assert upgraded.host.call("undo").items() >= answer.items()
        assert picture(upgraded.tree) == broken


def test_a_second_restore_changes_nothing(upgraded: Engine) -> None:
    assert upgraded.restore()["changed"] is True
    again = upgraded.restore()
    assert (again["changed"], again["status"]) == (False, "OPEN")
    upgraded.close()
    names = upgraded.names()
    other = upgraded.restore("restore-2")
    assert (other["changed"], other["change"]) == (False, None) and upgraded.names() == names
    assert upgraded.restore("restore-3", force=True)["changed"] is True


def test_the_tree_was_removed_altogether(engine: Engine) -> None:
    before = picture(engine.tree)
    engine.verified()
    shutil.rmtree(engine.tree)
    answer = engine.restore()
    assert picture(engine.tree) == before and answer["displaced"] == []
    assert engine.host.call("undo")["ok"] and not engine.tree.exists()


def test_an_entry_point_that_is_missing_comes_back_and_runs(engine: Engine) -> None:
    """The seed's evening: pip uninstall took bin/vllm, the unit ended with 127."""
    engine.verified()
    (engine.tree / "bin" / "vllm").unlink()
    assert engine.run() == "FileNotFoundError"
    engine.restore()
    assert engine.run() == "stand-in vllm 0.27.0"


def test_dry_says_what_and_changes_nothing(engine: Engine) -> None:
    backup = engine.verified()
    upgrade(engine)
    names, seen = engine.names(), picture(engine.tree)
    answer = engine.restore(dry=True)
    assert (answer["backup"], answer["changed"], answer["change"]) == (backup, True, None)
    assert answer["detail"] and answer["room_bytes"] > 0
    assert engine.names() == names and picture(engine.tree) == seen


def test_only_verified_ones_unless_named(engine: Engine) -> None:
    backup = engine.backup()
    upgrade(engine)
    assert engine.restore()["code"] == "no_backup"
    assert engine.restore(backup=backup)["changed"] is True


def behind_a_link(engine: Engine) -> Path:
    """The venv in a folder of its version, and the path as a link to it."""
    real = engine.tree.parent / "venvs" / "0.27.0"
    real.parent.mkdir()
    engine.tree.rename(real)
    engine.tree.symlink_to("venvs/0.27.0")
    return real


def test_a_venv_behind_a_link(engine: Engine) -> None:
    real = behind_a_link(engine)
    before = picture(real)
    backup = engine.verified()
    manifest = engine.manifest(backup)
    assert (manifest["tree"], manifest["real"], manifest["link"]) == (
        str(engine.tree), str(real), "venvs/0.27.0")  # fmt: skip
    newer = real.parent / "0.28.0"
    trees.moved(real, newer)
    engine.tree.unlink()
    engine.tree.symlink_to("venvs/0.28.0")
    shutil.rmtree(real)
    engine.restore(tree=str(engine.tree))
    assert picture(real) == before and target(engine.tree) == "venvs/0.27.0"
    assert engine.run() == "stand-in vllm 0.27.0"
    assert engine.host.call("undo")["ok"]
    assert target(engine.tree) == "venvs/0.28.0" and not real.exists()


@pytest.mark.parametrize(("part", "key", "value", "waive"), [
    ("host", "machine_id", "f" * 32, "host"), ("host", "arch", "vax", "arch"),
    ("interpreter", "real", "/usr/bin/python3.4", "python"),
])  # fmt: skip
def test_a_backup_of_elsewhere_is_refused_and_can_be_allowed_by_name(
    engine: Engine, part: str, key: str, value: str, waive: str
) -> None:
    backup = engine.backup()
    manifest: dict[str, Any] = engine.manifest(backup)
    manifest["facts"][part][key] = value
    save(engine, backup, manifest)
    assert engine.ask("verify", {"backup": backup})["ok"]
    upgrade(engine)
    seen = picture(engine.tree)
    answer = engine.restore()
    assert answer["code"] == "backup_misfit" and waive in answer["remedy"]
    assert picture(engine.tree) == seen
    assert engine.restore(allow=["older"])["code"] == "backup_misfit"
    answer = engine.restore(allow=[waive])
    assert answer["changed"] is True and len(answer["waived"]) == 1
    assert engine.run() == "stand-in vllm 0.27.0"


def test_another_path_is_refused_and_can_be_allowed_by_name(engine: Engine) -> None:
    backup = engine.verified()
    other = engine.tree.parent / "other"
    answer = engine.restore(backup=backup, tree=str(other))
    assert answer["code"] == "backup_misfit" and "old path" in answer["error"]
    assert engine.restore(tree=str(other))["code"] == "no_backup"
    assert engine.restore(backup=backup, tree=str(other), allow=["path"])["changed"] is True
    assert picture(other) == picture(engine.tree)


def test_an_older_install_is_refused_and_can_be_allowed_by_name(engine: Engine) -> None:
    old = engine.verified()
    upgrade(engine)
    new = engine.verified()
    answer = engine.restore(backup=old)
    assert answer["code"] == "backup_misfit" and new in answer["error"]
    assert engine.restore(backup=old, allow=["older"])["changed"] is True
    assert engine.run() == "stand-in vllm 0.27.0"


def test_the_base_interpreter_is_gone(engine: Engine) -> None:
    """Nobody may waive it: nothing of the tree could run."""
    base = engine.tree.parent / "python3.9"
    base.symlink_to(os.path.realpath(engine.tree / "bin" / "python"))
    for name in ("python", "python3"):
        (engine.tree / "bin" / name).unlink(missing_ok=True)
        (engine.tree / "bin" / name).symlink_to(base)
    backup = engine.verified()
    assert engine.manifest(backup)["facts"]["interpreter"]["base"] == str(base)
    base.unlink()
    answer = engine.restore(force=True, allow=["host", "path", "python", "arch", "older"])
    assert answer["code"] == "no_interpreter" and str(base) in answer["error"]


def test_an_interpreter_inside_the_tree_comes_with_it(engine: Engine) -> None:
    python = engine.tree / "bin" / "python"
    inside = python.with_name("python3-of-its-own")
    shutil.copy2(os.path.realpath(python), inside)
    python.unlink()
    python.symlink_to(inside.name)
    backup = engine.verified()
    assert engine.manifest(backup)["facts"]["interpreter"]["inside"] is True
    shutil.rmtree(engine.tree)
    assert engine.restore()["changed"] is True and inside.exists()


@pytest.fixture
def on_small_disk(engine: Engine, small_disk: Path) -> Engine:
    """A tree with a backup on a file system of 2 MB, filled by itself to more than the half."""
    moved = small_disk / "venv"
    trees.moved(engine.tree, moved)
    (moved / "large.bin").write_bytes(os.urandom(700_000))
    engine.tree = moved
    engine.verified()
    (moved / "large.bin").write_bytes(b"edited")
    return engine


def untouched(engine: Engine) -> bool:
    """Whether only the tree and what fills the disk lie there, and no change was opened."""
    names = sorted(path.name for path in engine.tree.parent.iterdir())
    return names == ["full", "venv"] and engine.host.call("journal")["changes"] == []


def test_no_room_for_the_restore_is_said_before_anything_is_done(on_small_disk: Engine) -> None:
    (on_small_disk.tree.parent / "full").write_bytes(bytes(900_000))
    answer = on_small_disk.restore()
    assert answer["code"] == "no_room" and "MiB are free" in answer["error"]
    assert untouched(on_small_disk)


def test_a_disk_that_fills_in_the_restore_changes_nothing(on_small_disk: Engine) -> None:
    seen, full = picture(on_small_disk.tree), on_small_disk.tree.parent / "full"
    # a stand-in for another program that fills the disk once the room was looked at
    on_small_disk.host.double("zstd", f"#!/bin/sh\nhead -c 1400000 /dev/zero > {full}\n"
                              'PATH=/usr/bin:/bin exec zstd "$@"\n')  # fmt: skip
    answer = on_small_disk.restore()
    assert answer["code"] == "tree_failed" and "No space left on device" in answer["error"]
    assert answer["error"].endswith("nothing was changed")
    assert untouched(on_small_disk) and picture(on_small_disk.tree) == seen


def test_what_was_unpacked_is_looked_at_before_it_is_used(upgraded: Engine) -> None:
    seen = picture(upgraded.tree)
    # a stand-in for a tar that loses a file and says nothing
    script = """#!/bin/sh
export PATH=/usr/bin:/bin; tar "$@"
[ "$1" = --extract ] || exit 0
for a; do case $a in --directory=*) rm "${a#*=}"/bin/vllm;; esac; done
"""
    upgraded.host.double("tar", script)
    answer = upgraded.restore()
    assert answer["code"] == "tree_failed" and "bin/vllm" in answer["error"]
    assert picture(upgraded.tree) == seen and upgraded.names()[0] == "venv"


def test_nothing_of_the_tree_is_run_before_it_is_in_place(upgraded: Engine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    request = json.dumps({"change": {"id": "restore-1", "deploy": "x", "operator": "x"}})
    options = ("-e", "trace=execve")
    done = strace.traced(upgraded.host, "tree restore", request, options, log)
    assert json.loads(done.stdout)["changed"] is True
    # strace splits a call in two lines when another process calls meanwhile
    lines = [line for line in log.read_text().splitlines() if "= -1" not in line]
    ran = {found[1] for line in lines if (found := re.search(r'execve\("([^"]+)"', line))}
    assert len(ran) >= 3 and not any(str(upgraded.tree.parent) in path for path in ran)


def test_another_open_change_comes_first(upgraded: Engine) -> None:
    assert upgraded.restore("restore-1")["changed"] is True
    answer = upgraded.restore("restore-2", force=True)
    assert answer["code"] == "change_open" and "restore-1" in answer["error"]


def test_at_the_console_no_more_than_the_verb_is_needed(upgraded: Engine) -> None:
    answer = json.loads(upgraded.host.run(upgraded.host.argv("tree restore")).stdout)
    assert answer["changed"] is True and answer["status"] == "OPEN"
    assert upgraded.run() == "stand-in vllm 0.27.0"
    assert "OPEN" in upgraded.host.run(upgraded.host.argv("status")).stdout


def test_a_kept_tree_that_is_gone_is_said_before_an_undo_touches_anything(upgraded: Engine) -> None:
    kept = upgraded.restore()["displaced"][0]
    seen = picture(upgraded.tree)
    shutil.rmtree(kept)
    answer = upgraded.host.call("undo")
    assert answer["code"] == "tree_gone" and kept in answer["error"]
    assert picture(upgraded.tree) == seen
    assert store.all_backups()


@pytest.mark.parametrize(("request_", "words"), [
    ({"backup": "../../etc"}, "not the id"), ({"backup": "-rf"}, "not the id"),
    ({"backup": "20260101T000000Z-venv-0000"}, "no backup"), ({"allow": ["all"]}, "one of"),
    ({"tree": "x"}, "absolute"), ({"force": "yes"}, "true nor false"), ({"x": 1}, "unknown key"),
])  # fmt: skip
def test_bad_requests_are_refused(engine: Engine, request_: dict[str, object], words: str) -> None:
    engine.verified()
    answer = engine.restore(**request_)
    assert answer["ok"] is False and words in answer["error"], answer
