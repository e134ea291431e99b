"""Processes by identity."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab.hosts import processes
from lab.hosts.processes import Process


def test_parse_stat_survives_a_hostile_name() -> None:
    fields = " ".join(str(n) for n in range(4, 53))
    assert processes.parse_stat(f"7 (a) R 1 (b)) S {fields}") == ("S", 22)


def test_a_live_process_is_found_and_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = processes.identify(child.pid)
        assert known is not None
        assert processes.alive(known)
        assert processes.send(known, signal.SIGKILL)
        assert processes.wait_gone(known, 5)
    finally:
        child.kill()
        child.wait()
    assert not processes.send(known, signal.SIGKILL)


def test_a_reused_pid_is_not_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = processes.identify(child.pid)
        assert known is not None
        impostor = Process(known.pid, known.start + 1)
        assert not processes.alive(impostor)
        assert not processes.send(impostor, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_identity_survives_the_state_file() -> None:
    here = processes.identify(os.getpid())
    assert here is not None
    assert processes.from_json(here.as_json()) == here
    assert processes.from_json(None) is None
    assert processes.from_json({"pid": 1}) is None


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", Path("/sys/fs/cgroup")),
        (
            "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw",
            Path("/sys/fs/cgroup/unified"),
        ),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0", None),
    ],
)
def test_cgroup_mount(mounts: str, expected: Path | None) -> None:
    assert processes.cgroup_mount(mounts) == expected


def test_two_labs_have_two_cgroups() -> None:
    assert processes.lab_cgroup(Path("/a")) != processes.lab_cgroup(Path("/b"))
