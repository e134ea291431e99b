"""The case of an engine that is silent: a kernel that does not end, and the watch's answer."""

from __future__ import annotations

import json
from typing import Any

from tests.system.gpu.rig_host import UNIT, Rig, tail

SIGN = "/run/rigbook-gpu-spin"
STATE = "/var/lib/rigbook/watch/state.json"
SILENT_S, INTERVAL_S = 30, 10


def wedge(rig: Rig) -> str:
    """/health says 200 while no step ends: named, its evidence kept, the engine restarted."""
    rig.serving()
    rig.on(f"rm -f {STATE} {SIGN}")
    done = rig.deploy("watch", f"interval={INTERVAL_S}", f"silent_s={SILENT_S}", "restart=true")
    assert done.rc == 0, tail(done)
    try:
        (before,) = rig.values("InvocationID")
        rig.on(f"touch {SIGN}")
        rig.wait("it spins", 20, lambda: "blocks spin for" in _log(rig))
        assert rig.on("curl -s -m 5 -o /dev/null -w '%{http_code}' localhost:8000/health") == "200"
        restarted = rig.wait("the watch's restart", 200, lambda: _silence(rig)["restarts"])
        rig.on(f"rm -f {SIGN}")
        bundle = rig.on("ls /var/lib/rigbook/evidence | tail -1")
        there = rig.on(f"ls /var/lib/rigbook/evidence/{bundle}")
        assert "processes.txt" in there and "summary.json" in there, there
        answers = rig.wait("a real completion", 200, rig.answers)
        assert rig.values("InvocationID") != [before]
        count = len(there.split())
        return (
            f"restarted after {restarted:.0f} s, evidence of {count} files kept, answers "
            f"{answers:.0f} s later"
        )
    finally:
        rig.on(f"rm -f {SIGN}")
        rig.deploy("watch", "remove=true")


def _log(rig: Rig) -> str:
    return rig.on(f"journalctl -u {UNIT} -n 50 --no-pager -o cat")


def _silence(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.on(f"cat {STATE}"))["silence"]
    return found
