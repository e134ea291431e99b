"""tree restore: what comes back runs, what lay there is kept, and undo trades back."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from node.backup import store
from node.change.transaction import undo
from tests.unit.node.backup.test_verify import payload, save
from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import change, file_step, target
from tests.unit.node.support.strace import Faulted
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


# tree unpack: the backup lies beside, proven, while the engine runs; tree restore then trades.

OLD, NEW = "stand-in vllm 0.28.0", "stand-in vllm 0.27.0"
HEADER = {"id": "restore-1", "deploy": "rollback", "operator": "tester@here"}


def unpack(engine: Engine, **more: object) -> dict[str, Any]:
    """Unpack as the change that restores."""
    return engine.ask("unpack", {"change": HEADER, **more})


def work_folder(engine: Engine) -> Path:
    """The one folder beside the tree in which the restore works."""
    (found,) = engine.tree.parent.glob(".rigbook-*")
    return found


def test_unpacked_first_then_only_traded(upgraded: Engine) -> None:
    broken = picture(upgraded.tree)
    answer = unpack(upgraded)
    assert (answer["changed"], answer["status"]) == (True, "OPEN")
    assert picture(upgraded.tree) == broken and upgraded.run() == OLD
    inode = (work_folder(upgraded) / "new").stat().st_ino
    assert unpack(upgraded)["changed"] is False
    answer = upgraded.restore()
    assert answer["changed"] is True and upgraded.run() == NEW
    assert upgraded.tree.stat().st_ino == inode, "it was unpacked once more"
    assert picture(Path(answer["displaced"][0])) == broken
    assert upgraded.host.call("undo")["status"] == "ROLLED_BACK"
    assert picture(upgraded.tree) == broken


def test_an_undo_removes_what_was_never_used(upgraded: Engine) -> None:
    names, seen = upgraded.names(), picture(upgraded.tree)
    unpack(upgraded)
    assert upgraded.host.call("undo")["status"] == "ROLLED_BACK"
    assert upgraded.names() == names and picture(upgraded.tree) == seen


def test_a_tree_that_is_as_the_backup_needs_nothing(engine: Engine) -> None:
    engine.verified()
    names = engine.names()
    answer = unpack(engine)
    assert (answer["changed"], answer["change"]) == (False, None) and engine.names() == names


def edited(new: Path) -> None:
    """Other bytes of the same length and time."""
    file = next(new.rglob("data.bin"))
    times = file.stat()
    file.write_bytes(b"x" * times.st_size)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def removed(new: Path) -> None:
    """A file less."""
    (new / "bin" / "vllm").unlink()


@pytest.mark.parametrize("damage", [edited, removed])
def test_what_changed_since_it_was_proven_is_never_used(
    upgraded: Engine, damage: Callable[[Path], None]
) -> None:
    seen = picture(upgraded.tree)
    unpack(upgraded)
    damage(work_folder(upgraded) / "new")
    answer = upgraded.restore()
    assert answer["code"] == "tree_failed" and answer["error"].endswith("nothing was changed")
    assert picture(upgraded.tree) == seen
    assert not list(upgraded.tree.parent.glob(".rigbook-*"))
    assert upgraded.restore("restore-2")["changed"] is True and upgraded.run() == NEW


def test_killed_anywhere_the_tree_is_as_it_was_and_the_same_again_gets_through(
    upgraded: Engine, show: Callable[[str], None]
) -> None:
    def reset() -> None:
        assert undo({})["status"] in (None, "ROLLED_BACK")
        assert not upgraded.ask("prune", {"displaced": True}).get("displaced_kept")
        shutil.rmtree(upgraded.host.state / "journal", ignore_errors=True)

    faulted = Faulted(upgraded.host, "tree unpack", {"change": HEADER, "force": True}, reset)
    cells: Counter[str] = Counter()
    points = [point for point in faulted.points(*strace.TREES) if point[1] % 5 == 1]
    assert len(points) > 5
    for point, done in faulted.each(points):
        assert upgraded.run() == OLD, point
        cells["killed" if done.returncode else "answered"] += 1
        assert unpack(upgraded, force=True)["ok"], point
        assert upgraded.restore()["changed"] is True and upgraded.run() == NEW, point
        assert undo({})["status"] == "ROLLED_BACK" and upgraded.run() == OLD, point
    show(f"TABLE unpack: {len(points)} points, {dict(cells)}, 0 lost")


# A restore brings the unit, its drop-ins and launch files back as the backup recorded them.

UNIT = "engine.service"


@pytest.fixture
def recorded(engine: Engine) -> Engine:
    """A backup with a unit, a drop-in and a launch script; then all of them are changed."""
    folder = engine.host.root / "etc"
    (folder / f"{UNIT}.d").mkdir(parents=True)
    for name, text in HOST_FILES_OLD.items():
        (folder / name).write_text(text)
    (folder / "serve.sh").chmod(0o755)
    engine.verified(files=[str(folder / name) for name in (*HOST_FILES_OLD, "absent")])
    (folder / UNIT).write_text("[Service]\nExecStart=/new\n")
    (folder / f"{UNIT}.d" / "10-old.conf").unlink()
    (folder / f"{UNIT}.d" / "20-new.conf").write_text("[Service]\nNice=9\n")
    (folder / "serve.sh").write_text("exec new --flag\n")
    return engine


def etc(engine: Engine) -> dict[str, str]:
    """All files of the host's folder, by name."""
    folder = engine.host.root / "etc"
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


