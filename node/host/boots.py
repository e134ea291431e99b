"""The host's boots: when each began and ended, whether its end was asked for, its last words."""

from __future__ import annotations

import calendar
import glob
import json
import os
import re
import time
from collections.abc import Sequence

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.core.run import TimedOut, run
from node.rules.secret import masked_line

LIST_S = 10.0
TAIL_S = 5.0
# the boots before this one that are looked at
MOST = 6
TAIL = 12
# a panic's own line stands above its registers and its trace
PSTORE_TAIL = 60
# a shutdown that was asked for writes more than its last lines
_LOOKED_AT = "120"
_ENDS = {
    f"{name}.target" for name in ("reboot", "poweroff", "halt", "kexec", "shutdown", "soft-reboot")
}
_ASKED = re.compile(r"^(?:The )?[Ss]ystem (?:is|will) (?:reboot|power|halt)", re.IGNORECASE)
_ROW = re.compile(r"^\s*(-?\d+)\s+([0-9a-f]{32})\s")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")
PSTORE = ("/var/lib/systemd/pstore", "/sys/fs/pstore")
# what is archived at the next boot is written within its first minutes
_ARCHIVED_S = 900.0


def _asked(argv: Sequence[str], limit_s: float) -> str:
    try:
        done = run(["journalctl", "-q", "--no-pager", *argv], limit_s)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"journalctl: {error}") from None
    if done.rc != 0:
        raise CannotRead(f"journalctl {' '.join(argv)}: {done.last_line()}")
    return done.out


def listed(text: str) -> list[Json]:
    """Gives the rows of `journalctl --utc --list-boots`, oldest first; the text of 249 to 257.

    Later versions put a head above the rows and write another dash between the two times.
    """
    rows: list[Json] = []
    for line in text.splitlines():
        found, times = _ROW.match(line), _TIME.findall(line)
        if found and len(times) == 2:
            first, last = (calendar.timegm(time.strptime(t, "%Y-%m-%d %H:%M:%S")) for t in times)
            rows.append({"boot_id": found[2], "first_unix_s": first, "last_unix_s": last})
    return rows


def lines_of(text: str) -> list[Json]:
    """Gives the entries of journalctl's JSON; one that is none is passed over."""
    rows: list[Json] = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("MESSAGE"), str):
            rows.append(row)
    return rows


def was_asked_for(rows: Sequence[Json]) -> bool:
    """Gives whether these last entries tell of a shutdown: systemd's targets, logind, PID 1."""
    for row in rows:
        by, text = row.get("SYSLOG_IDENTIFIER"), row["MESSAGE"]
        if by == "systemd" and (row.get("UNIT") in _ENDS or text == "Shutting down."):
            return True
        if by == "systemd-logind" and _ASKED.match(text):
            return True
    return False


def _end_of(boot: Json) -> Json:
    """Gives a former boot with its end."""
    fields = "--output-fields=MESSAGE,SYSLOG_IDENTIFIER,UNIT"
    text = _asked(["-b", boot["boot_id"], "-n", _LOOKED_AT, "-o", "json", fields], TAIL_S)
    rows = lines_of(text)
    tail = [f"{row.get('SYSLOG_IDENTIFIER', '?')}: {row['MESSAGE']}" for row in rows[-TAIL:]]
    words = [masked_line(line)[:300] for line in tail]
    return {**boot, "asked_for": was_asked_for(rows), "tail": words}


def pstore(since: float, until: float, folders: Sequence[str] = PSTORE) -> list[str]:
    """Gives the end of what the kernel kept of a crash and was found between two Unix times."""
    found: list[tuple[float, str]] = []
    for folder in folders:
        for path in glob.glob(f"{folder}/**/dmesg*", recursive=True):
            try:
                when = os.stat(path).st_mtime
            except OSError:
                continue
            if since <= when <= until:
                found.append((when, path))
    if not found:
        return []
    text = proc.read_text(sorted(found)[-1][1])
    lines = [masked_line(line.strip())[:300] for line in text.splitlines() if line.strip()]
    return lines[-PSTORE_TAIL:]


def read() -> list[Json]:
    """Gives the last boots, oldest first; this one's end is not known. Raises CannotRead."""
    rows = listed(_asked(["--utc", "--list-boots"], LIST_S))
    now = proc.boot_id().replace("-", "")
    before = [row for row in rows if row["boot_id"] != now][-MOST:]
    here = [row for row in rows if row["boot_id"] == now]
    ends = each(_end_of, before, MOST)
    for end, following in zip(ends, [*before[1:], *here], strict=False):
        until = following["first_unix_s"] + _ARCHIVED_S
        end["pstore"] = pstore(end["last_unix_s"] - 60, until)
    return [*ends, *({**row, "asked_for": None, "tail": [], "pstore": []} for row in here)]
