"""What systemd and a unit in trouble logged: restarts of its own, and lines that name an error."""

from __future__ import annotations

import json
import re

from node.core.run import TimedOut, run
from node.rules import root_cause
from node.rules.secret import masked_line

TIMEOUT_S = 4.0
# systemd's catalog: "Scheduled restart job"
_RESTART_ID = "5eb03494b6584870a536b337290809b3"
MAX_RESTARTS = 20
MAX_ERRORS = 8
_LOOKED_AT = "400"
_ERROR = re.compile(
    r"error|exception|not found|no such file|is a directory|permission denied|traceback"
    r"|out of memory|oom|less than desired|address already in use|killed|cannot|failed",
    re.IGNORECASE,
)
# the launcher's and systemd's own words about a dead child name no cause; the last three stand in
# the log of each start that works (pytorch#159007, vllm's get_ip and set_ulimit)
_NOISE = re.compile(
    r"^\S*File \"|resource_tracker|Main process exited|Failed with result|^\s*\^"
    r"|hostname of the client socket cannot be retrieved|Failed to get the IP address"
    r"|Found ulimit of \d+ and failed to automatically increase"
)


def _journal(*words: str) -> list[str]:
    """Gives the lines of one journalctl call, oldest first; none when it fails. Raises TimedOut.

    Asked for newest first: with --since and -n, systemd 252 gives the OLDEST lines otherwise.
    """
    try:
        done = run(["journalctl", "-q", "-r", "--no-pager", *words], TIMEOUT_S)
    except FileNotFoundError:
        return []
    return done.out.splitlines()[::-1] if done.rc == 0 else []


def between(unit: str, since: int, until: int) -> list[str]:
    """Gives what the unit's processes logged between two Unix times, oldest first; none when that
    takes too long.
    """
    match = "_SYSTEMD_UNIT=" + unit
    try:
        return _journal(match, "-o", "cat", "--since", f"@{since}", "--until", f"@{until}")
    except TimedOut:
        return []


def last_line(unit: str) -> str | None:
    """Gives the last line the unit's own processes logged, else systemd's last about it."""
    for match in (["_SYSTEMD_UNIT=" + unit], ["-u", unit]):
        lines = [line for line in _journal(*match, "-n", "1", "-o", "cat") if line.strip()]
        if lines:
            return masked_line(lines[-1].strip())[:500]
    return None


def restarts(unit: str) -> list[float]:
    """Gives when systemd restarted the unit by itself in the last day, oldest first, Unix time."""
    found: list[float] = []
    lines = _journal(
        "UNIT=" + unit, "MESSAGE_ID=" + _RESTART_ID, "--since", "-1day",
        "-n", str(MAX_RESTARTS), "-o", "json", "--output-fields=N_RESTARTS",
    )  # fmt: skip
    for line in lines:
        try:
            found.append(int(json.loads(line)["__REALTIME_TIMESTAMP"]) / 1e6)
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(found)


def error_lines(lines: list[str]) -> list[str]:
    """Gives the last distinct lines that name an error, masked, each cut to 300 characters."""
    kept: list[str] = []
    for line in reversed(lines):
        text = masked_line(line.strip())[:300]
        if _ERROR.search(text) and not _NOISE.search(text) and text not in kept:
            kept.append(text)
        if len(kept) == MAX_ERRORS:
            break
    return kept[::-1]


def with_root_cause(lines: list[str]) -> list[str]:
    """Gives the lines that name an error, the root cause of the last start that has one first."""
    errors, cause = error_lines(lines), None
    for at in range(len(lines) - 1, -1, -1):
        # a start begins with the line of vLLM's version; systemd's own line where it has none
        if at == 0 or "vLLM API server version" in lines[at] or lines[at].startswith("Starting "):
            cause = root_cause.find(lines[at:])
            if cause:
                break
    return [masked_line(cause.line())[:400], *errors] if cause else errors


def trouble(unit: str) -> tuple[str | None, list[float], list[str]]:
    """Gives a unit's last log line (or that it was not read), its restarts and its errors."""
    try:
        lines = _journal("-u", unit, "-n", _LOOKED_AT, "-o", "cat", "--since", "-1day")
        return last_line(unit), restarts(unit), with_root_cause(lines)
    except TimedOut as error:
        return f"its log was not read: {error}", [], []