HOST_FILES_OLD = {
    UNIT: "[Service]\nExecStart=/old\n",
    f"{UNIT}.d/10-old.conf": "[Service]\nNice=5\n",
    "serve.sh": "exec old\n",
}


def test_the_unit_its_drop_ins_and_its_launch_come_back_as_recorded(recorded: Engine) -> None:
    changed = etc(recorded)
    dry = recorded.restore(dry=True)
    assert dry["changed"] and not dry["unpacks"] and etc(recorded) == changed
    assert f"remove {recorded.host.root}/etc/{UNIT}.d/20-new.conf" in dry["files"]
    answer = recorded.restore()
    assert answer["ok"] and answer["changed"] and answer["displaced"] == [], answer
    assert etc(recorded) == HOST_FILES_OLD
    assert (recorded.host.root / "etc" / "serve.sh").stat().st_mode & 0o777 == 0o755
    again = recorded.restore(dry=True)
    assert not again["changed"] and again["files"] == []


def test_undo_gives_back_what_lay_there(recorded: Engine) -> None:
    changed = etc(recorded)
    (recorded.tree / "bin" / "vllm").unlink()
    answer = recorded.restore()
    assert answer["ok"] and answer["displaced"] and etc(recorded) == HOST_FILES_OLD
    assert recorded.run().startswith("stand-in vllm")
    assert recorded.host.call("undo", {})["status"] == "ROLLED_BACK"
    assert etc(recorded) == changed and not (recorded.tree / "bin" / "vllm").exists()


def test_a_file_that_cannot_be_written_takes_all_of_it_back(recorded: Engine) -> None:
    script = recorded.host.root / "etc" / "serve.sh"
    script.unlink()
    script.mkdir()
    before = etc(recorded)
    (recorded.tree / "bin" / "vllm").unlink()
    answer = recorded.restore()
    assert not answer["ok"] and "nothing was changed" in answer["error"], answer
    assert etc(recorded) == before and not (recorded.tree / "bin" / "vllm").exists()
    assert recorded.host.call("journal", {})["changes"] == []


def test_another_path_leaves_the_units_alone(recorded: Engine, tmp_path: Path) -> None:
    changed = etc(recorded)
    other = recorded.tree.parent / "elsewhere"
    backup = recorded.ask("list")["backups"][0]["id"]
    answer = recorded.restore(backup=backup, tree=str(other), allow=["path"])
    assert answer["ok"], answer
    assert etc(recorded) == changed and (other / "bin" / "vllm").exists()


