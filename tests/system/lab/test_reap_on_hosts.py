"""Reaping on a booted host with the real systemd and the real /dev/shm.

The engines are the labelled stand-in of tests/unit/node/support/stand_in_engine.py, which the
engine tier's contract test holds equal to a real one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from facts.rignode import pack
from tests.system.engine.traits import launch_stand_in
from tests.system.rehearsal import Lab

NEIGHBOUR = "neighbour-engine.service"
ENGINE = "spinning-engine.service"
STAND_IN = "/tmp/stand_in_engine.py"


def root(lab: Lab, verb: str, **request: object) -> dict[str, Any]:
    """A verb of node as root on test1; what it answered."""
    line, stdin = pack.install_call(verb, {"change": None, **request})
    said = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(line)}", check=False, stdin=stdin)
    return dict(json.loads(said.splitlines()[-1]))


def alive(lab: Lab, pid: int) -> bool:
    """Whether a pid of test1 lives."""
    return lab.ssh("test1", f"sudo kill -0 {pid} 2>/dev/null && echo yes", check=False) == "yes"


def unit_file(lab: Lab, name: str, command: str) -> None:
    """Writes and starts a unit that comes back at once when its engine ends."""
    text = f"[Service]\nExecStart={command}\nRestart=always\nRestartSec=0\nStartLimitBurst=1000\n"
    lab.ssh("test1", f"sudo tee /etc/systemd/system/{name} >/dev/null", stdin=text)
    lab.ssh("test1", f"sudo systemctl daemon-reload && sudo systemctl start {name}")


def remove_unit(lab: Lab, name: str) -> None:
    """Takes a unit of the test away again."""
    lab.ssh("test1", f"sudo systemctl stop {name}; sudo rm -f /etc/systemd/system/{name}; "
            "sudo systemctl daemon-reload; sudo systemctl reset-failed", check=False)  # fmt: skip


@pytest.fixture
def orphan(lab: Lab) -> Iterator[int]:
    """An orphan that holds the rendezvous port and a segment; its pid."""
    pid = launch_stand_in(lab, "test1")
    yield pid
    lab.ssh("test1", f"sudo kill -9 {pid}; sudo rm -f /dev/shm/psm_5eed000*", check=False)


@pytest.fixture
def neighbour(lab: Lab, orphan: int) -> Iterator[int]:
    """A second live engine, of a unit of its own; its pid. The orphan brought the program along."""
    program = shlex.join(["python3", STAND_IN, "--ready", "/tmp/neighbour.pid", "--port", "29600",
                          "--segment", "psm_5eed0002"])  # fmt: skip
    lab.ssh("test1", "sudo rm -f /tmp/neighbour.pid")
    command = f"/bin/bash -c {shlex.quote('exec -a VLLM::Worker_TP0 ' + program)}"
    unit_file(lab, NEIGHBOUR, command)
    lab.ssh("test1", "for i in $(seq 50); do [ -s /tmp/neighbour.pid ] && break; sleep 0.1; done")
    yield int(lab.ssh("test1", "sudo cat /tmp/neighbour.pid"))
    remove_unit(lab, NEIGHBOUR)


def test_a_second_live_engine_keeps_its_process_its_port_and_its_segment(
    lab: Lab, orphan: int, neighbour: int
) -> None:
    """faults.md 27: another live service on the GPU or in /dev/shm."""
    dry = root(lab, "reap", ports=[29501], dry=True)
    assert str(orphan) in json.dumps(dry) and alive(lab, orphan), "a dry run ends nothing"
    done = root(lab, "reap", ports=[29501])
    assert done["ok"], done
    assert not alive(lab, orphan) and alive(lab, neighbour)
    cleaned = root(lab, "shm", min_age_s=0)
    assert cleaned["ok"], cleaned
    assert lab.ssh("test1", "ls /dev/shm | grep psm_5eed") == "psm_5eed0002"
    assert "29600" in lab.ssh("test1", "ss -Hltn 'sport = :29600'")
    assert lab.ssh("test1", "ss -Hltn 'sport = :29501'") == ""


def test_a_unit_that_restarts_all_the_time_is_held_while_its_orphan_is_ended(
    lab: Lab, orphan: int
) -> None:
    """faults.md 28: its former state is brought back afterwards."""
    remove_unit(lab, ENGINE)
    try:
        unit_file(lab, ENGINE, "/bin/sh -c 'sleep 0.2; exit 1'")
        header = {"id": "20261120T000000Z-reap", "deploy": "restart", "operator": "t",
                  "waivers": []}  # fmt: skip
        before = restarts(lab)
        done = root(lab, "reap", change=header, unit=ENGINE, ports=[29501], hold=True)
        assert done["ok"], done
        assert not alive(lab, orphan)
        root(lab, "close", change=header["id"], status="COMMITTED", reason="test")
        state = lab.ssh("test1", f"systemctl show -p ActiveState --value {ENGINE}")
        assert state in ("active", "activating"), state
        assert restarts(lab) != before
    finally:
        remove_unit(lab, ENGINE)


def restarts(lab: Lab) -> str:
    """The unit's own count of its restarts and which start this is."""
    return lab.ssh("test1", f"systemctl show -p NRestarts,InvocationID {ENGINE}")


def meminfo(lab: Lab, key: str) -> int:
    """A line of test1's /proc/meminfo, in bytes."""
    return int(lab.ssh("test1", f"grep '^{key}:' /proc/meminfo").split()[1]) * 1024


def test_the_page_cache_is_dropped_once_and_only_where_it_is_needed(lab: Lab) -> None:
    """C11: 4.75 of 119.67 GiB free, the rest of it clean cache of earlier loads."""
    lab.ssh("test1", "cat /usr/lib/*/*.so* /usr/bin/* > /dev/null 2>&1", check=False)
    free, cached = meminfo(lab, "MemFree"), meminfo(lab, "Cached")
    enough = root(lab, "caches", need_free_bytes=free // 2)
    assert enough["ok"] and enough["verdict"] == "nothing", enough
    # More than is free, less than is free without the cache: as before a load on unified memory.
    done = root(lab, "caches", need_free_bytes=free + cached // 4)
    assert done["ok"] and done["verdict"] == "dropped", done
    assert done["after"]["free"] > done["before"]["free"]
