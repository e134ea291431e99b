"""Run the program under strace: list its changing system calls, then kill or fail it at each."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.unit.node.support.host import Host

CHANGING = ("write", "pwrite64", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat",
            "mkdir", "mkdirat", "fchmod", "fchown", "ftruncate", "flock", "openat",
            "rmdir")  # fmt: skip
_LINE = re.compile(r"^(?:\d+\s+)?(\w+)\((.*)$")


def points(host: Host, verb: str, request: str, log: Path) -> list[tuple[str, int]]:
    """Every changing call of a run, as (system call, which one of them); the run is for real."""
    traced(host, verb, request, ["-e", f"trace={','.join(CHANGING)}"], log)
    seen: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for line in log.read_text().splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        seen[match.group(1)] += 1
        if match.group(1) != "openat" or "O_CREAT" in match.group(2):
            found.append((match.group(1), seen[match.group(1)]))
    return found


def traced(
    host: Host, verb: str, request: str, options: list[str], log: Path
) -> subprocess.CompletedProcess[str]:
    """Run a verb under strace with more options."""
    command = ["strace", "-f", "-qq", "-o", str(log), *options, *host.argv(verb, request)]
    return host.run(command)


def inject(
    host: Host, verb: str, request: str, fault: str, point: tuple[str, int], log: Path
) -> subprocess.CompletedProcess[str]:
    """Run a verb with a fault (`signal=SIGKILL`, `error=EIO`) at one point."""
    call, number = point
    options = ["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={number}"]
    return traced(host, verb, request, options, log)
