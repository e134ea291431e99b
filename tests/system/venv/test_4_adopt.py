"""A recipe's secrets on the tower: systemd reads them for a user who may not read their file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.adopt.setups import watched as setups_watched
from tests.system.canary import FILE, NODE_FILE, Keys, whole_way
from tests.system.venv.steps import Tower, wait_until


@pytest.fixture
def keys(serving: Tower, tmp_path: Path) -> Iterator[Keys]:
    # What systemd's quoting has to carry.
    key, token = f"K3Y{os.urandom(8).hex()}$`\"'\\%n#", f"T0K{os.urandom(8).hex()} x $HOME"
    made = Keys(tmp_path, "tiny-venv", key, token)
    made.put(serving, [serving.name])
    yield made
    serving.on(f"sudo rm -f {NODE_FILE}")


def test_secrets_reach_the_engine_and_nothing_else(serving: Tower, keys: Keys) -> None:
    whole_way(serving, serving.deploy, [serving.name], serving.endpoint.base_url, keys)


def test_the_values_arrive_whole(serving: Tower, keys: Keys) -> None:
    done = serving.deploy("serve", *keys.words)
    assert done.rc == 0, done.text
    environ = serving.on(f"sudo cat /proc/{serving.main_pid()}/environ").split("\0")
    assert {f"VLLM_API_KEY={keys.key}", f"HF_TOKEN={keys.token}"} <= set(environ)
    assert serving.on(f"sudo -u rig cat {FILE} 2>&1 || true").endswith("Permission denied")
    assert serving.deploy("serve").rc == 0


# The tower served by somebody's own unit: taken over, and given back to that unit.

UNIT, HOME = "vllm.service", "/srv/former"
PATH = f"/etc/systemd/system/{UNIT}"
TEXT = f"""\
[Unit]
Description=somebody's own unit around the venv
[Service]
User=rig
EnvironmentFile={HOME}/engine.env
ExecStart={HOME}/serve.sh
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""
STATE = f"systemctl is-enabled {UNIT} rigbook-engine.service; systemctl is-active {UNIT} "
STATE += "rigbook-engine.service; true"


@pytest.fixture
def former(serving: Tower) -> Iterator[Tower]:
    """Ours is taken back; the former unit serves the same model from the same venv."""
    serving.on(
        f"sudo mkdir -p {HOME} && sudo cp /etc/rigbook/engine/serve.sh /etc/rigbook/engine/"
        f"engine.env {HOME}/ && sudo chmod 755 {HOME}/serve.sh && sudo chmod 644 {HOME}/engine.env"
    )
    serving.on("sudo systemctl disable --now rigbook-engine.service")
    serving.on("sudo rm -r /etc/rigbook/engine /etc/systemd/system/rigbook-engine.service")
    serving.ssh(serving.name, f"sudo tee {PATH} >/dev/null", stdin=TEXT)
    serving.on(f"sudo systemctl daemon-reload; sudo systemctl enable --now {UNIT}")
    wait_until("the former setup answers", 300, serving.answers)
    yield serving
    serving.on(f"sudo systemctl disable --now {UNIT}; sudo rm -rf {PATH} {HOME}", check=False)
    done = serving.deploy("serve")
    assert done.rc == 0, done.text


def test_the_tower_of_another_unit_is_taken_over_and_given_back(former: Tower) -> None:
    before = former.on(STATE)
    assert before.split()[0] == "enabled" and "active" in before.split(), before
    with setups_watched(former.endpoint) as gap:
        done = former.deploy("adopt", "--data", "take=true")
    assert done.rc == 0 and "COMMITTED" in done.text, done.text
    assert f"disable {UNIT}" in done.text and f"stop {UNIT}" in done.text, done.text
    assert former.on(STATE).split()[-2:] == ["inactive", "active"]
    assert former.deploy("verify").rc == 0
    again = former.deploy("adopt", "--data", "take=true")
    assert again.rc == 0 and "nothing to take over" in again.text, again.text

    with setups_watched(former.endpoint) as back_gap:
        back = former.deploy("rollback", "--data", f"change={former.newest()['id']}")
    assert back.rc == 0 and "serves again" in back.text, back.text
    assert former.on(STATE) == before and former.newest()["status"] == "ROLLED_BACK"
    print(f"TABLE | venv | take {gap.seconds:.0f} s | back {back_gap.seconds:.0f} s |")


# A tower that is silent: the engine's core is stopped, and the watch restarts its unit.

SILENT_S, INTERVAL_S = 60, 10
SILENT_STATE = "/var/lib/rigbook/watch/state.json"


@pytest.fixture
def watched(serving: Tower) -> Iterator[Tower]:
    """The tower watches its own engine and restarts it."""
    serving.on(f"sudo rm -f {SILENT_STATE}")
    options = (f"interval={INTERVAL_S}", f"silent_s={SILENT_S}", "restart=true")
    done = serving.deploy("watch", *(word for one in options for word in ("--data", one)))
    assert done.rc == 0, done.text
    try:
        yield serving
    finally:
        assert serving.deploy("watch", "--data", "remove=true").rc == 0


def silence(tower: Tower) -> dict[str, Any]:
    """What the watch knows of the engine's silence."""
    found: dict[str, Any] = json.loads(tower.on(f"sudo cat {SILENT_STATE}"))["silence"]
    return found


def test_a_core_that_stops_is_named_bundled_and_restarted(watched: Tower) -> None:
    before = watched.values("InvocationID")
    pids = watched.on("pgrep -f '^VLLM::EngineCore'").split()
    assert pids
    watched.on(f"sudo kill -STOP {' '.join(pids)}")
    began = time.monotonic()
    wait_until("it is restarted", 240, lambda: len(silence(watched)["restarts"]) == 1)
    seconds = time.monotonic() - began
    assert seconds < SILENT_S + 2 * INTERVAL_S + 60
    bundle = watched.on("sudo ls /var/lib/rigbook/evidence").split()[-1]
    there = watched.on(f"sudo cat /var/lib/rigbook/evidence/{bundle}/processes.txt")
    assert "VLLM::EngineCore" in there and "T (stopped)" in there
    again = wait_until("a real completion", 600, watched.answers)
    print(f"REPLAY restarted after {seconds:.0f} s, answers {again:.0f} s later")
    assert watched.values("InvocationID") != before
    assert len(silence(watched)["restarts"]) == 1
