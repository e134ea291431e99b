"""Lines of the kernel about hardware and about itself, of this boot and earlier.

This boot's come from /dev/kmsg, earlier ones from the journal and from pstore. A container has no
kernel log of its own: none there.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

KMSG = "/dev/kmsg"
PSTORES = ("/sys/fs/pstore", "/var/lib/systemd/pstore")
TIMEOUT_S = 3.0
MAX_LINES = 200
SINCE = "-30days"
# a kind, and the words of its lines; the first that fits. `at` is the device, `number` an Xid's.
_KINDS: tuple[tuple[str, str], ...] = (
    ("xid", r"NVRM: Xid \(PCI:(?P<at>[0-9a-fA-F:.]+)\): (?P<number>\d+)"),
    ("gpu-lost", r"NVRM: .*(?P<at>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\S*"
                 r".* has fallen off"),
    ("panic", r"(?P<at>)Kernel panic - not syncing"),
    ("oops", r"(?P<at>)(?:BUG: unable to handle|BUG: kernel NULL pointer|Oops: |general protection "
             r"fault, probably|kernel BUG at )"),
    ("lockup", r"(?P<at>)(?:soft lockup - CPU|[Hh]ard LOCKUP|self-detected stall on CPU"
               r"|detected stalls on CPUs)"),
    ("hung", r"INFO: task (?P<at>\S+?):\d+ (?:<.*> )?blocked for more than"),
    ("mce", r"(?P<at>)mce: \[Hardware Error\]: (?:CPU \d+: Machine Check|Machine check events)"),
    ("edac", r"EDAC (?P<at>MC\d+): \d+ UE "),
    ("aer", r"(?P<at>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:AER: )?"
            r"(?:PCIe Bus Error: severity=(?:Uncorrect|Fatal)"
            r"|(?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"),
    ("nvme", r"nvme (?P<at>nvme\d+): (?:I/O (?:tag )?\d+.* timeout|controller is down|Device not "
             r"ready|Removing after probe failure|Disabling device after reset failure)"),
    ("disk", r"(?:I/O error, dev |critical \w+ error, dev |Buffer I/O error on dev(?:ice)? )"
             r"(?P<at>[a-z]+\d*(?:n\d+)?)"),
    ("filesystem", r"(?:EXT4-fs error \(device |(?:EXT4-fs|XFS|BTRFS \w+) \((?:device )?)"
                   r"(?P<at>[\w-]+)(?=.*(?:EXT4-fs error|Remounting filesystem read-only"
                   r"|has been shut down|forced readonly)|.*\): .*:\d+: )"),
    ("nic", r"mlx5_core (?P<at>[0-9a-fA-F:]+\.\d).*(?:health compromised|Health issue observed"
            r"|Cable error|health poll failed|firmware.*fatal|reported error syndrome)"),
)  # fmt: skip
_PATTERNS = [(kind, re.compile(words)) for kind, words in _KINDS]
# what the journal is asked for: journalctl takes no named groups in every version
_ASKED = "|".join(
    (r"NVRM: (Xid|.*fallen off)", "LOCKUP|lockup|stall", "BUG: |Oops: ",
     "blocked for more than", "Hardware Error", "EDAC MC", "PCIe Bus Error", "I/O ", "error, dev",
     "read-only|shut down|readonly", "mlx5_core .*([hH]ealth|Cable|fatal|syndrome)",
     "nvme nvme")
)  # fmt: skip


def classified(text: str, boot: str | None, at_unix_s: float | None) -> Json | None:
    """Gives a line's row, None for a line about nothing that is watched."""
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
    return rows[-MAX_LINES:]


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


def _earlier(boot: str) -> list[Json]:
    """Gives the rows of earlier boots that the journal has kept; none where it cannot be asked."""
    words = ["journalctl", "-q", "-r", "--no-pager", "_TRANSPORT=kernel", "--since", SINCE, "-g",
             _ASKED, "-n", str(MAX_LINES), "-o", "json",
             "--output-fields=MESSAGE,_BOOT_ID"]  # fmt: skip
    try:
        done = run(words, TIMEOUT_S)
    except (FileNotFoundError, TimedOut):
        return []
    rows = []
    for line in done.out.splitlines()[::-1] if done.rc == 0 else ():
        try:
            entry = json.loads(line)
            raw, at = entry["_BOOT_ID"], int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            continue
        old = f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        row = classified(str(entry.get("MESSAGE")), old, at) if old != boot else None
        rows += [row] if row else []
    return rows


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
    """Gives the rows, earlier boots first. Raises CannotRead when this boot's log is not shown."""
    try:
        now = this_boot()
    except OSError as error:
        raise CannotRead(f"{KMSG}: {error.strerror}") from None
    return [*_last_words(), *_earlier(proc.boot_id()), *now]
