"""Lines of the kernel about hardware and about itself, of this boot and earlier.

This boot's come from /dev/kmsg, those that its ring has lost and earlier boots' from the journal, a
crash's last words from pstore. A container has no kernel log of its own: none there.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from typing import Any

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

KMSG = "/dev/kmsg"
PSTORES = ("/sys/fs/pstore", "/var/lib/systemd/pstore")
TIMEOUT_S = 3.0
# of one kind, device and number: a disk that fails all day must not hide the one line of a GPU
MAX_LINES = 40
MAX_KEPT = 2000
SINCE = "-30days"
_NOT_LOOKED = "not looked for the kernel's lines of earlier boots, and of this one's first hours"
# a kind, and the words of its lines; the first that fits. `at` is the device, `number` an Xid's.
_KINDS: tuple[tuple[str, str], ...] = (
    # older drivers leave out PCI:, and a slice of MIG stands behind the address
    ("xid", r"NVRM: Xid \((?:PCI:)?(?P<at>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d+)"),
    ("gpu-lost", r"NVRM: .*(?P<at>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\S*"
                 r".* (?:has fallen off|RmInitAdapter failed)"),
    ("panic", r"(?P<at>)Kernel panic - not syncing"),
    ("oops", r"(?P<at>)(?:BUG: unable to handle|BUG: kernel NULL pointer|Oops: |general protection "
             r"fault, probably|kernel BUG at )"),
    ("lockup", r"(?P<at>)(?:soft lockup - CPU|[Hh]ard LOCKUP|self-detected stall on CPU"
               r"|detected (?:expedited )?stalls on CPUs)"),
    ("hung", r"INFO: task (?P<at>.+?):\d+ (?:<.*> )?blocked (?:in I/O wait )?for more than"),
    # the second is ACPI's, on a machine whose firmware sees errors first: corrected ones are none
    ("mce", r"(?P<at>)(?:mce: \[Hardware Error\]: (?:CPU \d+: Machine Check|Machine check events)"
            r"|\[Hardware Error\]: event severity: (?:fatal|recoverable))"),
    ("edac", r"EDAC (?P<at>MC\d+): \d+ UE "),
    ("aer", r"(?P<at>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:AER: )?"
            r"(?:PCIe Bus Error: severity=(?:Uncorrect|Fatal)"
            r"|(?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"),
    ("nvme", r"nvme (?P<at>nvme\d+): (?:I/O (?:tag )?\d+.* timeout|controller is down|Device not "
             r"ready|Removing after probe failure|Disabling device after reset failure)"),
    # a disk that refuses to discard blocks, or to zero them, is well
    ("disk", r"(?:I/O error, dev |critical \w+ error, dev |Buffer I/O error on dev(?:ice)? )"
             r"(?P<at>[a-z]+\d*(?:n\d+)?)"
             r"(?!.* op 0x[0-9a-f]+:\((?:DISCARD|WRITE_ZEROES|SECURE_ERASE)\))"),
    ("filesystem", r"(?:EXT4-fs error \(device |(?:EXT4-fs|XFS|BTRFS \w+) \((?:device )?)"
                   r"(?P<at>[\w-]+)(?=.*(?:EXT4-fs error|Remounting filesystem read-only"
                   r"|has been shut down|forced readonly)|.*\): .*:\d+: )"),
    ("nic", r"mlx5_core (?P<at>[0-9a-fA-F:]+\.\d).*(?:health compromised|Health issue observed"
            r"|Cable error|health poll failed|firmware.*fatal|reported error syndrome)"),
)  # fmt: skip
# One of them stands in each such line: a full ring is read in a third of the time.
_WORDS = ("NVRM", "panic", "BUG", "Oops", "general protection", "ockup",
          "LOCKUP", "stall", "blocked ", "Hardware Error", "EDAC MC", "ncorrect", "=Fatal",
          "nvme nvme", "I/O error", "error, dev", "EXT4", "XFS", "BTRFS", "mlx5_core")  # fmt: skip
_PATTERNS = [(kind, re.compile(words)) for kind, words in _KINDS]
# The journal is asked for the same lines, without the names of the groups, which stand twice.
_ASKED = re.sub(r"\?P<\w+>", "", "|".join(words for _, words in _KINDS))


def classified(text: str, boot: str | None, at_unix_s: float | None) -> Json | None:
    """Gives a line's row, None for a line about nothing that is watched."""
    if not any(word in text for word in _WORDS):
        return None
    for kind, pattern in _PATTERNS:
        found = pattern.search(text)
        if found:
            number = found.groupdict().get("number")
            return {"kind": kind, "device": found["at"] or None, "text": text.strip()[:300],
                    "number": int(number) if number else None, "boot": boot,
                    "unix_s": at_unix_s}  # fmt: skip
    return None


