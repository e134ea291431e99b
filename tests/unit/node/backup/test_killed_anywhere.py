"""Killed with -9 at any changing call of a backup, a restore, a step or an undo.

A backup is whole or is none; a tree is the old one or the new one; the journal knows which.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from node.backup.create import backup
from node.backup.listing import list_all
from node.backup.restore import restore
from node.backup.verify import verify
from node.change.apply import apply
from node.change.undo import undo
from tests.unit.node.change.test_link_and_tree_step import (
    DONE,
    OLD,
    folders,
    link_step,
    tree_step,
    two,
)
from tests.unit.node.support import strace
from tests.unit.node.support.host import Host, apply_request
from tests.unit.node.support.table_lines import Show
from tests.unit.node.support.trees import Engine

CALLS = ("fsync", "fdatasync", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "unlink",
         "unlinkat", "symlinkat", "linkat", "ftruncate", "fchown", "fchmod")  # fmt: skip
_LINE = re.compile(r"^(\d+)\s+(\w+)\(")
# pip leaves more than the engine in a venv; tar's calls for each of them are alike
EACH = 4


def points(host: Host, verb: str, request: str, log: Path, calls: tuple[str, ...] = CALLS,
           most: int = 40) -> list[tuple[str, int]]:  # fmt: skip
    """The changing calls of a run, as (call, which one in its thread): strace counts so."""
    strace.traced(host, verb, request, ["-e", f"trace={','.join(calls)}"], log)
    seen: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        match = _LINE.match(line)
        if match:
            seen[match.group(1), match.group(2)] += 1
    highest: dict[str, int] = {}
    for (_, call), count in seen.items():
        highest[call] = max(highest.get(call, 0), count)
    return [(call, n) for call, top in highest.items() for n in range(1, min(top, most) + 1)]


def text(**request: object) -> str:
    """A request."""
    return json.dumps(request)


def test_a_backup_killed_at_every_changing_call(engine: Engine, tmp_path: Path, show: Show) -> None:
    log = tmp_path / "log"
    shutil.rmtree(engine.tree / "include", ignore_errors=True)
    asked = text(tree=str(engine.tree), documents={"recipe": "x"})
    engine.backup()
    shutil.rmtree(engine.backups)
    found = points(engine.host, "tree backup", asked, log)
    found += [("write", n) for n in range(1, 7)]
    assert {"fsync", "mkdir"} <= {call for call, _ in found} and len(found) > 15
    killed = 0
    for point in found:
        shutil.rmtree(engine.backups)
        done = strace.inject(engine.host, "tree backup", asked, "signal=SIGKILL", point, log)
        killed += done.returncode != 0
        for row in list_all({})["backups"]:
            assert row["usable"], (point, row)
            verify({"backup": row["id"]})
        # the next one sweeps, and is whole
        assert verify({"backup": backup(json.loads(asked))["backup"]}), point
        assert list_all({})["partial"] == []
    show(f"TABLE backup: {len(found)} points, {killed} killed, 0 lost")
    assert killed >= len(found) - 5


@pytest.mark.parametrize(("call", "error", "words"), [
    ("fsync", "EIO", "Input/output error"), ("fdatasync", "EIO", "Input/output error"),
    ("mkdir", "ENOSPC", "No space left"), ("rename", "EROFS", "Read-only"),
])  # fmt: skip
def test_a_backup_with_a_failing_disk(
    engine: Engine, tmp_path: Path, call: str, error: str, words: str
) -> None:
    if call == "fdatasync":  # only a payload of many MiB is flushed on the way
        (engine.package / "large.bin").write_bytes(os.urandom(80 << 20))
    asked = text(tree=str(engine.tree))
    engine.backup()
    shutil.rmtree(engine.backups)
    found = points(engine.host, "tree backup", asked, tmp_path / "log", (call,))
    assert found
    # the first ones are for folders that are there already
    for point in found[-1:] if call == "mkdir" else found:
        shutil.rmtree(engine.backups)
        fault = f"error={error}"
        done = strace.inject(engine.host, "tree backup", asked, fault, point, tmp_path / "log")
        answer = json.loads(done.stdout)
        assert answer["ok"] is False and words in answer["error"], (point, answer)
        assert [row for row in list_all({})["backups"] if not row["usable"]] == []


def version(engine: Engine) -> str:
    """Which tree lies at the path: "old", "new", "none"."""
    path = engine.tree / "version"
    return path.read_text() if path.exists() else "none"


def test_a_restore_killed_at_every_changing_call(
    engine: Engine, tmp_path: Path, show: Show
) -> None:
    log = tmp_path / "log"
    (engine.tree / "version").write_text("new")
    kept = engine.verified()

    def reset() -> None:
        for name in ("journal", "blobs"):
            shutil.rmtree(engine.host.state / name, ignore_errors=True)
        for path in engine.tree.parent.iterdir():
            shutil.rmtree(path)
        engine.tree.mkdir()
        (engine.tree / "version").write_text("old")

    def asked(name: str) -> str:
        change = {"id": name, "deploy": "rollback", "operator": "tester"}
        return text(change=change, backup=kept)

    reset()
    found = [
        (call, n)
        for call, n in points(engine.host, "tree restore", asked("restore-1"), log)
        if n <= EACH or (call in ("fsync", "renameat2", "rename", "renameat") and n <= 16)
    ]
    assert "renameat2" in {call for call, _ in found} and len(found) > 20
    cells: Counter[str] = Counter()
    for point in found:
        reset()
        done = strace.inject(engine.host, "tree restore", asked("restore-1"),
                             "signal=SIGKILL", point, log)  # fmt: skip
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
        again = restore(json.loads(asked("restore-2")))
        assert again["changed"] is True and version(engine) == "new", point
    show(f"TABLE restore: {len(found)} points, {dict(cells)}, 0 lost")


def test_the_same_restore_again_after_a_kill_gets_through(engine: Engine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (engine.tree / "version").write_text("new")
    engine.verified()
    asked = text(change={"id": "restore-1", "deploy": "x", "operator": "x"})
    for point in (("mkdir", 2), ("fsync", 6), ("renameat2", 1), ("renameat2", 2)):
        shutil.rmtree(engine.host.state / "journal", ignore_errors=True)
        (engine.tree / "version").write_text("edited")
        strace.inject(engine.host, "tree restore", asked, "signal=SIGKILL", point, log)
        done = engine.host.run(engine.host.argv("tree restore"), asked)
        assert json.loads(done.stdout)["ok"], (point, done.stdout)
        assert version(engine) == "new"
        engine.close()
        engine.ask("prune", {"displaced": True})
        assert engine.names()[0] == "venv" and len(list(engine.tree.parent.iterdir())) == 1


def steps(host: Host) -> str:
    """A tree and a link in one change."""
    return json.dumps(apply_request(tree_step(host), link_step(host)))


def reset_steps(host: Host) -> None:
    """The old tree, the fresh one beside, the link to the old one, an empty journal."""
    for path in host.root.iterdir():
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.name != "bin":
            shutil.rmtree(path)
    two(host)
    (host.root / "venv").symlink_to("venvs/old")


def state(host: Host) -> tuple[dict[str, str], str]:
    """The folders, and where the link points."""
    return folders(host), str((host.root / "venv").readlink())


def test_steps_killed_where_the_file_system_cannot_exchange(host: Host, tmp_path: Path) -> None:
    """Between two plain renames nothing lies at the path; undo knows what belongs there."""
    log, refuse = tmp_path / "log", ["-e", "inject=renameat2:error=EINVAL"]
    seen = set()
    for number in range(1, 12):
        reset_steps(host)
        kill = ["-e", f"inject=renameat,rename:signal=SIGKILL:when={number}"]
        options = ["-e", "trace=renameat2,renameat,rename", *refuse, *kill]
        strace.traced(host, "apply", steps(host), options, log)
        seen.add(folders(host).get("tree"))
        assert undo({})["status"] in (None, "ROLLED_BACK"), number
        assert state(host) == (OLD, "venvs/old"), number
    assert seen == {"old", "new", None}


def test_steps_killed_at_every_changing_call(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    reset_steps(host)
    found = points(host, "apply", steps(host), log)
    assert len(found) > 15
    for point in found:
        reset_steps(host)
        strace.inject(host, "apply", steps(host), "signal=SIGKILL", point, log)
        now = state(host)
        assert now[0].get("tree") in ("old", "new") and now[1] in ("venvs/old", "venvs/new"), point
        assert undo({})["status"] in (None, "ROLLED_BACK"), point
        assert state(host) == (OLD, "venvs/old"), point
        assert host.leftovers() == []


def test_an_undo_of_steps_killed_at_every_changing_call_is_finished_by_the_next(
    host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    reset_steps(host)
    apply(json.loads(steps(host)))
    assert state(host) == (DONE, "venvs/new")
    found = points(host, "undo", "{}", log)
    assert len(found) > 8
    for point in found:
        reset_steps(host)
        apply(json.loads(steps(host)))
        strace.inject(host, "undo", "{}", "signal=SIGKILL", point, log)
        assert folders(host).get("tree") in ("old", "new"), point
        undo({})
        assert state(host) == (OLD, "venvs/old"), point
