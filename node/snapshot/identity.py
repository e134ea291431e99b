"""Who the host is and which boot this is."""

from __future__ import annotations

import os
import sys
import time

from node.core import masking, proc
from node.core.errors import Json


def _os_release() -> dict[str, str]:
    """Gives /etc/os-release as a map (man 5 os-release)."""
    pairs = (line.partition("=") for line in proc.read_text("/etc/os-release").splitlines())
    return {name: value.strip("\"'") for name, _, value in pairs}


def read() -> Json:
    """Gives the host's identity; it never fails, an unknown field is empty."""
    release = _os_release()
    uname = os.uname()
    uptime = proc.read_text("/proc/uptime").split() or ["0"]
    return {
        "hostname": uname.nodename,
        "machine_id": proc.read_text("/etc/machine-id"),
        "boot_id": proc.boot_id(),
        "arch": uname.machine,
        "os_id": release.get("ID", ""),
        "os_version": release.get("VERSION_ID", ""),
        "kernel": uname.release,
        "cmdline": masking.masked_cmdline(proc.read_text("/proc/cmdline")),
        "uptime_s": float(uptime[0]),
        "clock_unix_s": time.time(),
        "effective_uid": os.geteuid(),
        "python": sys.version.split()[0],
    }
