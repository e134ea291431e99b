"""tree prune: never the last verified one, never what an open change needs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from facts.rignode import pack
from tests.unit.node.backup.test_verify import payload
from tests.unit.node.restore.test_restore import upgrade
from tests.unit.node.support.host import change, file_step
from tests.unit.node.support.trees import Engine


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
