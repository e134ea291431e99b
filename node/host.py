"""Boots, OOM kills, watchdogs and settings."""

from __future__ import annotations

import calendar
import glob
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from node import gpus, machine
from node.core import proc, validate
from node.core.errors import CannotRead, Json, io_reason
from node.core.run import TimedOut, each, run, which
from node.rules.secret import masked_line

# A host that keeps itself alive: its settings, its boots and what memory killed.

# The host's boots: when each began and ended, whether its end was asked for, its last words.

LIST_S = 10.0
TAIL_S = 5.0
# the boots before this one that are looked at
MOST_BOOTS = 6
BOOT_TAIL = 12
# a panic's own line stands above its registers and its trace
PSTORE_TAIL = 60
# a shutdown that was asked for writes more than its last lines
_BOOTS_LOOKED_AT = "120"
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


def listed_boots(text: str) -> list[Json]:
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
    text = _asked(["-b", boot["boot_id"], "-n", _BOOTS_LOOKED_AT, "-o", "json", fields], TAIL_S)
    rows = lines_of(text)
    tail = [f"{row.get('SYSLOG_IDENTIFIER', '?')}: {row['MESSAGE']}" for row in rows[-BOOT_TAIL:]]
    words = [masked_line(line)[:300] for line in tail]
    return {**boot, "asked_for": was_asked_for(rows), "tail": words}


def read_pstore(since: float, until: float, folders: Sequence[str] = PSTORE) -> list[str]:
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


def read_boots() -> list[Json]:
    """Gives the last boots, oldest first; this one's end is not known. Raises CannotRead."""
    rows = listed_boots(_asked(["--utc", "--list-boots"], LIST_S))
    now = proc.boot_id().replace("-", "")
    before = [row for row in rows if row["boot_id"] != now][-MOST_BOOTS:]
    here = [row for row in rows if row["boot_id"] == now]
    ends = each(_end_of, before, MOST_BOOTS)
    for end, following in zip(ends, [*before[1:], *here], strict=False):
        until = following["first_unix_s"] + _ARCHIVED_S
        end["pstore"] = read_pstore(end["last_unix_s"] - 60, until)
    return [*ends, *({**row, "asked_for": None, "tail": [], "pstore": []} for row in here)]


# What was killed because memory ran out, by whom and why, as the journal tells it.

KILLS_TIMEOUT_S = 8.0
SINCE = "-7days"
MOST_KILLS = 20
_KILLS_LOOKED_AT = "400"
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


def parse_kills(entries: Iterable[Json]) -> list[Json]:
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
            "-n", _KILLS_LOOKED_AT, *words]  # fmt: skip
    try:
        done = run(argv, KILLS_TIMEOUT_S)
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


def read_kills() -> list[Json]:
    """Gives the kills of the last seven days, oldest first, the last ones. Raises CannotRead."""
    kernel = _entries("_TRANSPORT=kernel", "PRIORITY=3", "SYSLOG_IDENTIFIER=kernel")
    others = _entries("SYSLOG_IDENTIFIER=earlyoom", "SYSLOG_IDENTIFIER=systemd-oomd")
    return sorted(parse_kills(kernel) + parse_kills(others), key=lambda row: row["unix_s"])[
        -MOST_KILLS:
    ]


# How the host is set up against a hang and against memory that runs out; read-only.

SETTINGS_TIMEOUT_S = 5.0
WANTED = "/etc/rigbook/host.json"
# what deploys/host.py may set; a kernel without one of them does not have that panic
SYSCTLS = (
    "kernel.panic", "kernel.softlockup_panic", "kernel.hung_task_panic",
    "kernel.hung_task_timeout_secs", "vm.panic_on_oom",
)  # fmt: skip


def _line(path: str) -> str | None:
    """Gives a small file's text; None where there is none, or it says that it has nothing."""
    raw = proc.read_bytes(path)
    text = raw.decode("utf-8", "replace").strip() if raw else ""
    return None if text in ("", "(null)") else text


