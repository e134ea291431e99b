"""What an engine shows of itself on a host; the same look at a real one and at the stand-in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from facts import pack
from tests.system.rehearsal import ROOT, Lab

STAND_IN = ROOT / "tests/unit/node/support/stand_in_engine.py"
# Each test that replays an incident with the stand-in relies on these and on nothing else.
STAND_IN_TRAITS = frozenset(
    {"a title VLLM::Worker_TPn", "listens on 29501", "maps /dev/shm/psm_*", "comm is cut to 15"}
)


def traits(lab: Lab, host: str) -> frozenset[str]:
    """The traits that node's own snapshot finds on a host."""
    command = f"sudo -n sh -c {shlex.quote(pack.inline_command('snapshot', {}))}"
    seen = json.loads(lab.ssh(host, command).splitlines()[-1])
    found: set[str] = set()
    pids = set()
    for process in seen["engine_processes"]:
        pids.add(process["pid"])
        if str(process["argv"][0]).startswith("VLLM::Worker_TP"):
            found.add("a title VLLM::Worker_TPn")
        if process["comm"] == "VLLM::Worker_TP":
            found.add("comm is cut to 15")
    for port in seen["ports"]:
        if port["port"] == 29501 and port["pid"] in pids:
            found.add("listens on 29501")
    for segment in seen["shm"]:
        if segment["name"].startswith("psm_") and set(segment["mappers"]) & pids:
            found.add("maps /dev/shm/psm_*")
    return frozenset(found)


def launch_stand_in(lab: Lab, host: str, *more: str, title: str = "VLLM::Worker_TP1") -> int:
    """Starts the labelled stand-in as an orphan of a login that is gone; its pid."""
    lab.ssh(host, "cat > /tmp/stand_in_engine.py", stdin=Path(STAND_IN).read_text())
    options = more or ("--port", "29501", "--segment", "psm_5eed0001", "--comm", title)
    words = shlex.join(["/tmp/stand_in_engine.py", "--ready", "/tmp/stand-in.pid", *options])
    start = f"setsid -f bash -c {shlex.quote(f'exec -a {title} python3 {words}')}"
    lab.ssh(
        host,
        f"sudo rm -f /tmp/stand-in.pid; sudo {start} </dev/null >/dev/null 2>&1; "
        "for i in $(seq 50); do [ -s /tmp/stand-in.pid ] && break; sleep 0.1; done",
    )
    return int(lab.ssh(host, "sudo cat /tmp/stand-in.pid"))
