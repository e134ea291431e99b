"""node on a booted host: read-only use writes nothing; a change is undone at the console."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from facts import pack
from tests.system.engine.steps import head
from tests.system.engine.traits import launch_stand_in
from tests.system.lab.support import moving
from tests.system.lease.rigs import OnLab
from tests.system.rehearsal import Lab
from tests.system.sweep.cycle import DEPLOYS, MISSED, Case, Cell, Unit, cells, run

TARGET = "/etc/rigbook-trial.conf"


def send(lab: Lab, host: str, command: str, stdin: str = "") -> dict[str, Any]:
    """Runs a whole sh command as root on a host, as pyinfra does, and reads its JSON."""
    said = lab.ssh(host, f"sudo -n sh -c {shlex.quote(command)}", stdin=stdin)
    return dict(json.loads(said.splitlines()[-1]))


def marks(lab: Lab, host: str) -> str:
    """Names, sizes and change times of everything below the folders that node may write to."""
    folders = "/usr/local /var/lib /etc /tmp /root /home"
    # dbus, docker and sshd write there by themselves; their files are left out.
    skip = r"/docker|/systemd|/dhcp|/private|\.lock$|/containerd|pyinfra-sudo|/dbus"
    find = (
        f"sudo find {folders} -xdev -newermt '@0' -printf '%p %s %C@\\n' | grep -vE '{skip}' | sort"
    )
    return lab.ssh(host, find)


def test_a_snapshot_writes_nothing(lab: Lab) -> None:
    before = marks(lab, "test1")
    found = send(lab, "test1", pack.inline_command("snapshot", {}))
    assert found["identity"]["hostname"] == "test1"
    assert marks(lab, "test1") == before


def test_a_change_is_journalled_and_undone_at_the_console(lab: Lab) -> None:
    request: dict[str, object] = {
        "change": {
            "id": "20261120T000000Z-trial",
            "deploy": "trial",
            "operator": "t",
            "waivers": [],
        },
        "steps": [{"op": "file", "path": TARGET, "content": "new\n", "mode": "0640"}],
    }
    lab.ssh("test1", f"echo old | sudo tee {TARGET} && sudo chmod 0600 {TARGET}")
    try:
        done = send(lab, "test1", *pack.install_call("apply", request))
        assert done["ok"] and done["changed"]
        assert lab.ssh("test1", f"sudo cat {TARGET}") == "new"
        again = send(lab, "test1", *pack.install_call("apply", request))
        assert again["ok"] and not again["changed"]
        status = lab.ssh("test1", "sudo rignode status")
        assert "OPEN" in status and "rignode undo" in status
        lab.ssh("test1", "sudo rignode undo")
        assert lab.ssh("test1", f"sudo cat {TARGET} && sudo stat -c %a {TARGET}") == "old\n600"
        assert "OPEN" not in lab.ssh("test1", "sudo rignode status")
    finally:
        lab.ssh("test1", f"sudo rm -f {TARGET}")


# Reaping on a booted host with the real systemd and the real /dev/shm.
#
# The engines are the labelled stand-in of tests/unit/node/support/stand_in_engine.py, which the
# engine tier's contract test holds equal to a real one.

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


# What may not run does not run, and leaves both hosts as they were.


def test_serve_without_the_image_changes_nothing(lab: Lab) -> None:
    before = lab.snapshots()
    done = lab.pyinfra(
        "serve", "--data", "recipe=absent-image", "--data", "recipes_dir=tests/system/lab/recipes"
    )
    assert done.rc == 1
    assert "image-missing" in done.text and "nothing was changed" in done.text
    assert "Traceback" not in done.text
    assert lab.snapshots() == before


@pytest.fixture
def without_test2(lab: Lab) -> object:
    """The lab with test2 switched off."""
    assert lab.verb("stop", "test2").rc == 0
    yield lab
    assert lab.verb("start", "test2").rc == 0


def test_one_host_off_stops_the_run_before_anything_changed(without_test2: Lab) -> None:
    before = without_test2.snapshots("--limit", "test1")
    for deploy in ("serve", "stop", "rollback"):
        done = without_test2.pyinfra(deploy)
        assert done.rc == 1
        assert "nodes-reachable" in done.text and "test2" in done.text, done.text
        assert "Traceback" not in done.text
    doctor = without_test2.pyinfra("doctor")
    assert doctor.rc == 1 and "nodes-reachable" in doctor.text
    assert without_test2.snapshots("--limit", "test1") == before


def test_half_a_rig_is_refused(lab: Lab) -> None:
    done = lab.pyinfra("serve", "--limit", "test1")
    assert done.rc == 1
    assert "--limit" in done.text and "test2" in done.text


def test_no_host_matched_is_an_error(lab: Lab) -> None:
    done = lab.pyinfra("serve", "--limit", "nosuch")
    assert done.rc == 1
    assert "test1, test2" in done.text and "Traceback" not in done.text


@pytest.mark.parametrize("device", ["down"])
def test_a_fabric_that_is_down_is_named(lab: Lab, device: str) -> None:
    assert lab.verb("fabric", device).rc == 0
    try:
        done = lab.pyinfra("doctor")
        assert done.rc == 1
        assert "fabric" in done.text
    finally:
        assert lab.verb("fabric", "up").rc == 0


def test_a_foreign_process_on_the_port_is_named(lab: Lab) -> None:
    lab.ssh(
        "test1", "nohup python3 -m http.server 29501 >/dev/null 2>&1 & echo $! > /tmp/foreign.pid"
    )
    try:
        done = lab.pyinfra(
            "serve",
            "--data",
            "recipe=absent-image",
            "--data",
            "recipes_dir=tests/system/lab/recipes",
        )
        assert done.rc == 1
        assert "port-taken" in done.text and "29501" in done.text and "python3" in done.text
    finally:
        lab.ssh("test1", "kill $(cat /tmp/foreign.pid); rm /tmp/foreign.pid")


# A start whose turn comes later than 20 s, as behind network-online.target at a boot.

SLOW, LATE = "trial-slow.service", "trial-late.service"
CHANGE = {"id": "20261120T000000Z-queue", "deploy": "trial", "operator": "t", "waivers": []}
UNITS = {
    SLOW: "[Service]\nType=oneshot\nExecStart=/bin/sleep 40\n",
    LATE: f"[Unit]\nAfter={SLOW}\n[Service]\nExecStart=/bin/sleep infinity\n",
}


def test_a_queued_start_is_waited_for(lab: Lab) -> None:
    for name, text in UNITS.items():
        lab.ssh("test1", f"sudo tee /run/systemd/system/{name} >/dev/null", stdin=text)
    lab.ssh("test1", f"sudo systemctl daemon-reload; sudo systemctl start --no-block {SLOW}")
    try:
        step = {"op": "unit", "unit": LATE, "active": "start"}
        done = send(lab, "test1", *pack.install_call("apply", {"change": CHANGE, "steps": [step]}))
        assert done["ok"] and done["changed"], done
        assert lab.ssh("test1", f"systemctl is-active {LATE}") == "active"
        assert lab.ssh("test1", f"systemctl is-active {SLOW}", check=False) == "inactive"
    finally:
        names = " ".join(shlex.quote(name) for name in UNITS)
        lab.ssh("test1", f"sudo rignode undo; sudo systemctl stop {names}; cd /run/systemd/system "
                f"&& sudo rm -f {names}; sudo systemctl daemon-reload", check=False)  # fmt: skip


# Cells of the sweep with a fixed seed, one of each interrupt; `make chaos` has the others.

SEED = 2611
CLEAR = "rm -f /etc/systemd/system/ssh.service.d/50-trial.conf; systemctl daemon-reload"


@pytest.fixture(scope="module")
def unit(lab: Lab) -> Iterator[Case]:
    """The deploy of a drop-in; afterwards it and its changes are gone."""
    rig = OnLab(lab, "inventory/lab.py", tuple(lab.hosts), head(lab))
    yield Unit(rig)
    for name in rig.names:
        rig.root(name, CLEAR)
    moving.clear(lab)


@pytest.mark.parametrize(
    "cell", cells("unit", "unit", len(DEPLOYS["unit"]), SEED), ids=lambda cell: cell.kind
)
def test_one_more_run(unit: Case, cell: Cell) -> None:
    assert run(unit, cell).hit != MISSED
