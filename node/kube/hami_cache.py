"""HAMi's shared cache of a container: where it lies on the host, and its removal once unused.

HAMi-core maps one file for all processes of a container. The first writes its memory limit into it;
later ones find it and keep that limit (try_create_shrreg in multiprocess_memory_limit.c), so a file
that outlives its pod holds a former limit in force.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from typing import NamedTuple

from node.core import proc
from node.core.errors import Json, NodeError, io_reason
from node.kube import deployment as kube_deployment

# multiprocess_memory_limit.h: the name of the variable, its default, and the file's first number
VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
DEFAULT = "/tmp/cudevshr.cache"
MAGIC = 19920718
POLL_S = 0.1
GRACE_S = 10.0
MAX_WAIT_S = 60.0


class Place(NamedTuple):
    """A cache as the container names it; `host` is its path on the host, or None and `why`."""

    inside: str
    host: str | None
    why: str


def place(template: Json, box: Json) -> Place:
    """Gives where a container of a pod template has its cache; of a hostPath alone it stays."""
    try:
        inside = kube_deployment.find(box, VARIABLE).value or DEFAULT
    except NodeError as error:
        return Place(DEFAULT, None, str(error))
    mounts = [m for m in box.get("volumeMounts") or [] if _under(inside, m["mountPath"])]
    if not mounts:
        return Place(inside, None, "it goes with the container")
    mount = max(mounts, key=lambda m: len(m["mountPath"]))
    volumes: dict[str, Json] = {v["name"]: v for v in template["spec"].get("volumes") or []}
    volume = volumes.get(mount["name"]) or {}
    if "emptyDir" in volume:
        return Place(inside, None, "it goes with the pod")
    if "hostPath" not in volume or mount.get("subPathExpr"):
        kind = next((key for key in volume if key != "name"), "an unknown volume")
        return Place(inside, None, f"it lies in {kind} {mount['name']}, which is not looked into")
    parts = [volume["hostPath"]["path"], mount.get("subPath") or "",
             os.path.relpath(inside, mount["mountPath"])]  # fmt: skip
    host = os.path.normpath(os.path.join(parts[0], parts[1].lstrip("/"), parts[2]))
    return Place(inside, host, f"it is {host} of the host")


def _under(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(folder.rstrip("/") + "/")


def holders(device: int, inode: int) -> set[int]:
    """Gives the pids of the processes that map the file or have it open."""
    column = b"%02x:%02x" % (os.major(device), os.minor(device))
    found: set[int] = set()
    for pid in proc.pids():
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                rows = [line.split(None, 5) for line in file.read().splitlines()]
            if any(len(r) > 4 and r[3] == column and int(r[4]) == inode for r in rows):
                found.add(pid)
            for number in os.listdir(f"/proc/{pid}/fd"):
                info = os.stat(f"/proc/{pid}/fd/{number}")
                if (info.st_dev, info.st_ino) == (device, inode):
                    found.add(pid)
        except OSError:
            continue  # it has ended, or closed the file
    return found


def clear(deployment: Json, box: Json) -> str:
    """Remove the container's cache once nobody has it any more; gives what was done in words.

    Waits for those that have it now (the pod that goes), as long as the pod may take for its end.
    A newcomer is the pod that comes: the file is in use again and stays.
    """
    template = deployment["spec"]["template"]
    found = place(template, box)
    if found.host is None:
        return f"shared cache {found.inside}: {found.why}"
    grace = template["spec"].get("terminationGracePeriodSeconds")
    wait = min(MAX_WAIT_S, float(30 if grace is None else grace) + GRACE_S)
    try:
        return _clear(found.host, time.monotonic() + wait)
    except FileNotFoundError:
        return f"there is no shared cache {found.host}"
    except OSError as error:
        return f"shared cache {found.host} stays: {io_reason(error)}"


def _clear(path: str, deadline: float) -> str:
    first: set[int] | None = None
    folder = os.open(os.path.dirname(path), os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    name = os.path.basename(path)
    try:
        while True:
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return f"there is no shared cache {path}"
            if not stat.S_ISREG(info.st_mode) or not _is_cache(name, folder):
                return f"{path} is no shared cache of HAMi: it is left"
            now = holders(info.st_dev, info.st_ino)
            if not now:
                os.unlink(name, dir_fd=folder)
                return f"the former shared cache {path} was removed"
            first = now if first is None else first
            if now - first or time.monotonic() > deadline:
                pids = ", ".join(map(str, sorted(now)))
                return (f"shared cache {path} stays, with the former limit: pid {pids} has it; "
                        "remove it while no pod of the Deployment runs")  # fmt: skip
            time.sleep(POLL_S)
    finally:
        os.close(folder)


def _is_cache(name: str, folder: int) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        raw = os.read(fd, 4)
        return len(raw) == 4 and struct.unpack("<i", raw)[0] == MAGIC
    finally:
        os.close(fd)
