"""`python -m tests.bench rollback`: the incident command on the lab's tower, with the real vLLM.

From the command to the start of the former engine's process, as systemd has it: both are read off
this machine's monotonic clock, which its nspawn hosts share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.core import load_settings
from tests.bench.rig import SPREAD, Part, Row, in_seconds, in_times, machine, ratios, table, today
from tests.system.rehearsal import Done
from tests.system.venv.steps import INVENTORY, VENV, Tower, wait_until

BROKEN = "0.33.0"
UP = "python -m lab up --tower && pyinfra inventory/labtower.py deploys/serve.py -y"
MAX_KEPT_S, MAX_RESTORE = 5.0, 1.3
PLAIN = """\
set -e; rm -rf /opt/engine/.bench; mkdir /opt/engine/.bench; sync
p=/var/lib/rigbook/backups/$1/payload.tar.zst
cat $p > /dev/null; s=$(date +%s.%N)
zstd -q -dc $p | tar -xf - -C /opt/engine/.bench; sync -f /opt/engine/.bench
e=$(date +%s.%N); rm -rf /opt/engine/.bench; echo $s $e
"""


@dataclass
class Figures:
    """Seconds, one entry a round."""

    kept: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)


def measured(tower: Tower, rounds: int) -> Figures:
    """All figures; the tower serves at the end. RuntimeError when a run did not work."""
    figures = Figures()
    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}", flush=True)
        tower.killed_operator("upgrade", "--data", f"version={BROKEN}")
        seconds, done = _until_started(tower, lambda: tower.deploy("rollback"))
        figures.kept.append(seconds)
        figures.answered.append(done.seconds)
        row = _last_backup(tower)
        figures.plain.append(_plain(tower, row))
        tower.on(f"sudo rm {VENV}/bin/vllm")
        again = _until_started(tower, lambda: tower.deploy("rollback", "--data", "backup=last"))
        figures.restored.append(again[0])
        tower.deploy("backup", "--data", "prune=true", "--data", "displaced=true")
        # what was restored is another tree: the next upgrade's backup is no part of its rollback
        _ok(tower.deploy("backup"))
    return figures


def _until_started(tower: Tower, command: Callable[[], Done]) -> tuple[float, Done]:
    """Seconds from the command to the last start of the engine's main process, and the run."""
    began = time.monotonic()
    done = _ok(command())
    wait_until("a real completion", 300, tower.answers)
    stamp = tower.started_at()
    if stamp < began:
        raise RuntimeError(f"no process was started by it: {done.text[-500:]}")
    return stamp - began, done


def _ok(done: Done) -> Done:
    if done.rc != 0:
        raise RuntimeError(done.text[-1500:])
    return done


def _last_backup(tower: Tower) -> str:
    listed = json.loads(tower.on("sudo rignode tree list"))
    return str(next(row["id"] for row in listed["backups"] if row["verified_unix_s"]))


def _plain(tower: Tower, backup: str) -> float:
    """Seconds of zstd -d into tar x on the host, flushed, with the payload in the page cache."""
    text = tower.ssh(tower.name, f"sudo bash -s {backup}", stdin=PLAIN)
    began, ended = (float(word) for word in text.split()[-2:])
    return ended - began


def part(rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when not measured."""
    if not any(host.is_tower for host in load_settings().hosts()):
        raise RuntimeError(f"there is no tower in the lab; first: {UP}")
    where = machine()
    try:
        figures = measured(Tower(), rounds)
    except (AssertionError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"{error}; bring it up first: {UP}") from None
    listed = rows(figures)
    text = f"""Measured {today()} on {where}: the lab's tower (one nspawn
host, vLLM for CPUs in a venv). {rounds} rounds. Run again on a tower that serves:
`python -m tests.bench rollback`.

{table(listed)}
{SPREAD}

- kept: an upgrade to a version that cannot start, its operator killed -9 once the engine was
  started; then `pyinfra {INVENTORY} deploys/rollback.py -y`. The former venv lies beside.
- restored: `bin/vllm` is deleted, then `… --data backup=last`. plain: `zstd -dc | tar -xf -` of
  the same payload on the same host, flushed, by itself.
- The start of the process is systemd's `ExecMainStartTimestamp`; the engine's load comes after it.
- What binds a rollback from a backup is to unpack and to prove it: 18 to 36 s in the five rounds
  of 2026-11-26, about half of it to read every file back, as in a restore; plain extraction took 6
  to 26 s on that disk. The engine, as far as it runs, is stopped only afterwards.
"""
    return Part("Rollback", text, listed)


def rows(figures: Figures) -> list[Row]:
    """The table."""
    kept = statistics.median(figures.kept)
    times = ratios(figures.restored, figures.plain)
    return [
        Row("rollback, former venv kept: command to the engine's process started",
            in_seconds(figures.kept), "≤ 5 s", kept <= MAX_KEPT_S),
        Row("the same until it answers and its speed is compared", in_seconds(figures.answered)),
        Row("plain zstd -d into tar x on the host, flushed", in_seconds(figures.plain)),
        Row("rollback from a backup: command to the engine's process started",
            in_seconds(figures.restored)),
        Row("that against plain extraction", in_times(times), f"≤ {MAX_RESTORE}",
            statistics.median(times) <= MAX_RESTORE),
    ]  # fmt: skip
