"""The driver's module as the kernel has it: its version, and who has the GPU open."""

from __future__ import annotations

import glob
import os

from node.core import proc
from node.core.errors import Json

SYS = "/sys/module"


def version(name: str) -> str | None:
    """Gives the version of the loaded module, None when it is not loaded."""
    return proc.read_text(f"{SYS}/{name}/version").strip() or None


def users(name: str) -> list[Json]:
    """Gives who has a device file of the driver open: {pid, comm, unit, container}."""
    found = []
    for pid in proc.pids():
        if any(os.path.realpath(path).startswith(f"/dev/{name}") for path in _open(pid)):
            group = proc.cgroup(pid)
            comm = proc.read_text(f"/proc/{pid}/comm").strip()
            found.append({"pid": pid, "comm": comm, "unit": proc.unit_of(group),
                          "container": proc.container_of(group)})  # fmt: skip
    return found


def _open(pid: int) -> list[str]:
    paths = []
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            paths.append(os.readlink(link))
        except OSError:
            continue
    return [path for path in paths if path.startswith("/dev/")]
