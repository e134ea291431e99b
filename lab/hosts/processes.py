"""Processes by identity (pid + start time), never by pattern; and their cgroups."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from lab.core.settings import LabError


@dataclass(frozen=True)
class Process:
    """A process that a reused pid cannot be mistaken for. ``start`` is in clock ticks."""

    pid: int
    start: int

    def as_json(self) -> dict[str, int]:
        """The two numbers, for a state file."""
        return {"pid": self.pid, "start": self.start}


def from_json(data: object) -> Process | None:
    """The process a state file names, or None if it names none."""
    if isinstance(data, dict) and {"pid", "start"} <= data.keys():
        return Process(int(data["pid"]), int(data["start"]))
    return None


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start time (field 22) of a /proc/PID/stat line."""
    # the command name may hold spaces and brackets: count from the last ')'
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> Process | None:
    """The identity of a live process, or None if there is no such process."""
    try:
        state, start = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZX" else Process(pid, start)


def alive(process: Process | None) -> bool:
    """Whether exactly this process still runs."""
    return process is not None and identify(process.pid) == process


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process through a pidfd; False if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # checked after the pidfd is open: from here on it can't be another process
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def wait_gone(process: Process, seconds: float) -> bool:
    """Wait until the process has ended; False if it outlives the time."""
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def children(pid: int) -> list[int]:
    """Direct children of a process (of its main thread)."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def cgroup_mount(mounts: str) -> Path | None:
    """Where the cgroup v2 hierarchy is mounted, from the text of /proc/mounts."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def lab_cgroup(home: Path) -> Path:
    """The cgroup (v2) that holds every process of the lab at ``home``, one child a host."""
    mount = cgroup_mount(Path("/proc/mounts").read_text())
    if mount is None:
        raise LabError("no cgroup v2 hierarchy is mounted on this machine")
    # named by its home: taking one lab down can never touch another's hosts
    return mount / f"rigbook-lab-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def empty_cgroup(path: Path, seconds: float = 10) -> bool:
    """Kill what runs in a cgroup and below it, then remove it. True when it is gone."""
    deadline = time.monotonic() + seconds
    while path.exists():
        with contextlib.suppress(OSError):
            (path / "cgroup.kill").write_text("1")
        # only an empty cgroup can be removed, innermost first
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        if not path.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