def _records(path: str) -> list[str]:
    """Gives the records of /dev/kmsg as they lie in the kernel's ring, oldest first."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found: list[str] = []
    try:
        while True:
            try:
                raw = os.read(fd, 8192)
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # overwritten meanwhile: the next read gives the oldest that is left
            if not raw:
                return found
            found.append(raw.decode("utf-8", "replace"))
    finally:
        os.close(fd)


def parse_kmsg(records: list[str], boot: str, started: float) -> list[Json]:
    """Gives the watched rows of /dev/kmsg's records; `started` is the boot's Unix time."""
    rows = []
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            row = classified(text.split("\n")[0], boot, started + int(fields[2]) / 1e6)
            rows += [row] if row else []
    return newest(rows)


def newest(rows: list[Json]) -> list[Json]:
    """Gives the last MAX_LINES rows of each kind, device and number, in their order."""
    seen: dict[tuple[Any, ...], int] = {}
    found = []
    for row in reversed(rows):
        what = (row["kind"], row["device"], row["number"], row["boot"])
        seen[what] = seen.get(what, 0) + 1
        found += [row] if seen[what] <= MAX_LINES else []
    return found[::-1]


def this_boot() -> list[Json]:
    """Gives this boot's rows; none in a container, where the file is no device of the kernel's."""
    try:
        if not stat.S_ISCHR(os.stat(KMSG).st_mode):
            return []
        records = _records(KMSG)
    except FileNotFoundError:
        return []
    up = float((proc.read_text("/proc/uptime") or "0").split()[0])
    return parse_kmsg(records, proc.boot_id(), time.time() - up)


def kept() -> list[Json]:
    """Gives the rows of all boots that the journal has kept; none where there is no journalctl.

    Raises CannotRead when it is late or fails.
    """
    words = ["journalctl", "-q", "-r", "--no-pager", "_TRANSPORT=kernel", "--since", SINCE, "-g",
             _ASKED, "-n", str(MAX_KEPT), "-o", "json",
             "--output-fields=MESSAGE,_BOOT_ID"]  # fmt: skip
    try:
        done = run(words, TIMEOUT_S)
    except FileNotFoundError:
        return []
    except TimedOut as error:
        raise CannotRead(f"{_NOT_LOOKED}: {error}") from None
    # it ends with 1, too, where no line fits
    if done.rc != 0 and done.err.strip():
        raise CannotRead(f"{_NOT_LOOKED}: journalctl: {done.last_line()[:300]}")
    rows = []
    for line in done.out.splitlines()[::-1]:
        try:
            entry = json.loads(line)
            raw, at = entry["_BOOT_ID"], int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            continue
        boot = f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        row = classified(str(entry.get("MESSAGE")), boot, at)
        rows += [row] if row else []
    return newest(rows)


def _last_words() -> list[Json]:
    """Gives the panic of each crash that the firmware or systemd-pstore kept."""
    rows = []
    for top in PSTORES:
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if not name.startswith("dmesg"):
                    continue
                for line in proc.read_text(path).splitlines():
                    row = classified(line, None, os.stat(path).st_mtime)
                    if row and row["kind"] == "panic":
                        rows.append({**row, "device": path})
    return rows


def read() -> list[Json]:
    """Gives the rows of this boot's ring, a crash's last words first.

    Raises CannotRead when this boot's log is not shown.
    """
    try:
        return [*_last_words(), *this_boot()]
    except OSError as error:
        raise CannotRead(f"{KMSG}: {error.strerror}") from None


def with_kept(parts: Json) -> Json:
    """Gives the parts with the journal's rows among the kernel's; of `journal` stays why not.

    The ring of a host that talks much (a bridge for each container) loses its first hours.
    """
    kept, now = parts.get("journal"), parts.get("kernel")
    if not isinstance(kept, list):
        return parts
    if isinstance(now, list):
        own, shown = proc.boot_id(), {row["text"] for row in now}
        more = [row for row in kept if row["boot"] != own or row["text"] not in shown]
        now = [*more, *now]
    return {**parts, "kernel": now, "journal": None}
