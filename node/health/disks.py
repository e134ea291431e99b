"""SMART of NVMe disks, and filesystems that became read-only by themselves."""

from __future__ import annotations

import json
import os
import re

from node.core import proc
from node.core.errors import Json
from node.core.parallel import each
from node.core.run import TimedOut, run, which

ROOT = "/sys/class/nvme"
BLOCK = "/sys/block"
MOUNTINFO = "/proc/self/mountinfo"
TIMEOUT_S = 3.0
# a filesystem on a disk that turns itself read-only after an error
_ON_DISK = ("ext3", "ext4", "btrfs", "f2fs", "jfs")
_STOPPED = frozenset(("ro", "emergency_ro", "shutdown"))
# NVMe base specification, SMART log page: the names of nvme-cli, and those of smartctl
_NAMES = {
    "warning": ("critical_warning", "critical_warning"),
    "media_errors": ("media_errors", "media_errors"),
    "used_percent": ("percent_used", "percentage_used"),
    "spare": ("avail_spare", "available_spare"),
    "spare_least": ("spare_thresh", "available_spare_threshold"),
}


def parse_smart(text: str, source: str) -> Json | None:
    """Gives the SMART values of nvme-cli's or smartctl's JSON; None for what has none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    body = document.get("nvme_smart_health_information_log", document)
    found: Json = {"source": source}
    for name, keys in _NAMES.items():
        value = next((body[key] for key in keys if key in body), None)
        if name == "used_percent" and value is None:
            value = body.get("percentage_used")
        if isinstance(value, dict):  # newer nvme-cli: {"value": 4, ...}
            value = value.get("value")
        found[name] = int(value) if isinstance(value, (int, float)) else None
    return found if found["media_errors"] is not None else None


def _smart(name: str) -> Json | None:
    """Gives a disk's SMART values by whichever tool is there, or why none said them; None without
    a tool that reads it."""
    late = []
    for tool, words in (
        ("nvme", ["nvme", "smart-log", f"/dev/{name}", "-o", "json"]),
        ("smartctl", ["smartctl", "-A", "-j", f"/dev/{name}"]),
    ):
        if which(tool) is None:
            continue
        try:
            found = parse_smart(run(words, TIMEOUT_S).out, tool)
        except (TimedOut, OSError) as error:
            late.append(str(error))
            continue
        if found:
            return found
    return {"unreadable": "; ".join(late)} if late else None


def read(root: str = ROOT) -> list[Json]:
    """Gives a row for each NVMe controller; `smart` None: no tool that reads it."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    values = each(_smart, names, 4) if names else []
    return [
        {
            "name": name,
            "model": proc.read_text(f"{root}/{name}/model") or None,
            "state": proc.read_text(f"{root}/{name}/state") or None,
            "smart": smart,
        }
        for name, smart in zip(names, values, strict=True)
    ]


def turned_read_only(path: str = MOUNTINFO) -> list[str]:
    """Gives the mount points of filesystems that their kernel made read-only.

    Mounted rw, and the filesystem itself is ro: so says mountinfo after errors=remount-ro. One
    that was mounted read-only on purpose has ro in both places. ext4 says emergency_ro or shutdown
    since Linux 6.15, and nothing from 6.12 on (longhorn 13452) or in Debian's 6.1.0-50: there the
    kernel's line tells.
    """
    found = []
    for line in proc.read_text(path).splitlines():
        left, _, right = line.partition(" - ")
        fields, what = left.split(), right.split()
        if len(fields) < 6 or len(what) < 3 or what[0] not in _ON_DISK:
            continue
        if "rw" in fields[5].split(",") and not _STOPPED.isdisjoint(what[2].split(",")):
            found.append(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
    return sorted(set(found))


def fixed(root: str = BLOCK) -> list[str]:
    """Gives the disks that are no removable ones: what somebody unplugs has I/O errors, too."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return [
        name
        for name in names
        if os.path.exists(f"{root}/{name}/device")
        and proc.read_text(f"{root}/{name}/removable") == "0"
        and "/usb" not in os.path.realpath(f"{root}/{name}")
    ]
