"""A start whose turn comes later than 20 s, as behind network-online.target at a boot."""

from __future__ import annotations

import shlex

from facts.rignode import pack
from tests.system.lab.test_node_over_ssh import send
from tests.system.rehearsal import Lab

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
