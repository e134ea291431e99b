"""reap with a held unit, killed at any write of the journal: the next run, or undo, finishes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.node.support import strace
from tests.unit.node.support.host import change
from tests.unit.node.support.reap_world import PORT, UNIT, World, reap_request

HOLD = f"/run/systemd/system/{UNIT}.d/99-rigbook-hold.conf"


def reset(world: World) -> int:
    """An empty journal, a running unit, no hold, and one orphan; gives its pid."""
    for path in sorted(world.state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    units = world.bin / "units"
    world.unit("active")
    (units / f"{UNIT}.enabled").write_text("enabled\n")
    (units / "log").write_text("")
    world.sh("rm -rf /run/systemd/system/*")
    if world.last and world.lives(world.last):
        world.sh(f"kill -9 {world.last}")
        world.until(lambda: not world.listens())
    world.last = world.launch("--port", str(PORT))
    return world.last


def states(world: World) -> tuple[str, str, bool]:
    """Active state, enabled state, and whether the hold is there."""
    enabled = (world.bin / "units" / f"{UNIT}.enabled").read_text().strip()
    return world.unit(), enabled, world.sh(f"ls {HOLD}") != ""


REQUEST = reap_request(hold=True, term_s=1, settle_s=2)


def test_the_unit_is_held_while_orphans_are_ended_and_given_back(world: World) -> None:
    reset(world)
    # what a start of the unit would meet meanwhile: the double notes it when the stop is done
    double = world.bin / "systemctl"
    note = f'[ "$1 $2" = "--no-ask-password stop" ] && cat {HOLD} > "$(dirname "$0")/seen"\n'
    double.write_text(double.read_text().replace("\n", f"\n{note}", 1))
    answer = world.call("reap", REQUEST)
    assert answer["verdict"] == "clean" and states(world) == ("active", "enabled", False)
    seen = (world.bin / "seen").read_text()
    assert f"AssertPathExists=!{HOLD}" in seen and "Restart=no" in seen
    assert answer["unit"] == {
        "unit": UNIT, "held": True, "why": "stopped, and starts are refused meanwhile",
        "before": {"load": "loaded", "enabled": "enabled", "active": "active"},
        "restored": f"the hold is lifted; {UNIT} is starting again, as before",
    }  # fmt: skip
    log = (world.bin / "units" / "log").read_text().splitlines()
    calls = [line for line in log if not line.startswith(("show", "reset-failed"))]
    assert calls == [
        "daemon-reload ", f"stop {UNIT}", "daemon-reload ", f"start --no-block {UNIT}",
    ]  # fmt: skip
    assert world.call("close", {"change": "change-1", "status": "COMMITTED"})["changed"]


def test_a_unit_that_did_not_run_is_not_started(world: World) -> None:
    reset(world)
    world.unit("inactive")
    assert world.call("reap", REQUEST)["verdict"] == "clean"
    assert states(world) == ("inactive", "enabled", False)


def test_without_orphans_a_running_unit_is_left_alone(world: World) -> None:
    world.sh(f"kill -9 {reset(world)}")
    world.until(lambda: not world.listens())
    answer = world.call("reap", REQUEST)
    assert (answer["verdict"], answer["unit"], answer["change"]) == ("nothing", None, None)
    assert "stop" not in (world.bin / "units" / "log").read_text()
    assert world.call("journal")["changes"] == []


def test_killed_at_each_write_of_the_journal_the_next_run_finishes(
    world: World, tmp_path: Path
) -> None:
    log = tmp_path / "strace.log"
    reset(world)
    found = strace.points(world, "reap", json.dumps(REQUEST), log)
    points = [p for p in found if p[0] in ("rename", "renameat", "unlink", "unlinkat")]
    # the first flush of each write comes before its rename, the second after it
    points += [p for p in found if p[0] == "fsync"][1::2]
    assert len(points) > 12
    for n, point in enumerate(points):
        pid = reset(world)
        done = strace.inject(world, "reap", json.dumps(REQUEST), "signal=SIGKILL", point, log)
        assert done.returncode != 0, point
        if n % 3 == 2:
            assert world.call("undo")["ok"], point
            assert states(world) == ("active", "enabled", False), point
            continue
        answer = world.call("reap", REQUEST)
        assert answer["ok"] and answer["verdict"] in ("clean", "nothing"), (point, answer)
        assert states(world) == ("active", "enabled", False), (point, answer["unit"])
        assert not world.lives(pid) and not world.listens(), point
        if answer["change"]:
            steps = world.call("journal", {"change": "change-1"})["change"]["steps"]
            assert {row["state"] for row in steps} <= {"done", "undone"}, point
            closed = world.call("close", {"change": "change-1", "status": "COMMITTED"})
            assert closed["ok"], (point, closed)


def test_another_change_is_refused_while_one_holds_the_unit(world: World, tmp_path: Path) -> None:
    reset(world)
    log = tmp_path / "strace.log"
    points = strace.points(world, "reap", json.dumps(REQUEST), log)
    rename = [p for p in points if p[0].startswith("rename")]
    reset(world)
    strace.inject(world, "reap", json.dumps(REQUEST), "signal=SIGKILL", rename[3], log)
    assert states(world)[2] is True
    other = world.call("reap", {**REQUEST, "change": change("change-2")})
    assert other["code"] == "change_open" and "rignode undo change-1" in other["remedy"]
    assert states(world)[2] is True
    world.call("undo")
    assert states(world) == ("active", "enabled", False)
