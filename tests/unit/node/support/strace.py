"""Run the program under strace: list its changing system calls, then kill, fail or hang it at each.

The one matrix of the fault tests: (setup, verb, request) x (call, which one) x (kill, error, hang).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.node.support.host import Host

CHANGING = ("write", "pwrite64", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat",
            "mkdir", "mkdirat", "fchmod", "fchown", "ftruncate", "flock", "openat",
            "rmdir")  # fmt: skip
# of a run with tar and zstd, whose writes are thousands
TREES = ("fsync", "fdatasync", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "unlink",
         "unlinkat", "symlinkat", "linkat", "ftruncate", "fchown", "fchmod")  # fmt: skip
FAULTS = {"error": "error=EIO", "kill": "signal=SIGKILL", "hang": "delay_enter=60000000"}
HANG_S = 3.0
Point = tuple[str, int]
Done = subprocess.CompletedProcess[str]
_LINE = re.compile(r"^(?:(\d+)\s+)?(\w+)\((.*)$")


def points(
    host: Host, verb: str, request: str, log: Path, calls: Sequence[str] = CHANGING
) -> list[Point]:
    """Every changing call of a run, as (system call, which one of its thread); it runs for real."""
    traced(host, verb, request, ["-e", f"trace={','.join(calls)}"], log)
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[Point, None] = {}
    for line in log.read_text().splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        thread, call, rest = match.groups()
        seen[thread, call] += 1
        if call != "openat" or "O_CREAT" in rest:
            found[call, seen[thread, call]] = None
    return list(found)


def traced(host: Host, verb: str, request: str, options: Sequence[str], log: Path) -> Done:
    """Run a verb under strace with more options."""
    return host.run(_argv(host, verb, request, options, log))


def inject(host: Host, verb: str, request: str, fault: str, point: Point, log: Path) -> Done:
    """Run a verb with a fault (one of FAULTS, or strace's words for one) at one point."""
    call, number = point
    said = FAULTS.get(fault, fault)
    options = ["-e", f"trace={call}", "-e", f"inject={call}:{said}:when={number}"]
    argv = _argv(host, verb, request, options, log)
    return hung(host, argv) if fault == "hang" else host.run(argv)


def hung(host: Host, argv: Sequence[str]) -> Done:
    """Run a command and kill all of it once it hangs; its status is -9 then."""
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(argv, env=host.environ(), start_new_session=True,
                             stdin=nothing, stdout=nothing, stderr=nothing)  # fmt: skip
    try:
        child.wait(HANG_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return subprocess.CompletedProcess(argv, child.returncode, "", "")


def _argv(host: Host, verb: str, request: str, options: Sequence[str], log: Path) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(log), *options, *host.argv(verb, request)]


@dataclass
class Faulted:
    """A verb with its request, and what puts the host back to where the verb begins."""

    host: Host
    verb: str
    request: dict[str, Any]
    reset: Callable[[], object]

    @property
    def log(self) -> Path:
        """What strace wrote of the last run."""
        return self.host.root.parent / "strace.log"

    def points(self, *calls: str) -> list[Point]:
        """Every changing call of a run that gets through, or of these calls alone."""
        self.reset()
        return points(self.host, self.verb, self.text, self.log, calls or CHANGING)

    def hit(self, point: Point, fault: str = "kill") -> Done:
        """One run with a fault."""
        self.reset()
        return inject(self.host, self.verb, self.text, fault, point, self.log)

    def each(self, at: Iterable[Point], fault: str = "kill") -> Iterator[tuple[Point, Done]]:
        """A run with the fault at each of the points."""
        for point in at:
            yield point, self.hit(point, fault)

    def traced(self, *options: str) -> Done:
        """One run under strace with options of its own."""
        self.reset()
        return traced(self.host, self.verb, self.text, options, self.log)

    @property
    def text(self) -> str:
        """The request as the program reads it."""
        return json.dumps(self.request)
