"""An installation in place with the real pip, undone by its backup: error, kill, twice, by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.change import journal
from node.core.errors import NodeError
from node.venv import in_place_step
from node.venv import replace as venv_replace
from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.transfers import wait_for
from tests.unit.node.support.trees import Engine

OLD, NEW = "0.27.0", "0.28.0"
CHANGE = "20260530T065800Z-upgrade-1a2b"


@pytest.fixture
def rig(host: Host, venv: Path) -> Engine:
    """A venv with a pip of its own, and wheels of both versions."""
    tree = host.root / "engine" / "venv"
    tree.parent.mkdir()
    trees.moved(venv, tree)
    subprocess.run([tree / "bin" / "python", "-m", "ensurepip"], check=True, capture_output=True)
    wheels = host.root / "wheels"
    wheels.mkdir()
    for version in (OLD, NEW):
        trees.wheel(wheels, version)
    return Engine(host, tree, wheels)


def request(rig: Engine, backup: str, **more: object) -> dict[str, Any]:
    """A replacement's request."""
    return {
        "change": change(CHANGE), "venv": str(rig.tree), "package": "vllm", "version": NEW,
        "pip_args": ["--no-index", f"--find-links={rig.wheels}"], "backup": backup, **more,
    }  # fmt: skip


def status(rig: Engine) -> str:
    """The change's status."""
    return str(rig.host.call("journal", {"change": CHANGE})["change"]["status"])


def test_it_is_installed_in_place_and_undo_brings_the_backup_back(rig: Engine) -> None:
    before = trees.picture(rig.tree)
    backup = rig.verified()
    answer = rig.host.call("venv replace", request(rig, backup))
    assert answer["ok"] and answer["changed"] and answer["folder"] == str(rig.tree)
    assert rig.run() == f"stand-in vllm {NEW}" and status(rig) == "OPEN"
    again = rig.host.call("venv replace", request(rig, backup))
    assert again["ok"] and not again["changed"], "a second time changes nothing"
    step = rig.host.call("journal", {})["changes"][0]["steps"][0]
    assert f"install vllm {NEW} in {rig.tree}, undone by backup {backup}" in journal.describe(step)
    undone = rig.host.call("undo", {})
    assert undone["status"] == "ROLLED_BACK", undone
    assert f"backup {backup} is back" in undone["steps"][0]["detail"]
    assert trees.picture(rig.tree) == before and rig.run() == f"stand-in vllm {OLD}"
    assert rig.host.call("undo", {"change": CHANGE})["changed"] is False
    # What pip had made is kept for the post-mortem, until it is pruned.
    (kept,) = rig.ask("list")["displaced"]
    assert (Path(kept["path"]) / "old" / "bin" / "vllm").exists()
    assert rig.ask("prune", {"displaced": True})["displaced_removed"][0]["path"] == kept["path"]
    assert not Path(kept["path"]).exists() and rig.run() == f"stand-in vllm {OLD}"


def test_a_wheel_that_is_gone_leaves_the_change_open_and_undo_mends(rig: Engine) -> None:
    """The wheel server is gone: nothing is half installed for long."""
    backup = rig.verified()
    before = trees.picture(rig.tree)
    answer = rig.host.call("venv replace", request(rig, backup, version="0.99.0"))
    assert not answer["ok"] and answer["code"] == "install_failed"
    assert "the change stays OPEN" in answer["error"] and answer["remedy"] == "rignode undo"
    closed = rig.host.call("close", {"change": CHANGE, "status": "COMMITTED"})
    assert closed["code"] == "unfinished", "what failed cannot be blessed"
    assert rig.host.call("undo", {})["status"] == "ROLLED_BACK"
    assert trees.picture(rig.tree) == before


