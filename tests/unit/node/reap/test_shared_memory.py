"""shm: only engine segments that nobody maps or has open go; all others stay, with the reason."""

from __future__ import annotations

import pytest

from node.rules import shm_names
from schema.observed.machine import ShmSegment
from tests.unit.node.support.host import change
from tests.unit.node.support.reap_world import World

# as CPU ranks name it (vllm/distributed/device_communicators/cpu_communicator.py, 0.32.0)
RANKS = "vllm_dist_0f3a-tp:0-[0-1]-cpushm_0"
STRANGE = "vllm_dist_0f3a-tp:0-cpushm_0"


def request(**more: object) -> dict[str, object]:
    """A request without a wait for young segments."""
    return {"change": change(), "min_age_s": 0, **more}


def test_only_what_nobody_uses_is_removed(world: World) -> None:
    live = world.launch("--segment", "psm_aaaa0001", stay=True)
    for name in ("psm_bbbb0002", "sem.mp-old", "other", RANKS, STRANGE):
        world.sh(f"echo x > '/dev/shm/{name}'")
    world.sh("mkdir /dev/shm/psm_dir; ln -s /etc/passwd /dev/shm/psm_link")
    opener = "import time; f = open('/dev/shm/psm_cccc0003', 'w'); time.sleep(600)"
    world.sh(f'setsid -f python3 -c "{opener}" > /dev/null 2>&1')
    world.until(lambda: "psm_cccc0003" in world.sh("ls /dev/shm"))
    before = world.sh("ls /dev/shm")
    dry = world.call("shm", request(dry=True))
    assert world.sh("ls /dev/shm") == before and not (world.state / "journal").exists()
    answer = world.call("shm", request())
    for got in (dry, answer):
        assert [row["name"] for row in got["removed"]] == ["psm_bbbb0002", "sem.mp-old", RANKS]
        kept = {row["name"]: row["why"] for row in got["kept"]}
        assert sorted(kept) == ["psm_aaaa0001", "psm_cccc0003"]
        assert kept["psm_aaaa0001"] == f"in use by pid {live}"
        assert kept["psm_cccc0003"].startswith("in use by pid")
        assert got["freed_bytes"] == 6
    assert world.sh("ls /dev/shm").split() == [
        "other", "psm_aaaa0001", "psm_cccc0003", "psm_dir", "psm_link", STRANGE]  # fmt: skip
    step = world.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (step["op"], step["state"]) == ("shm", "done")
    assert step["removed"] == ["psm_bbbb0002", "sem.mp-old", RANKS]
    again = world.call("shm", request())
    assert (again["removed"], len(world.call("journal")["changes"][0]["steps"])) == ([], 1)


@pytest.mark.parametrize("after", ["", "; touch -d '2 days ago' /dev/shm/psm_bbbb0002"])
def test_a_young_segment_is_kept(world: World, after: str) -> None:
    """The kernel's own time of the last change counts as well: no writer can set that one."""
    world.sh(f"echo x > /dev/shm/psm_bbbb0002{after}")
    answer = world.call("shm", request(min_age_s=60))
    assert answer["removed"] == [] and "is not mapped yet" in answer["kept"][0]["why"]
    assert answer["change"] is None and world.call("journal")["changes"] == []


def test_what_an_engine_left_a_moment_ago_is_waited_for(world: World) -> None:
    """A stop is over in a second; its engine's segments are younger than any that may go."""
    world.sh("echo x > /dev/shm/psm_bbbb0002")
    answer = world.call("shm", {"change": change(), "min_age_s": 2})
    assert [row["name"] for row in answer["removed"]] == ["psm_bbbb0002"]


RACE = """
import json, os, sys
from node.reap import shared_memory
look, calls = shared_memory.users, []
def users(fd, wanted):  # a double: the world moves on between the first look and the second
    seen = look(fd, wanted)
    calls.append(1)
    if len(calls) == 1:
        DO
    return seen
shared_memory.users = users
print(json.dumps(shared_memory.shm(json.load(sys.stdin))))
"""


@pytest.mark.parametrize(("action", "why"), [
    ("globals().update(kept=open('/dev/shm/psm_bbbb0002'))", "in use by pid"),
    ("os.rename('/dev/shm/other', '/dev/shm/psm_bbbb0002')", "another segment has its name now"),
    ("os.unlink('/dev/shm/psm_bbbb0002')", "gone meanwhile"),
])  # fmt: skip
def test_what_changes_between_look_and_removal_is_kept(world: World, action: str, why: str) -> None:
    world.sh("cd /dev/shm; echo x > psm_bbbb0002; echo new > other")
    answer = world.code(RACE.replace("DO", action), request())
    assert answer["removed"] == [] and answer["kept"][0]["why"].startswith(why)
    if "rename" in action:
        assert world.sh("cat /dev/shm/psm_bbbb0002") == "new"


UNREADABLE = """
import builtins, json, sys
from node.reap import shared_memory
def guarded(path, *more):  # a double: a sandbox hides one process
    if str(path) == "/proc/2/maps":
        raise PermissionError
    return builtins.open(path, *more)
shared_memory.open = guarded
shared_memory.proc.pids = lambda: [1, 2]
print(json.dumps(shared_memory.shm(json.load(sys.stdin))))
"""


def test_a_process_that_cannot_be_read_keeps_everything(world: World) -> None:
    world.sh("echo x > /dev/shm/psm_bbbb0002")
    answer = world.code(UNREADABLE, request())
    assert (answer["removed"], answer["freed_bytes"]) == ([], 0)
    assert answer["kept"][0]["why"] == "whether pid 2 maps it cannot be read"


@pytest.mark.parametrize(("name", "ours"), [
    (RANKS, True), ("29501-tp:0-[0-1]-cpushm_1", True), ("psm_1a2b", True), ("sem.mp-x", True),
    ("psm_", False), ("x-cpushm_0", False), (f"{RANKS}x", False), ("../psm_1", False),
    ("postgres.1", False),
])  # fmt: skip
def test_names_are_judged_alike_on_both_sides(name: str, ours: bool) -> None:
    """A segment of the snapshot asks the same rule."""
    segment = ShmSegment(name=name, size=1, uid=0, inode=1, mtime=0.0, mappers=())
    assert (shm_names.is_engines(name), segment.is_engines) == (ours, ours)