def watchdogs(root: str = "") -> list[Json]:
    """Gives the hardware watchdogs. `state` None: a kernel without CONFIG_WATCHDOG_SYSFS."""
    rows: list[Json] = []
    for folder in sorted(glob.glob(f"{root}/sys/class/watchdog/watchdog*")):
        seconds = _line(f"{folder}/timeout")
        rows.append({
            "name": os.path.basename(folder),
            "identity": _line(f"{folder}/identity"),
            "state": _line(f"{folder}/state"),
            "timeout_s": int(seconds) if seconds else None,
        })  # fmt: skip
    return rows


def runtime_watchdog_s() -> float:
    """Gives how long PID 1 may be silent, 0 for ever, as PID 1 itself says. Raises CannotRead."""
    path = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "RuntimeWatchdogUSec"]  # fmt: skip
    try:
        done = run(["busctl", "get-property", *path], SETTINGS_TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"busctl: {error}") from None
    kind, _, value = done.out.strip().partition(" ")
    if done.rc != 0 or kind != "t" or not value.isdigit():
        raise CannotRead(f"systemd does not say its RuntimeWatchdogUSec: {done.last_line()}")
    # all bits set stand for infinity
    return 0.0 if int(value) >= 1 << 63 else int(value) / 1e6


def journal_settings(root: str = "") -> Json:
    """Gives whether the journal outlives a boot, and its bytes on the disk."""
    machine = proc.read_text(f"{root}/etc/machine-id").strip()
    kept = f"{root}/var/log/journal/{machine}"
    files = [os.stat(path).st_size for path in glob.glob(f"{kept}/*.journal")]
    # journald writes to one of the two
    volatile = os.path.exists(f"{root}/run/log/journal/{machine}/system.journal")
    return {"persistent": bool(files) and not volatile, "bytes": sum(files)}


def guard() -> Json:
    """Gives the memory guard's program and the words that it runs with; None: it does not run."""
    words = next((proc.argv(pid) for pid in proc.pids() if _comm(pid) == "earlyoom"), None)
    return {"program": which("earlyoom"), "argv": None if words is None else list(words)}


def _comm(pid: int) -> str:
    return _line(f"/proc/{pid}/comm") or ""


def sshd_oom_score_adj() -> int | None:
    """Gives how far the listening sshd is from being killed; None where none listens by itself."""
    for pid in proc.pids():
        seen = proc.stat(pid)
        if seen is not None and seen.ppid == 1 and _comm(pid) == "sshd":
            text = _line(f"/proc/{pid}/oom_score_adj")
            return int(text) if text else None
    return None


def wanted_settings() -> Json | None:
    """Gives what deploys/host.py wrote down as wanted; None where it never ran here."""
    raw = proc.read_bytes(WANTED)
    if raw is None:
        if os.path.exists(WANTED):
            raise CannotRead(f"{WANTED} cannot be read")
        return None
    try:
        found: Any = json.loads(raw.decode("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CannotRead(f"{WANTED} is not JSON")
    return found


def read_settings() -> Json:
    """Gives the host's settings as they are. Raises CannotRead and OSError."""
    return {
        "virtual": machine.virtual(),
        "watchdogs": watchdogs(),
        "runtime_watchdog_s": runtime_watchdog_s(),
        "sysctls": gpus.memory_sysctls(SYSCTLS),
        "journal": journal_settings(),
        "pstore": _line("/sys/module/pstore/parameters/backend"),
        "guard": guard(),
        "sshd_oom_score_adj": sshd_oom_score_adj(),
        "wanted": wanted_settings(),
    }


# host: its settings against a hang, its boots, and what memory killed; read-only.
#
# Type: schema/host.py. A reading verb of its own: host.py and the doctor ask for it.

_SECTIONS = (("settings", read_settings), ("boots", read_boots), ("kills", read_kills))


def collect_host(request: Json) -> Json:
    """Gives the document of schema/host.py; a part that cannot be read says why."""
    began = time.monotonic()
    validate.keys(request, "request", ())

    def section(number: int) -> object:
        try:
            return _SECTIONS[number][1]()
        except CannotRead as error:
            return {"unreadable": str(error)}
        except OSError as error:
            return {"unreadable": io_reason(error)}

    found = each(section, range(len(_SECTIONS)), len(_SECTIONS))
    names = [name for name, _ in _SECTIONS]
    return {
        "format": 1,
        **dict(zip(names, found, strict=True)),
        "took_s": round(time.monotonic() - began, 3),
    }
