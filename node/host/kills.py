"""What was killed because memory ran out, by whom and why, as the journal tells it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run
from node.rules.secret import masked_line

TIMEOUT_S = 8.0
SINCE = "-7days"
MOST = 20
_LOOKED_AT = "400"
# mm/oom_kill.c writes it as an error; kernels before 4.20 say "Kill process … score"
_KERNEL = re.compile(
    r"^(?P<why>(?:Memory cgroup o|O)ut of memory(?: \(\w+\))?): Kill(?:ed)? process (?P<pid>\d+)"
    r" \((?P<name>[^)]*)\)(?P<rest>.*)"
)
# earlyoom 1.3 to 1.8 (rfjakob/earlyoom, issues 121, 131, 205, 261)
_EARLYOOM = re.compile(
    r"^(?:sending (?P<signal>SIG\w+) to process|killing process) (?P<pid>\d+)"
    r'(?: uid \d+)? "(?P<name>[^"]*)"(?P<rest>.*)'
)
_LOW = re.compile(r"^(?:low memory!|mem avail:)")
# systemd-oomd kills a unit's whole cgroup
_OOMD = re.compile(r"^Killed (?P<name>/\S+) due to (?P<why>.*)")


def _row(entry: Json, by: str, found: re.Match[str], why: str) -> Json:
    groups = found.groupdict()
    return {
        "unix_s": int(entry["__REALTIME_TIMESTAMP"]) / 1e6,
        "by": by,
        "process": masked_line(groups["name"]),
        "pid": int(groups["pid"]) if groups.get("pid") else None,
        "why": masked_line(why)[:300],
    }


def parse(entries: Iterable[Json]) -> list[Json]:
    """Gives the kills of the journal's entries, oldest first; what tells of none is passed over."""
    rows: list[Json] = []
    low = ""
    for entry in entries:
        text, by = entry.get("MESSAGE"), entry.get("SYSLOG_IDENTIFIER")
        if not isinstance(text, str):
            continue
        if by == "kernel" and (found := _KERNEL.match(text)):
            rows.append(_row(entry, by, found, f"{found['why']};{found['rest']}"))
        elif by == "earlyoom" and (found := _EARLYOOM.match(text)):
            rows.append(_row(entry, by, found, low or text))
        elif by == "systemd-oomd" and (found := _OOMD.match(text)):
            rows.append(_row(entry, by, found, found["why"]))
        # its own line above each kill has the numbers
        if by == "earlyoom" and _LOW.match(text):
            low = f"{low}; {text}" if low.startswith("mem avail") else text
    return rows


def _entries(*words: str) -> list[Json]:
    fields = "--output-fields=MESSAGE,SYSLOG_IDENTIFIER"
    argv = ["journalctl", "-q", "-r", "--no-pager", "-o", "json", fields, "--since", SINCE,
            "-n", _LOOKED_AT, *words]  # fmt: skip
    try:
        done = run(argv, TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"journalctl: {error}") from None
    if done.rc != 0:
        raise CannotRead(f"journalctl: {done.last_line()}")
    return _parsed(done.out.splitlines()[::-1])


def _parsed(lines: Sequence[str]) -> list[Json]:
    rows: list[Json] = []
    for line in lines:
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and str(row.get("__REALTIME_TIMESTAMP", "")).isdigit():
            rows.append(row)
    return rows


def read() -> list[Json]:
    """Gives the kills of the last seven days, oldest first, the last ones. Raises CannotRead."""
    kernel = _entries("_TRANSPORT=kernel", "PRIORITY=3", "SYSLOG_IDENTIFIER=kernel")
    others = _entries("SYSLOG_IDENTIFIER=earlyoom", "SYSLOG_IDENTIFIER=systemd-oomd")
    return sorted(parse(kernel) + parse(others), key=lambda row: row["unix_s"])[-MOST:]
