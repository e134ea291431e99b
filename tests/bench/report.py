"""The figures as a table with targets, and docs/benchmarks.md."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

MB = 10**6
# The range of five holds the true median with 94 %, whatever the distribution.
ROUNDS = 5
SPREAD = """\
Each figure is the median of the rounds, with the lowest and the highest: the range of five holds
the true median with 94 %. A ratio is taken in each round, of two figures that were measured one
after the other."""


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
    floor = [
        sum(parts)
        for parts in zip(figures.cli_start, figures.connect, figures.snapshot, strict=True)
    ]
    answered = [sum(parts) for parts in zip(floor, figures.completion, strict=True)]
    faster, tuned = (ratios(each, figures.serve) for each in (figures.ansible, figures.tuned))
    whole = ratios(figures.serve, answered)
    commands = max(figures.commands)
    overhead = [a - b for a, b in zip(figures.restart, figures.by_hand, strict=True)]
    seconds, size = median(figures.host_seconds), max(figures.host_bytes) / MB
    return [
        Row("serve that changes nothing, wall", in_seconds(figures.serve)),
        Row("serve: remote commands a host", str(commands), "≤ 3", commands <= 3),
        Row("Ansible, the same twenty checks, wall", in_seconds(figures.ansible)),
        Row("serve against Ansible", in_times(faster, "faster"), "≥ 10 in each round",
            min(faster) >= 10),
        Row("Ansible without fact gathering, wall", in_seconds(figures.tuned)),
        Row("serve against that", in_times(tuned, "faster")),
        Row("pyinfra's CLI start (A)", in_seconds(figures.cli_start)),
        Row("a new ssh connection to each host (B)", in_seconds(figures.connect)),
        Row("one snapshot of each host, connection open (C)", in_seconds(figures.snapshot)),
        Row("serve against A + B + C", in_times(ratios(figures.serve, floor))),
        Row("serve against its floor, A + B + C + the completion", in_times(whole), "≤ 1.2",
            median(whole) <= 1.2),
        Row("one script with the checks over ssh, wall", in_seconds(figures.script)),
        Row("the completion alone (in serve, Ansible and script)", in_seconds(figures.completion)),
        Row("node snapshot on a host, wall", in_seconds(figures.host_seconds),
            "≤ 0.5 s", seconds <= 0.5),
        Row("node snapshot on a host, largest process", f"{size:.0f} MB", "≤ 60 MB", size <= 60),
        Row("doctor on a rig that serves, wall", in_seconds(figures.doctor),
            "≤ 1.5 s", median(figures.doctor) <= 1.5),
        Row("restart, until a real answer, wall", in_seconds(figures.restart)),
        Row("the same by hand: systemctl stop and start, until an answer",
            in_seconds(figures.by_hand)),
        Row("restart's own part", in_seconds(overhead), "≤ 6 s", median(overhead) <= 6),
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
{SPREAD}

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
- What binds serve is what it cannot do without: A, B, C and the completion. Where they took 1.25 s
  and Ansible 9.25 (2026-11-26), no more than 7.4 times was to be had.
- A is `pyinfra INVENTORY debug-inventory`. B and C ask both hosts at the same time, as serve does.
- The script is one `sh` a host with the same checks, over new connections, both hosts at once.
- node snapshot on a host: the worst host, as root there, with what serve asks for; the largest of
  its processes by getrusage.
- restart against by hand: both end with the first completion; the engine's own stop (its container
  gets 10 s and more) and start are in both.
- What binds the doctor: of 1.9 s, timed step by step on 2026-11-26 with the engine running, 0.43 s
  are the start of the command line, 0.55 s the imports while ssh connects, 0.8 s the hosts'
  answers, 0.15 s the rest. On one host alone the six reports take 0.45 s, 0.11 s of it to compile
  the program that is sent; here two hosts and the engine share two cores.
- What binds restart's own part: of a run of 54.7 s, timed by its lines on the same day, 1.9 s
  passed before the stop; orphans, /dev/shm and the page cache took 0.9 s; between the first answer
  and COMMITTED lay 3.1 s: the unit's own completion, the operator's next look at it, a second
  completion, and the commit on both nodes.
- That nothing was changed is checked: containers, files and journal are compared before and after.
"""


def in_seconds(values: Sequence[float]) -> str:
    """The median in seconds, with the lowest and the highest of the rounds."""
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One by the other, a value a round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def in_times(values: Sequence[float], word: str = "") -> str:
    """The median of ratios, with the lowest and the highest of the rounds."""
    middle = f"{median(values):.2f} times {word}".strip()
    return f"{middle} ({min(values):.2f} to {max(values):.2f})"


def in_rate(values: Sequence[float]) -> str:
    """The median of bytes a second as MB/s, with the lowest and the highest of the rounds."""
    low, middle, high = (each / MB for each in (min(values), median(values), max(values)))
    return f"{middle:.0f} MB/s ({low:.0f} to {high:.0f})"


def in_share(values: Sequence[float]) -> str:
    """The median of shares in percent, with the lowest and the highest of the rounds."""
    low, middle, high = (100 * each for each in (min(values), median(values), max(values)))
    return f"{middle:.0f} % ({low:.0f} to {high:.0f})"
