"""What goes wrong around a rollback itself: two operators, a crash loop, full disks, power cuts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.backup import create
from node.core.errors import NodeError
from tests.unit.node.support import trees
from tests.unit.node.support.host import Host, apply_request, unit_step
from tests.unit.node.support.trees import Engine

OLD, NEW = "0.27.0", "0.28.0"
UNIT = "engine.service"


@pytest.fixture
def rig(host: Host, venv: Path) -> Engine:
    """A link from version OLD to NEW, switched and started by a change that is open."""
    found = trees.versions(host, venv, OLD, NEW)
    new = found.tree.with_name("venvs") / NEW
    trees.install(new, found.wheels, NEW)
    (host.systemctl() / f"{UNIT}.active").write_text("active\n")
    switch = {"op": "link", "path": str(found.tree), "target": str(new)}
    steps = [unit_step("stop"), switch, unit_step("start")]
    assert host.call("apply", apply_request(*steps))["ok"]
    return found


def state_of(rig: Engine) -> tuple[str, str, str]:
    """The version behind the link, the unit's state, the change's status."""
    active = (rig.host.bin / "units" / f"{UNIT}.active").read_text().strip()
    status = rig.host.call("journal", {"change": "change-1"})["change"]["status"]
    return rig.tree.resolve().name, active, str(status)


def test_rollback_while_the_broken_unit_crash_loops(rig: Engine) -> None:
    """systemd is about to start the broken version again: it is stopped, not waited for."""
    units = rig.host.bin / "units"
    (units / f"{UNIT}.active").write_text("activating\n")
    (units / "log").write_text("")
    assert rig.host.call("undo", {})["status"] == "ROLLED_BACK"
    assert state_of(rig) == (OLD, "active", "ROLLED_BACK")
    ran = [x.split()[0] for x in (units / "log").read_text().splitlines() if UNIT in x]
    changing = [verb for verb in ran if verb != "show"]
    assert changing == ["stop", "reset-failed", "start"], "stopped first, its counter cleared"
    assert rig.run() == f"stand-in vllm {OLD}"


def test_two_operators_roll_back_at_once(rig: Engine) -> None:
    """One undoes it, the other is told; both again: nothing is left to do."""
    argv = [*rig.host.argv("undo"), "{}"]
    both = [
        subprocess.Popen(argv, env=rig.host.environ(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in both]
    done = [a for a in answers if a["ok"] and a["changed"]]
    others = [a for a in answers if a not in done]
    assert len(done) == 1, answers
    assert all(a.get("code") == "locked" or a.get("changed") is False for a in others), answers
    assert state_of(rig) == (OLD, "active", "ROLLED_BACK")
    assert rig.host.call("undo", {})["changed"] is False


def test_two_operators_upgrade_at_once(rig: Engine) -> None:
    """The second one's change is refused by name while the first one's is open."""
    step = {"op": "link", "path": str(rig.tree), "target": "/elsewhere"}
    other = rig.host.call("apply", apply_request(step, name="change-2"))
    assert other["code"] == "change_open" and "change-1" in other["error"]
    assert state_of(rig)[0] == NEW, "the first one's work is left alone"


@pytest.fixture
def few_entries(tmp_path: Path) -> Iterator[Path]:
    """A file system with room, and with entries for 40 files."""
    path = tmp_path / "few"
    path.mkdir()
    options = "size=64m,nr_inodes=40"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_no_inodes_is_said_before_anything_is_written(few_entries: Path) -> None:
    """Fault 9: a full file system may have gigabytes free."""
    with pytest.raises(NodeError, match="inodes") as caught:
        create.check_room(str(few_entries), 1 << 20, 1000)
    assert caught.value.code == "no_room"
    assert list(few_entries.iterdir()) == []


def test_a_folder_that_others_may_swap_is_not_used(host: Host, venv: Path) -> None:
    """Fault 22: between check and use nobody else can put another tree at the path."""
    open_to_all = host.root / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    trees.moved(venv, open_to_all / "venv")
    tree = str(open_to_all / "venv")
    asked = {"tree backup": {"tree": tree}, "venv prune": {"venv": tree, "package": "vllm"}}
    for verb, request in asked.items():
        refused = host.call(verb, request)
        assert refused["code"] == "unsafe_folder" and "everybody may write" in refused["error"]