def test_mode_owner_and_bytes_that_are_no_text_come_back(engine: Engine) -> None:
    env = engine.host.file("engine.env", None)
    env.write_bytes(b"A=\xff\xfe\n")
    env.chmod(0o600)
    os.chown(env, pwd.getpwnam("daemon").pw_uid, grp.getgrnam("daemon").gr_gid)
    before = env.stat()
    engine.verified(files=[str(env)])
    assert engine.restore(dry=True)["changed"] is False
    edits: list[Callable[[], object]] = [
        lambda: env.chmod(0o644), lambda: os.chown(env, 0, 0), lambda: env.write_bytes(b"A=?\n"),
        env.unlink,
    ]  # fmt: skip
    for n, edit in enumerate(edits):
        edit()
        answer = engine.restore(f"restore-{n}")
        assert answer["ok"] and answer["files"] == [f"write {env}"], (n, answer)
        engine.close(f"restore-{n}")
        now = env.stat()
        assert env.read_bytes() == b"A=\xff\xfe\n"
        assert (now.st_mode, now.st_uid, now.st_gid) == (
            before.st_mode, before.st_uid, before.st_gid)  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), [
    (lambda path: path.write_text("[Service]\nExecStart=/evil\n"), "is not as it was recorded"),
    (lambda path: path.chmod(0o777), "is not as it was recorded"),
    (lambda path: os.chown(path, 12345, 0), "is not as it was recorded"),
    (lambda path: path.unlink(), "cannot be read"),
    (lambda path: path.with_name("more.service").touch(), "is not in its manifest"),
])  # fmt: skip
def test_a_kept_file_that_was_edited_is_never_brought_back(
    recorded: Engine, damage: Callable[[Path], object], words: str
) -> None:
    changed = etc(recorded)
    backup = recorded.ask("list")["backups"][0]["id"]
    damage(Path(f"{recorded.backups}/{backup}/files{recorded.host.root}/etc/{UNIT}"))
    for answer in (recorded.restore(), recorded.ask("verify", {"backup": backup})):
        assert answer["code"] == "backup_damaged" and words in answer["error"], answer
    assert etc(recorded) == changed
    assert recorded.ask("list")["backups"][0]["usable"] is False


# tree prune: never the last verified one, never what an open change needs.


def several(engine: Engine, count: int, *verified: int) -> list[str]:
    """Backups of a tree that is another one each time, oldest first; those of `verified` are."""
    found = []
    for number in range(count):
        (engine.package / "data.bin").write_text(f"version {number}")
        found.append(engine.backup())
    for number in verified:
        assert engine.ask("verify", {"backup": found[number]})["ok"]
    return found


def ids(rows: list[dict[str, object]]) -> set[object]:
    """The ids of rows."""
    return {row["id"] for row in rows}


def test_the_newest_are_kept(engine: Engine) -> None:
    made = several(engine, 4, 3)
    dry = engine.ask("prune", {"keep": 2, "dry": True})
    assert ids(dry["removed"]) == set(made[:2]) and len(engine.ask("list")["backups"]) == 4
    answer = engine.ask("prune", {"keep": 2})
    assert ids(answer["removed"]) == set(made[:2]) and ids(answer["kept"]) == set(made[2:])
    assert answer["freed_bytes"] > 0
    assert [row["id"] for row in engine.ask("list")["backups"]] == [made[3], made[2]]
    assert engine.ask("prune", {"keep": 2})["removed"] == []


def test_the_last_verified_one_stays_however_old(engine: Engine) -> None:
    made = several(engine, 4, 0)
    why = {row["id"]: row["why"] for row in engine.ask("prune", {"keep": 1})["kept"]}
    assert why.keys() == {made[0], made[3]} and "last verified" in why[made[0]]
    assert engine.ask("verify", {"backup": made[0]})["ok"]


