"""venv prune: the active version, the former, and what a change needs stay; the others go."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.trees import Engine

NOW, FORMER, FAILED, OLDER = "0.28.0", "0.27.0", "0.29.0", "0.26.0"


@pytest.fixture
def rig(host: Host, venv: Path) -> Engine:
    """A link that was switched from 0.27.0 to 0.28.0, a version that failed, and an older one."""
    found = trees.versions(host, venv, FORMER, NOW, FAILED, OLDER)
    switch(found, "change-good", NOW)
    assert host.call("close", {"change": "change-good", "status": "COMMITTED"})["ok"]
    switch(found, "change-bad", FAILED)
    assert host.call("undo", {})["status"] == "ROLLED_BACK"
    return found


def switch(rig: Engine, name: str, version: str) -> None:
    """The link to another version, as a change."""
    target = str(rig.tree.parent / "venvs" / version)
    step = {"op": "link", "path": str(rig.tree), "target": target}
    answer = rig.host.call("apply", {"change": change(name), "steps": [step]})
    assert answer["ok"], answer


def prune(rig: Engine, **more: object) -> dict[str, Any]:
    """The verb's answer."""
    answer = rig.host.call("venv prune", {"venv": str(rig.tree), "package": "vllm", **more})
    assert answer["ok"], answer
    return answer


def names(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Version folders with their reasons."""
    return {Path(row["path"]).name: row["why"] for row in rows}


def there(rig: Engine) -> list[str]:
    """What lies in the folder of the versions."""
    return sorted(path.name for path in (rig.tree.parent / "venvs").iterdir())


def test_dry_tells_and_removes_nothing(rig: Engine) -> None:
    before = there(rig)
    seen = prune(rig, dry=True)
    assert there(rig) == before and seen["dry"] and seen["freed_bytes"] > 0
    assert sorted(names(seen["removed"])) == [OLDER, FAILED]
    assert "change change-bad was ROLLED_BACK" in names(seen["removed"])[FAILED]


def test_the_active_and_the_former_stay_and_a_second_time_changes_nothing(rig: Engine) -> None:
    seen = prune(rig)
    assert there(rig) == [FORMER, NOW]
    assert names(seen["kept"]) == {
        NOW: "the active version",
        FORMER: "the version before the active one: the quick way back",
    }
    assert prune(rig)["removed"] == []
    undone = rig.host.call("undo", {"change": "change-good"})
    assert undone["ok"] and rig.tree.resolve().name == FORMER, "the way back is still there"


def test_what_an_open_change_names_and_what_runs_stays(rig: Engine) -> None:
    switch(rig, "change-open", FAILED)
    live = subprocess.Popen(["sleep", "60"], cwd=rig.tree.parent / "venvs" / OLDER)
    try:
        seen = prune(rig)
        kept = names(seen["kept"])
        assert seen["removed"] == [] and len(there(rig)) == 4
        assert f"pid {live.pid} runs from it" in kept[OLDER]
        assert "change change-open is not settled" in kept[NOW], "its undo leads there"
    finally:
        live.kill()
        live.wait()
    assert list(names(prune(rig)["removed"])) == [OLDER]


def test_a_prune_that_was_killed_leaves_no_folder_that_looks_whole(rig: Engine) -> None:
    asked = json.dumps({"venv": str(rig.tree), "package": "vllm"})
    log = rig.host.root / "log"
    done = strace.inject(rig.host, "venv prune", asked, "kill", ("unlinkat", 5), log)
    assert done.returncode != 0
    left = [name for name in there(rig) if name.endswith(".partial")]
    assert left == [f"{OLDER}.partial"]
    prune(rig)
    assert there(rig) == [FORMER, NOW]


def test_a_damaged_journal_refuses(rig: Engine) -> None:
    (rig.host.state / "journal" / "change-good.json").write_text("{")
    answer = rig.host.call("venv prune", {"venv": str(rig.tree), "package": "vllm"})
    assert answer["code"] == "journal_broken" and len(there(rig)) == 4
