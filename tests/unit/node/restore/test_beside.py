"""tree unpack: the backup lies beside, proven, while the engine runs; tree restore then trades."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change.undo import undo
from tests.unit.node.restore.test_restore import upgrade
from tests.unit.node.support import strace
from tests.unit.node.support.strace import Faulted
from tests.unit.node.support.trees import Engine, picture

OLD, NEW = "stand-in vllm 0.28.0", "stand-in vllm 0.27.0"
HEADER = {"id": "restore-1", "deploy": "rollback", "operator": "tester@here"}


@pytest.fixture
def upgraded(engine: Engine) -> Engine:
    """A verified backup, and the upgrade after it."""
    engine.verified()
    upgrade(engine)
    return engine


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
