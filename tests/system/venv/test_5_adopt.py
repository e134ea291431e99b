"""The tower served by somebody's own unit: taken over, and given back to that unit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.adopt.steps import watched
from tests.system.venv.steps import Tower, wait_until

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
    with watched(former.endpoint) as gap:
        done = former.deploy("adopt", "--data", "take=true")
    assert done.rc == 0 and "COMMITTED" in done.text, done.text
    assert f"disable {UNIT}" in done.text and f"stop {UNIT}" in done.text, done.text
    assert former.on(STATE).split()[-2:] == ["inactive", "active"]
    assert former.deploy("verify").rc == 0
    again = former.deploy("adopt", "--data", "take=true")
    assert again.rc == 0 and "nothing to take over" in again.text, again.text

    with watched(former.endpoint) as back_gap:
        back = former.deploy("rollback", "--data", f"change={former.newest()['id']}")
    assert back.rc == 0 and "serves again" in back.text, back.text
    assert former.on(STATE) == before and former.newest()["status"] == "ROLLED_BACK"
    print(f"TABLE | venv | take {gap.seconds:.0f} s | back {back_gap.seconds:.0f} s |")
