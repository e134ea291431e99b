"""The rehearsal hosts as the tests drive them: an operator's pyinfra, and a person at a console."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import core, host
from lab.host import Hosts

ROOT = Path(__file__).resolve().parents[2]
PYINFRA = Path(sys.executable).parent / "pyinfra"


@dataclass(frozen=True)
class Done:
    """A finished command: exit status, everything it printed, seconds."""

    rc: int
    text: str
    seconds: float

    def counts(self, operation: str) -> tuple[str, ...]:
        """pyinfra's result row of an operation: hosts, success, error, no change (`-` is none)."""
        for line in reversed(self.text.splitlines()):
            if line.strip().startswith(operation):
                return tuple(line.split()[-4:])
        raise AssertionError(f"no row {operation!r} in:\n{self.text}")


class Lab(Hosts):
    """Rehearsal hosts, as an operator and as a person at their console: those of RIGBOOK_LAB."""

    def __init__(self) -> None:
        super().__init__(core.load_settings())

    def pyinfra(self, deploy: str, *arguments: str, yes: bool = True, inventory: str = "") -> Done:
        """Runs a deploy of the project against the lab."""
        words = [str(PYINFRA), inventory or "inventory/lab.py", f"deploys/{deploy}.py", *arguments]
        return self.run(*words, *(["-y"] if yes else []))

    def run(self, *words: str) -> Done:
        """Runs a command in the project's root, stdin closed, output kept and shown."""
        started = time.monotonic()
        done = subprocess.run(
            words,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        took = time.monotonic() - started
        print(f"$ {' '.join(words[1:])}\n{done.stdout}\n(rc {done.returncode}, {took:.1f} s)")
        return Done(done.returncode, done.stdout, took)

    def verb(self, *words: str) -> Done:
        """Runs a verb of the lab (`stop test2`, `reboot test1` …)."""
        if words[0] in ("reboot", "stop"):
            self.hang_up(words[1])
        return self.run(sys.executable, "-m", "lab", *words)

    def hang_up(self, host: str) -> None:
        """Ends the shared connection, before its other end is gone: the next would wait for it."""
        end = self.shared(host, "-Oexit")
        subprocess.run(end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def snapshots(self, *options: str) -> dict[str, dict[str, Any]]:
        """Both hosts' snapshots, without what moves by itself on a host that nobody touches."""
        words = ("--json", *options, "inventory/lab.py", "fact", "facts.node.Snapshot")
        text = self.run(str(PYINFRA), *words).text
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
        hosts: dict[str, dict[str, Any]] = next(iter(document.values()))
        for snapshot in hosts.values():
            for key in ("took_s", "memory", "disks", "gpus"):
                snapshot.pop(key)
            for key in ("uptime_s", "clock_unix_s"):
                snapshot["identity"].pop(key)
            for key in ("counters", "stuck"):
                snapshot["health"].pop(key)
            for process in snapshot["engine_processes"]:
                process.pop("rss")
            for unit in snapshot["units"]:
                unit.pop("last_log_line")
        return hosts

    def starts(self) -> dict[str, str]:
        """What tells one start of the engines from another: each unit's invocation id."""
        return {name: self.unit(name, "InvocationID")[0] for name in self.hosts}


@contextmanager
def rehearsal(*options: str, verb: str = "up", place: core.Place = core.TESTS) -> Iterator[Lab]:
    """The lab of `place`, up by `python -m lab VERB` with these options; away again if it was made.

    The tests' own stands beside the user's lab and never touches it. RIGBOOK_KEEP_LAB=1 keeps it,
    for the next run of the tests; `make lab-down` takes it away then, as after tests that were
    killed.
    """
    former = os.environ.get("RIGBOOK_LAB")
    os.environ["RIGBOOK_LAB"] = place.name
    try:
        lab = core.load_settings()
        kept = lab.state_file.exists() and not lab.owner_file.exists()
        killed = lab.owner_file.exists()
        host.take_state(lab)
        if killed:
            # with an engine that runs, a disk that is full, a link that is down
            subprocess.run([sys.executable, "-m", "lab", "down"], cwd=ROOT, check=True)
            host.take_state(lab)
        made = subprocess.run([sys.executable, "-m", "lab", verb, *options], cwd=ROOT, check=False)
        assert made.returncode == 0, "the lab did not come up; its lines are above"
        try:
            yield Lab()
        finally:
            if kept or os.environ.get("RIGBOOK_KEEP_LAB"):
                lab.owner_file.unlink(missing_ok=True)
            else:
                subprocess.run([sys.executable, "-m", "lab", "down"], cwd=ROOT, check=True)
    finally:
        os.environ.pop("RIGBOOK_LAB")
        if former is not None:
            os.environ["RIGBOOK_LAB"] = former