def test_one_that_was_found_damaged_is_not_the_last_verified_one(engine: Engine) -> None:
    made = several(engine, 3, 0, 1, 2)
    raw = bytearray(payload(engine, made[2]).read_bytes())
    raw[len(raw) // 2] ^= 1
    payload(engine, made[2]).write_bytes(raw)
    assert engine.ask("verify", {"backup": made[2]})["code"] == "backup_damaged"
    answer = engine.ask("prune", {"keep": 1})
    assert made[1] in ids(answer["kept"]) and ids(answer["removed"]) == {made[0], made[2]}


def test_nothing_goes_while_none_is_verified(engine: Engine) -> None:
    several(engine, 3)
    assert engine.ask("prune", {"keep": 1})["removed"] == []


def test_one_without_a_manifest_is_left_for_a_person(engine: Engine) -> None:
    made = several(engine, 2, 1)
    (engine.backups / made[0] / "manifest.json").unlink()
    answer = engine.ask("prune", {"keep": 1})
    assert answer["removed"] == [] and made[0] in ids(answer["kept"])


def test_what_an_open_change_needs_stays(engine: Engine) -> None:
    made = several(engine, 4, 0, 1, 2, 3)
    opened = change("upgrade-1", blob={"backup": made[1]})
    asked = {"change": opened, "steps": [file_step(engine.host.file())]}
    assert engine.host.call("apply", asked)["status"] == "OPEN"
    assert ids(engine.ask("prune", {"keep": 1})["kept"]) == {made[1], made[3]}
    engine.host.call("undo")
    assert ids(engine.ask("prune", {"keep": 1})["removed"]) == {made[1]}


def test_a_damaged_journal_stops_it(engine: Engine) -> None:
    several(engine, 3)
    (engine.host.state / "journal" / "broken-1.json").write_text("{")
    assert engine.ask("prune", {"keep": 1})["code"] == "journal_broken"
    assert len(engine.ask("list")["backups"]) == 3


def test_each_tree_for_itself(engine: Engine) -> None:
    made = several(engine, 2, 1)
    other = engine.tree.parent / "other"
    shutil.copytree(engine.tree, other, symlinks=True)
    theirs = engine.ask("backup", {"tree": str(other)})["backup"]
    answer = engine.ask("prune", {"keep": 1})
    assert ids(answer["kept"]) == {made[1], theirs} and ids(answer["removed"]) == {made[0]}


def test_displaced_trees_go_only_when_asked_and_once_their_change_is_over(engine: Engine) -> None:
    engine.verified()
    upgrade(engine)
    kept = Path(engine.restore()["displaced"][0])
    foreign = engine.tree.parent / ".rigbook-not-in-the-journal"
    foreign.mkdir()
    answer = engine.ask("prune", {"displaced": True})
    assert answer["displaced_removed"] == [] and kept.exists()
    engine.close()
    engine.ask("prune", {})
    assert kept.exists()
    size = sum(path.lstat().st_blocks * 512 for path in kept.parent.rglob("*"))
    answer = engine.ask("prune", {"displaced": True})
    assert [row["path"] for row in answer["displaced_removed"]] == [str(kept.parent)]
    assert answer["freed_bytes"] == size > 0
    assert not kept.parent.exists() and foreign.exists()
    assert engine.ask("list")["displaced"] == []


def test_what_a_kill_left_half_made_is_swept(engine: Engine) -> None:
    backup = engine.verified()
    partial = engine.backups / "20260101T000000Z-venv-0000.partial"
    partial.mkdir()
    (partial / "payload.tar.zst").write_bytes(b"half")
    assert engine.ask("list")["partial"] == [partial.name]
    assert engine.ask("prune", {})["swept"] == [partial.name] and not partial.exists()
    partial.mkdir()
    assert engine.backup() == backup and not partial.exists()
    assert json.loads((engine.backups / backup / "verified.json").read_text())["ok"] is True


def test_what_only_reads_travels_inline_and_writes_nothing(engine: Engine) -> None:
    (engine.host.bin / "python3").symlink_to(sys.executable)
    asked = {"tree list": {}, "tree prune": {"keep": 1, "dry": True},
             "tree backup": {"tree": str(engine.tree), "dry": True}}  # fmt: skip
    for verb, request in asked.items():
        done = engine.host.run(["sh", "-c", pack.inline_command(verb, request)])
        assert json.loads(done.stdout)["ok"] is True and done.stderr == "", (verb, done)
    assert not engine.host.state.exists()
