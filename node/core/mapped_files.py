"""Which processes have a library mapped, which bytes those are, and where they came from.

The bytes are read through /proc/PID/map_files, which shows the mapped file itself: also one that
was replaced or removed since, and one of a container.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from node.core import proc
from node.core.errors import Json

_LINE = re.compile(r"^([0-9a-f]+-[0-9a-f]+) (\S{4}) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) +(.*)$")
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_DELETED = " (deleted)"
MAX_MAPPERS = 2000


class Mapping(NamedTuple):
    """One mapped file of a process: its first range, device, inode, path as the process sees it."""

    span: str
    device: str
    inode: int
    path: str
    deleted: bool


def parse(text: str, base: str) -> list[Mapping]:
    """Gives the files of a /proc/PID/maps whose name starts with `base`, each once."""
    found: dict[tuple[str, int], Mapping] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        span, _, device, inode, path = match.groups()
        deleted = path.endswith(_DELETED)
        path = path[: -len(_DELETED)] if deleted else path
        if os.path.basename(path).startswith(base):
            found.setdefault((device, int(inode)), Mapping(span, device, int(inode), path, deleted))
    return list(found.values())


def digest_of(pid: int, mapping: Mapping) -> str | None:
    """Gives the sha256 of the file behind a mapping; None when it cannot be read."""
    # map_files names a range without leading zeroes, as maps does
    for path in (f"/proc/{pid}/map_files/{mapping.span}", f"/proc/{pid}/root{mapping.path}"):
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_ino != mapping.inode:
                    continue
                sha = hashlib.sha256()
                for chunk in iter(lambda: file.read(1 << 20), b""):
                    sha.update(chunk)
                return sha.hexdigest()
        except OSError:
            continue
    return None


def pod_of(path: str) -> str | None:
    """Gives the pod's uid in a cgroup path (systemd's form has `_` for `-`), or None."""
    found = _POD.findall(path)
    return found[-1].replace("_", "-") if found else None


def _mounts(pid: str) -> list[tuple[str, str, str]]:
    """Gives (device, root, mount point) of each mount that a process sees; octal escapes undone."""
    rows: list[tuple[str, str, str]] = []
    text = (proc.read_bytes(f"/proc/{pid}/mountinfo") or b"").decode("utf-8", "replace")
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 5:
            root, point = (_plain(word) for word in words[3:5])
            rows.append((words[2], root, point))
    return rows


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def source_of(pid: int, path: str) -> str | None:
    """Gives the host's path of a file that is bind-mounted at `path` of a process; else None.

    A mount's root is its path within its filesystem; the host's own mount of the same filesystem
    says where that lies.
    """
    inside = [row for row in _mounts(str(pid)) if row[2] == path]
    if not inside:
        return None
    device, root, _ = inside[-1]
    root = root[: -len("//deleted")] if root.endswith("//deleted") else root
    best: tuple[int, str] | None = None
    for ours, base, point in _mounts("self"):
        stem = base.rstrip("/")
        if ours == device and (root == base or root.startswith(stem + "/")):
            full = os.path.normpath(point + "/" + root[len(stem) :])
            if best is None or len(stem) > best[0]:
                best = (len(stem), full)
    return best[1] if best else None


def mappers(base: str) -> list[Json]:
    """Gives each process that maps a file named `base…`, once a file, with its bytes' sha256."""
    found: list[Json] = []
    digests: dict[tuple[str, int], str | None] = {}
    own = os.getpid()
    for pid in proc.pids():
        if pid == own:
            continue
        raw = proc.read_bytes(f"/proc/{pid}/maps")
        stat = proc.stat(pid)
        if not raw or stat is None:
            continue
        for mapping in parse(raw.decode("utf-8", "replace"), base):
            key = (mapping.device, mapping.inode)
            if digests.get(key) is None:
                digests[key] = digest_of(pid, mapping)
            group = proc.cgroup(pid)
            found.append(
                {
                    "pid": pid,
                    "start_ticks": stat.start_ticks,
                    "uid": proc.uid(pid),
                    "argv0": (proc.argv(pid) or (stat.comm,))[0][:200],
                    "container": proc.container_of(group),
                    "pod": pod_of(group),
                    "path": mapping.path,
                    "inode": mapping.inode,
                    "deleted": mapping.deleted,
                    "sha256": digests[key],
                    "source": source_of(pid, mapping.path),
                }
            )
        if len(found) > MAX_MAPPERS:
            break
    return found