def test_without_a_way_back_nothing_is_touched(rig: Engine) -> None:
    before = trees.picture(rig.tree)
    backup = rig.backup()
    refused = rig.host.call("venv replace", request(rig, backup))
    assert refused["code"] == "backup_required" and "never read back" in refused["error"], refused
    rig.ask("verify", {"backup": backup})
    (rig.tree / "edited").write_text("since")
    refused = rig.host.call("venv replace", request(rig, backup))
    assert refused["code"] == "backup_required" and "not as it any more" in refused["error"]
    (rig.tree / "edited").unlink()
    # Byte code that the engine wrote since is no edit.
    cache = rig.package / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "extra.cpython-39.pyc").write_text("x")
    assert rig.host.call("journal", {})["changes"] == [], "no change was opened"
    (cache / "extra.cpython-39.pyc").unlink()
    assert trees.picture(rig.tree).keys() == before.keys()


def test_a_lost_backup_refuses_the_undo_before_anything_is_touched(rig: Engine) -> None:
    backup = rig.verified()
    assert rig.host.call("venv replace", request(rig, backup))["ok"]
    pruned = rig.ask("prune", {"keep": 1})
    assert pruned["removed"] == [] and backup in str(pruned["kept"])
    (rig.backups / backup).rename(rig.host.root / "lost")
    refused = rig.host.call("undo", {})
    assert refused["code"] == "no_backup" and status(rig) == "OPEN"
    assert rig.run() == f"stand-in vllm {NEW}", "nothing was touched"
    (rig.host.root / "lost").rename(rig.backups / backup)
    assert rig.host.call("undo", {})["status"] == "ROLLED_BACK"


@pytest.mark.parametrize("call", ["mkdir:1", "renameat2:1", "fsync:2", "fsync:4", "renameat:2"])
def test_an_undo_that_is_killed_is_gone_on_with(rig: Engine, call: str) -> None:
    """Killed while it unpacks, before and after the trade, between two writes of the journal."""
    name, _, number = call.partition(":")
    backup = rig.verified()
    before = trees.picture(rig.tree)
    assert rig.host.call("venv replace", request(rig, backup))["ok"]
    point, log = (name, int(number)), rig.host.root / "log"
    done = strace.inject(rig.host, "undo", "{}", "kill", point, log)
    assert done.returncode != 0, f"{call} was never reached"
    answer = rig.host.call("undo", {})
    assert answer["ok"] and answer["status"] in ("ROLLED_BACK", None), answer
    assert status(rig) == "ROLLED_BACK"
    assert trees.picture(rig.tree) == before and rig.run() == f"stand-in vllm {OLD}"


def test_a_kill_while_pip_works_ends_pip_too_and_undo_mends(rig: Engine) -> None:
    backup = rig.verified()
    before = trees.picture(rig.tree)
    slow = rig.tree / "lib" / "slow.py"
    child = subprocess.Popen(
        [*rig.host.argv("venv replace"), json.dumps(request(rig, backup))],
        env=rig.host.environ(), stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def pip_runs() -> bytes:
        pip = f"{rig.tree}/bin/python -m pip"
        return subprocess.run(["pgrep", "-f", pip], capture_output=True).stdout

    wait_for(pip_runs, 60)
    child.kill()
    child.wait()
    answer = rig.host.call("undo", {})
    assert answer["status"] == "ROLLED_BACK", answer
    assert not pip_runs()
    assert trees.picture(rig.tree) == before and not slow.exists()


def test_no_room_for_the_way_back_refuses_before_pip(
    rig: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk must hold the whole tree a second time, or there is no way back."""
    backup = rig.verified()
    before = trees.picture(rig.tree)

    def full(kind: object, entry: object) -> None:
        raise NodeError("no room in /x: 1.0 MiB are free", "no_room")

    monkeypatch.setattr(in_place_step.InPlaceKind, "check_revertible", full)
    with pytest.raises(NodeError, match=r"no room.*nothing was changed"):
        venv_replace.replace(request(rig, backup))
    assert trees.picture(rig.tree) == before
    assert rig.host.call("journal", {})["changes"] == []
