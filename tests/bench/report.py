"""The figures as a table with targets, and docs/benchmarks.md."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

MB = 10**6
# restarts take minutes; their rounds are fewer
RESTARTS = 2


@dataclass
class Figures:
    """What the rounds measured: seconds, commands a node and bytes, one entry a round."""

    serve: list[float] = field(default_factory=list)
    commands: list[int] = field(default_factory=list)
    ansible: list[float] = field(default_factory=list)
    tuned: list[float] = field(default_factory=list)
    cli_start: list[float] = field(default_factory=list)
    connect: list[float] = field(default_factory=list)
    snapshot: list[float] = field(default_factory=list)
    script: list[float] = field(default_factory=list)
    completion: list[float] = field(default_factory=list)
    host_seconds: list[float] = field(default_factory=list)
    host_bytes: list[int] = field(default_factory=list)
    doctor: list[float] = field(default_factory=list)
    restart: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A line of the table; `met` None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def rows(figures: Figures) -> list[Row]:
    """The table: medians of the rounds; the commands a node are the most of any round."""
    serve, ansible = median(figures.serve), median(figures.ansible)
    parts = [median(figures.cli_start), median(figures.connect), median(figures.snapshot)]
    whole = serve / (sum(parts) + median(figures.completion))
    commands = max(figures.commands)
    faster, times = ansible / serve, serve / sum(parts)
    overhead = median(figures.restart) - median(figures.by_hand)
    seconds, size = median(figures.host_seconds), max(figures.host_bytes) / MB
    return [
        Row("serve that changes nothing, wall", in_seconds(figures.serve)),
        Row("serve: remote commands a host", str(commands), "≤ 3", commands <= 3),
        Row("Ansible, the same twenty checks, wall", in_seconds(figures.ansible)),
        Row("serve against Ansible", f"{faster:.1f} times faster", "≥ 8", faster >= 8),
        Row("Ansible without fact gathering, wall", in_seconds(figures.tuned)),
        Row("serve against that", f"{median(figures.tuned) / serve:.1f} times faster"),
        Row("pyinfra's CLI start (A)", in_seconds(figures.cli_start)),
        Row("a new ssh connection to each host (B)", in_seconds(figures.connect)),
        Row("one snapshot of each host, connection open (C)", in_seconds(figures.snapshot)),
        Row("serve against A + B + C", f"{times:.2f} times", "≤ 1.3", times <= 1.3),
        Row("serve against A + B + C + the completion", f"{whole:.2f} times"),
        Row("one script with the checks over ssh, wall", in_seconds(figures.script)),
        Row("the completion alone (in serve, Ansible and script)", in_seconds(figures.completion)),
        Row("node snapshot on a host, wall", in_seconds(figures.host_seconds),
            "≤ 0.5 s", seconds <= 0.5),
        Row("node snapshot on a host, largest process", f"{size:.0f} MB", "≤ 60 MB", size <= 60),
        Row("doctor on a rig that serves, wall", in_seconds(figures.doctor),
            "≤ 3 s", median(figures.doctor) <= 3),
        Row("restart, until a real answer, wall", in_seconds(figures.restart)),
        Row("the same by hand: systemctl stop and start, until an answer",
            in_seconds(figures.by_hand)),
        Row("restart's own part", f"{overhead:.1f} s", "≤ 10 s", overhead <= 10),
    ]  # fmt: skip


def table(listed: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| what | median (min to max) | target | |", "|---|---|---|---|"]
    for row in listed:
        met = "" if row.met is None else "met" if row.met else "NOT MET"
        lines.append(f"| {row.what} | {row.measured} | {row.target} | {met} |")
    return "\n".join(lines) + "\n"


def document(listed: Sequence[Row], rounds: int, versions: str, machine: str) -> str:
    """The section about a rig that is as it should be."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"""Measured {day} on {machine}, serving the `tiny` recipe
({versions}). {rounds} rounds; every measurement once a round, one after the other. Run again on a
lab that serves: `python -m tests.bench rig`.

{table(listed)}
The hosts share their cores with the operator's side, so both hosts' work and the command line
compete; on a real rig B and C do not cost the operator's processor.

- serve: `pyinfra INVENTORY deploys/serve.py -y` on a rig that already is as the recipe says. Each
  ssh channel that runs a command or opens SFTP is counted (tests/bench/count_execs.py). The run
  ends with a real chat completion, which A + B + C does not hold. Python may keep the bytecode of
  what is imported, as it does by default; PYTHONDONTWRITEBYTECODE costs 0.1 s more.
- Ansible: the same twenty checks as idiomatic tasks (tests/bench/checks.py), pipelining on, five
  forks, ControlPersist on, connections cold at the start as for the others. Every task must end ok
  and unchanged. Once as a play is by default, and once without fact gathering and with the
  interpreter named, since no check needs either.
- A is `pyinfra INVENTORY debug-inventory`. B and C ask both hosts at the same time, as serve does.
- The script is one `sh` a host with the same checks, over new connections, both hosts at once.
- node snapshot on a host: the worst host, as root there, with what serve asks for; the largest of
  its processes by getrusage.
- restart against by hand: both end with the first completion; the engine's own stop (its container
  gets 10 s and more) and start are in both. {RESTARTS} rounds.
- That nothing was changed is checked: containers, files and journal are compared before and after.
"""


def in_seconds(values: Sequence[float]) -> str:
    """The median in seconds, with the lowest and the highest of the rounds."""
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def mb_a_second(value: float) -> str:
    """Bytes a second as MB/s."""
    return f"{value / 1e6:.0f} MB/s"
