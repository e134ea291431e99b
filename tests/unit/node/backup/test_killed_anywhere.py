"""Killed with -9 at any changing call of a backup or a restore.

A backup is whole or is none; a tree is the old one or the new one; the journal knows which.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from node.backup.create import backup
from node.backup.listing import list_all
from node.backup.verify import verify
from node.change.undo import undo
from node.restore.restore import restore
from tests.unit.node.support import strace
from tests.unit.node.support.host import change
from tests.unit.node.support.strace import Faulted
from tests.unit.node.support.table_lines import Show
from tests.unit.node.support.trees import Engine

# pip leaves more than the engine in a venv; tar's calls for each of them are alike
EACH, MOST = 4, 40


def a_backup(engine: Engine, **more: object) -> Faulted:
    """A backup where there is none yet."""
    asked = {"tree": str(engine.tree), **more}
    engine.backup()
    return Faulted(engine.host, "tree backup", asked, lambda: shutil.rmtree(engine.backups))


def test_a_backup_killed_at_every_changing_call(engine: Engine, show: Show) -> None:
    shutil.rmtree(engine.tree / "include", ignore_errors=True)
    unit = engine.host.file("engine.service", "[Service]\nExecStart=/x\n")
    faulted = a_backup(engine, documents={"recipe": "x"}, files=[str(unit)])
    found = [point for point in faulted.points(*strace.TREES) if point[1] <= MOST]
    found += [("write", n) for n in range(1, 7)]
    assert {"fsync", "mkdir"} <= {call for call, _ in found} and len(found) > 15
    killed = 0
    for point, done in faulted.each(found):
        killed += done.returncode != 0
        for row in list_all({})["backups"]:
            assert row["usable"], (point, row)
            verify({"backup": row["id"]})
        # the next one sweeps, and is whole
        assert verify({"backup": backup(faulted.request)["backup"]}), point
        assert list_all({})["partial"] == []
    show(f"TABLE backup: {len(found)} points, {killed} killed, 0 lost")
    assert killed >= len(found) - 5


@pytest.mark.parametrize(("call", "error", "words"), [
    ("fsync", "EIO", "Input/output error"), ("fdatasync", "EIO", "Input/output error"),
    ("mkdir", "ENOSPC", "No space left"), ("rename", "EROFS", "Read-only"),
])  # fmt: skip
def test_a_backup_with_a_failing_disk(engine: Engine, call: str, error: str, words: str) -> None:
    if call == "fdatasync":  # only a payload of many MiB is flushed on the way
        (engine.package / "large.bin").write_bytes(os.urandom(80 << 20))
    faulted = a_backup(engine)
    found = [point for point in faulted.points(call) if point[1] <= MOST]
    assert found
    # the first ones are for folders that are there already
    hit = found[-1:] if call == "mkdir" else found
    for point, done in faulted.each(hit, f"error={error}"):
        answer = json.loads(done.stdout)
        assert answer["ok"] is False and words in answer["error"], (point, answer)
        assert [row for row in list_all({})["backups"] if not row["usable"]] == []


def version(engine: Engine) -> str:
    """Which tree lies at the path: "old", "new", "none"."""
    path = engine.tree / "version"
    return path.read_text() if path.exists() else "none"


def test_a_restore_killed_at_every_changing_call(engine: Engine, show: Show) -> None:
    (engine.tree / "version").write_text("new")
    kept = engine.verified()

    def reset() -> None:
        for name in ("journal", "blobs"):
            shutil.rmtree(engine.host.state / name, ignore_errors=True)
        for path in engine.tree.parent.iterdir():
            shutil.rmtree(path)
        engine.tree.mkdir()
        (engine.tree / "version").write_text("old")

    asked = {"change": change("restore-1", deploy="rollback"), "backup": kept}
    faulted = Faulted(engine.host, "tree restore", asked, reset)
    found = [
        (call, n)
        for call, n in faulted.points(*strace.TREES)
        if n <= EACH or (call in ("fsync", "renameat2", "rename", "renameat") and n <= 16)
    ]
    assert "renameat2" in {call for call, _ in found} and len(found) > 20
    cells: Counter[str] = Counter()
    for point, done in faulted.each(found):
        now = version(engine)
        assert now in ("old", "new"), (point, now)
        cells[f"{now}, {'killed' if done.returncode else 'tar or zstd killed'}"] += 1
        undone = undo({})
        assert undone["status"] in (None, "ROLLED_BACK"), (point, undone)
        assert version(engine) == "old", point
        # what was never in use is gone; what was is named by the journal
        beside = {path.name for path in engine.tree.parent.iterdir()} - {"venv"}
        known = {Path(row["path"]).name for row in list_all({})["displaced"]}
        assert beside == known, (point, beside, known)
        again = restore({**asked, "change": change("restore-2", deploy="rollback")})
        assert again["changed"] is True and version(engine) == "new", point
    show(f"TABLE restore: {len(found)} points, {dict(cells)}, 0 lost")


def test_the_same_restore_again_after_a_kill_gets_through(engine: Engine) -> None:
    (engine.tree / "version").write_text("new")
    engine.verified()

    def reset() -> None:
        shutil.rmtree(engine.host.state / "journal", ignore_errors=True)
        (engine.tree / "version").write_text("edited")

    asked = {"change": {"id": "restore-1", "deploy": "x", "operator": "x"}}
    faulted = Faulted(engine.host, "tree restore", asked, reset)
    points = (("mkdir", 2), ("fsync", 6), ("renameat2", 1), ("renameat2", 2))
    for point, _ in faulted.each(points):
        done = engine.host.run(engine.host.argv("tree restore"), faulted.text)
        assert json.loads(done.stdout)["ok"], (point, done.stdout)
        assert version(engine) == "new"
        engine.close()
        engine.ask("prune", {"displaced": True})
        assert engine.names()[0] == "venv" and len(list(engine.tree.parent.iterdir())) == 1
