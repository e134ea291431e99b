"""A world of its own for reap: pid, mount and network namespaces, so that it sees only the test's
processes and can end no other. The processes in it are real; systemctl and nvidia-smi are labelled
stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.node.support.host import Host, change
from tests.unit.node.support.transfers import wait_for

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
UNIT = "rigbook-engine.service"
PORT = 29501
TITLE = "VLLM::Worker_TP0"
INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(1, flush=True)\n"
INIT += "while True: signal.pause()"
MOUNTS = (
    "mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/system;"
    "ip link set lo up"
)
# starts a stand-in under the title of its choice; then waits for ever, or is gone
LAUNCHER = """\
import os, subprocess, sys, time
env = {**os.environ, "PYTHONHOME": sys.base_prefix}  # it cannot be found by such an argv[0]
child = subprocess.Popen(sys.argv[2:], executable=os.path.realpath(sys.executable), env=env)
ready = sys.argv[sys.argv.index("--ready") + 1]
while not os.path.exists(ready): time.sleep(0.01)
if sys.argv[1] == "stay": time.sleep(600)
"""
# vfork's parent is in uninterruptible sleep until its child ends
STUCK = """\
import ctypes, os, platform, signal
clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
print(os.getpid(), flush=True)
if ctypes.CDLL(None).syscall(clone, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0: signal.pause()
"""
NVIDIA_SMI = """\
#!/bin/sh
# rigbook stand-in for nvidia-smi: rows of a file, a pid's row while the pid lives
here=$(dirname "$0")
case "$1" in
--query-gpu=*) cat "$here/gpus";;
*) while IFS=, read -r uuid pid rest; do
     [ -d "/proc/$((pid))" ] && echo "$uuid,$pid,$rest"
   done < "$here/apps";;
esac
exit 0
"""


@dataclass
class World(Host):
    """A host whose program runs in the world."""

    init: int = 0
    process: subprocess.Popen[str] | None = None
    number: int = 0
    last: int = 0

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs argv in the world."""
        return ["nsenter", "-t", str(self.init), "-p", "-m", "-n", *argv]

    def argv(self, verb: str, *args: str) -> list[str]:
        """The command line of a verb, in the world."""
        return self.enter(Host.argv(self, verb, *args))

    def open(self) -> None:
        """Make the world; its pid 1 adopts and reaps orphans, as an init does."""
        self.process = subprocess.Popen(
            ["unshare", "-p", "-m", "-n", "--fork", "--mount-proc", "--kill-child",
             sys.executable, "-c", INIT], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout and self.process.stdout.readline()
        pid = self.process.pid
        self.init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        subprocess.run(self.enter(["sh", "-ec", MOUNTS]), check=True)
        self.systemctl()

    def close(self) -> None:
        """End the world with all that is in it."""
        assert self.process
        os.kill(self.init, 9)
        self.process.wait()

    def unit(self, active: str | None = None) -> str:
        """Set the unit's active state; gives what it is now."""
        path = self.bin / "units" / f"{UNIT}.active"
        if active is not None:
            path.write_text(f"{active}\n")
        return path.read_text().strip()

    def reap(self, **more: object) -> dict[str, Any]:
        """The answer of a reap of port 29501 as a step of change-1."""
        return self.call("reap", reap_request(**more))

    def launch(
        self, *more: str, title: str = TITLE, stay: bool = False, program: Path = STAND_IN
    ) -> int:
        """Start a stand-in in a session of its own; gives its pid in the world.

        With `stay` its parent lives on, else it is an orphan.
        """
        self.number += 1
        ready = self.root / f"ready{self.number}"
        argv = [title, str(program), "--ready", str(ready), *more]
        command = [sys.executable, "-c", LAUNCHER, "stay" if stay else "leave", *argv]
        subprocess.Popen(self.enter(["setsid", "-f", *command]), env=self.environ(),
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        self.until(ready.exists)
        pid = int(ready.read_text())
        if not stay:
            self.until(lambda: self.parent(pid) == 1)
        return pid

    def stuck(self, *argv: str) -> int:
        """Start a process that sleeps uninterruptibly, and whose command line and maps cannot be
        read: a pipe lies over them. Gives its pid in the world."""
        pipe = self.root / "pipe"
        os.mkfifo(pipe)
        child = subprocess.Popen(self.enter([sys.executable, "-c", STUCK, *argv]), text=True,
                                 stdout=subprocess.PIPE)  # fmt: skip
        assert child.stdout
        pid = int(child.stdout.readline())
        self.until(lambda: self.sh(f"cut -d' ' -f3 /proc/{pid}/stat") == "D")
        for name in ("cmdline", "maps"):
            self.sh(f"touch /dev/shm/seg; mount --bind {pipe} /proc/{pid}/{name}")
        return pid

    # waits for a condition
    until = staticmethod(wait_for)

    def sh(self, text: str) -> str:
        """The output of a shell line in the world."""
        done = subprocess.run(self.enter(["sh", "-c", text]), capture_output=True, text=True)
        return done.stdout.strip()

    def parent(self, pid: int) -> int:
        """The parent of a process of the world, 0 when it is gone."""
        return int(self.sh(f"sed 's/.*) //' /proc/{pid}/stat | cut -d' ' -f2") or 0)

    def lives(self, pid: int) -> bool:
        """Whether a process of the world lives."""
        return self.sh(f"sed 's/.*) //' /proc/{pid}/stat | cut -c1") not in ("", "Z")

    def listens(self, port: int = PORT) -> bool:
        """Whether somebody listens on a port of the world."""
        return f":{port:04X} " in self.sh("awk '$4 == \"0A\" {print $2, $4}' /proc/net/tcp")

    def code(self, code: str, request: object) -> dict[str, Any]:
        """The answer of Python code in the world that prints JSON; REQUEST is its stdin."""
        done = subprocess.run(
            self.enter([sys.executable, "-c", code]), input=json.dumps(request), text=True,
            env={**self.environ(), "PYTHONPATH": str(STAND_IN.parents[2])}, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def gpu(self, used_mib: int, *pids: int) -> None:
        """Put the stand-in for nvidia-smi on PATH: one GPU, these processes on it."""
        self.double("nvidia-smi", NVIDIA_SMI)
        free = 143771 - used_mib
        row = f"0, GPU-1, NVIDIA H200, 580.95.05, 143771, {used_mib}, {free}, 9.0, 0000:00:06.0\n"
        (self.bin / "gpus").write_text(row)
        rows = [f"GPU-1, {pid}, python3, 15000\n" for pid in pids]
        (self.bin / "apps").write_text("".join(rows))


def pids(rows: list[dict[str, Any]]) -> list[int]:
    """The pids of ended or spared rows."""
    return [row["pid"] for row in rows]


def reap_request(**more: object) -> dict[str, object]:
    """A reap of port 29501 as a step of change-1, without holding the unit."""
    return {"change": change(), "ports": [PORT], "term_s": 3, "settle_s": 3, "hold": False, **more}
