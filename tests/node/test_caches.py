"""caches: dropped once, only when a need is not met, and never while an engine loads or runs."""

from __future__ import annotations

import json

import pytest

from tests.node.reap_world import TITLE, UNIT, World
from tests.node.support import change

NEVER = 1 << 49


CODE = """
import json, sys
from node import caches
from node.errors import NodeError
caches.DROP = "SWITCH"  # a double: this machine's stay
try:
    print(json.dumps(caches.caches(json.load(sys.stdin))))
except NodeError as error:
    print(json.dumps(error.as_json()))
"""


def call(world: World, **more: object) -> dict[str, object]:
    """The verb's answer, with the world's switch."""
    world.file("drop_caches", "")
    code = CODE.replace("SWITCH", str(world.root / "drop_caches"))
    return world.code(code, {"change": change(), **more})


def dropped(world: World) -> str:
    """What was written to the switch."""
    return (world.root / "drop_caches").read_text()


def test_dropped_once_with_the_memory_before_and_after(world: World) -> None:
    answer = call(world, need_available_bytes=NEVER)
    assert (answer["verdict"], answer["met"], dropped(world)) == ("dropped", False, "3\n")
    step = world.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (step["op"], step["state"]) == ("caches", "done")
    keys = {"total", "free", "available", "shmem", "page_cache", "dirty", "gpus", "processes"}
    assert keys <= set(step["before"]) and keys <= set(step["after"])


@pytest.mark.parametrize("needs", [{}, {"need_available_bytes": 1}, {"need_free_bytes": 1}])
def test_nothing_is_done_without_a_need_that_is_not_met(
    world: World, needs: dict[str, object]
) -> None:
    answer = call(world, **needs)
    assert (answer["verdict"], answer["met"], dropped(world)) == ("nothing", True, "")
    assert answer["change"] is None and world.call("journal")["changes"] == []


def test_a_need_of_free_memory_counts_by_itself(world: World) -> None:
    answer = call(world, need_available_bytes=1, need_free_bytes=NEVER, dry=True)
    assert (answer["verdict"], dropped(world)) == ("would_drop", "")


@pytest.mark.parametrize("stay", [True, False])
def test_refused_while_an_engine_lives_with_an_owner_or_without(world: World, stay: bool) -> None:
    pid = world.launch(stay=stay)
    answer = call(world, need_available_bytes=NEVER)
    assert (answer["verdict"], dropped(world)) == ("refused", "")
    assert f"pid {pid} {TITLE} is an engine" in str(answer["why"])


@pytest.mark.parametrize("state", ["active", "activating"])
def test_refused_while_the_unit_starts_or_runs(world: World, state: str) -> None:
    (world.bin / "units" / f"{UNIT}.active").write_text(state)
    answer = call(world, need_available_bytes=NEVER)
    assert answer["verdict"] == "refused" and f"the unit {UNIT} is {state}" in str(answer["why"])


def test_where_the_kernel_does_not_let_us_the_error_is_clear(world: World) -> None:
    world.file("drop_caches", "")
    world.sh(f"mount --bind -o ro {world.root} {world.root}; mount -o remount,ro,bind {world.root}")
    code = CODE.replace("SWITCH", str(world.root / "drop_caches"))
    answer = world.code(code, {"need_available_bytes": NEVER})
    assert answer["code"] == "no_drop_caches" and "Read-only file system" in answer["error"]
    assert "in a container" in json.dumps(answer)


def test_the_program_itself_takes_the_request(world: World) -> None:
    answer = world.call("caches", {"need_available_bytes": 1})
    assert answer["verdict"] == "nothing"
    assert world.call("caches", {"need": 1})["code"] == "bad_request"
