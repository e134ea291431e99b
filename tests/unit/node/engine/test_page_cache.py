"""caches: dropped once, only when a need is not met, and never while an engine loads or runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.core.errors import CannotRead
from node.engine import page_cache
from tests.unit.node.support.host import change
from tests.unit.node.support.reap_world import TITLE, UNIT, World

NEVER = 1 << 49
CODE = """
import json, sys
from node.engine import page_cache
from node.core.errors import NodeError
page_cache.DROP = "SWITCH"  # a double: this machine's stay
try:
    print(json.dumps(page_cache.caches(json.load(sys.stdin))))
except NodeError as error:
    print(json.dumps(error.as_json()))
"""


def call(world: World, **more: object) -> dict[str, object]:
    """The verb's answer, with the world's switch."""
    world.file("drop_caches", "")
    return switched(world, change=change(), **more)


def switched(world: World, **more: object) -> dict[str, object]:
    """The verb's answer, with the world's switch as it is."""
    code = CODE.replace("SWITCH", str(world.root / "drop_caches"))
    return world.code(code, more)


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


def test_dirty_pages_are_written_back_first_or_nothing_is_dropped(world: World) -> None:
    """Dropping frees clean pages only."""
    switch = world.root / "drop_caches"
    # a labelled stand-in for sync: what the switch held when it was called
    world.double("sync", f"#!/bin/sh\ncp {switch} {world.root}/at-sync\n")
    assert call(world, need_available_bytes=NEVER)["verdict"] == "dropped"
    assert ((world.root / "at-sync").read_text(), dropped(world)) == ("", "3\n")
    world.double("sync", "#!/bin/sh\necho 'Input/output error' >&2; exit 1\n")
    answer = call(world, need_available_bytes=NEVER)
    assert answer["code"] == "io" and "sync: Input/output error" in str(answer["error"])
    assert dropped(world) == ""


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


def test_docker_that_does_not_say_counts_as_a_container_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is not absent: a load that is under way would lose its pages."""
    socket = tmp_path / "docker.sock"
    socket.touch()

    def silent(path: str, **_: object) -> None:
        raise CannotRead("no answer in 8 s")

    monkeypatch.setattr(page_cache, "_engines", list)
    monkeypatch.setattr(page_cache.api, "SOCKET", str(socket))
    monkeypatch.setattr(page_cache.api, "get", silent)
    said = page_cache.running("rigbook-engine")
    assert said == "whether the container rigbook-engine runs is not known: no answer in 8 s"
    for runs, words in ((True, "the container rigbook-engine runs"), (False, "")):
        row = {"State": {"Running": runs}}
        monkeypatch.setattr(page_cache.api, "get", lambda *_, row=row, **__: row)
        monkeypatch.setattr(page_cache, "BOOTED", str(tmp_path / "not-systemd"))
        assert page_cache.running("rigbook-engine") == words


def test_where_the_kernel_does_not_let_us_the_error_is_clear(world: World) -> None:
    world.file("drop_caches", "")
    # no change: the state lies there too, and could not be written
    world.sh(f"mount --bind -o ro {world.root} {world.root}; mount -o remount,ro,bind {world.root}")
    answer = switched(world, need_available_bytes=NEVER)
    assert answer["code"] == "no_drop_caches" and "Read-only file system" in answer["error"]
    assert "in a container" in json.dumps(answer)


def test_the_program_itself_takes_the_request(world: World) -> None:
    answer = world.call("caches", {"need_available_bytes": 1})
    assert answer["verdict"] == "nothing"
    assert world.call("caches", {"need": 1})["code"] == "bad_request"
