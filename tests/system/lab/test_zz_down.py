"""Leaving nothing: after a crash of the lab's own processes, and when asked twice. Runs last."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from lab import core
from lab import host as lab_host
from tests.system.rehearsal import Lab


def leftovers() -> list[str]:
    """What of the lab can be seen on this machine: links, mounts, propagate folders, loops."""
    home = f"{core.TESTS.home}/"
    # the user's lab stands beside and stays
    ours = (f"{core.TESTS.link}-", f"vb-{core.TESTS.host}", f"vb-{core.TESTS.tower}")
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    found = [line for line in links.splitlines() if line.startswith(ours)]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if home in line]
    found += [str(path) for path in Path("/run/systemd/nspawn/propagate").glob("test*")]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "systemd-nspawn" in text and home in text:
            found.append(text)
    return found


def test_down_after_a_crash_leaves_nothing_and_twice_is_fine(lab: Lab) -> None:
    assert leftovers() != [], "a lab that runs must be visible, or this test sees nothing"
    for host in lab.hosts.values():
        supervisor = lab_host.read_state(lab.settings, host).supervisor
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGKILL)
    for _ in range(2):
        done = lab.verb("down")
        assert done.rc == 0, done.text
        assert leftovers() == []
