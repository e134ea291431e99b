"""Where a copy lies: PLACE/rigbook/HOSTNAME/ID, on another disk than the backups themselves."""

from __future__ import annotations

import os
import socket

from node.backup import store
from node.core import proc, validate
from node.core.errors import NodeError, io_reason
from node.files import atomic

_BLOCK = "/sys/dev/block"


def parse(value: object, where: str) -> str:
    """Gives the folder of a place. Raises NodeError where it is none, or others may write above."""
    path = validate.path(value, where)
    with atomic.Folder(path):
        pass
    if not os.path.isdir(path) or os.path.islink(path):
        raise NodeError(f"{path} is not there, or no folder", "no_folder",
                        "mount the disk, and name the folder on it")  # fmt: skip
    return path


def folder(place: str, backup: str = "") -> str:
    """Gives the folder of this host's copies in a place, or that of one copy."""
    return os.path.join(place, "rigbook", socket.gethostname(), backup).rstrip("/")


def make(place: str) -> str:
    """Make the folder of this host's copies, root-only. Raises NodeError on the backups' own disk,
    and on a file system that keeps no owners and modes.
    """
    mine = store.folder()
    common = disks(place) & disks(mine)
    if common:
        raise NodeError(f"{place} is on the disk of the backups ({', '.join(sorted(common))})",
                        "same_disk", "a copy there dies with them: mount another disk")  # fmt: skip
    path = folder(place)
    for each in (os.path.dirname(path), path):
        store.private_folder(each)
    _require_owners(path)
    return path


def _require_owners(path: str) -> None:
    probe = os.path.join(path, ".probe")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            os.chown(probe, 12345, 12345)
            os.chmod(probe, 0o640)
            info = os.lstat(probe)
            kept = (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (12345, 12345, 0o640)
            problem = "" if kept else "owners and modes are not kept"
        finally:
            os.unlink(probe)
    except OSError as error:
        problem = io_reason(error)
    if problem:
        raise NodeError(f"{path}: {problem}", "unfit_place",
                        "name a folder on ext4, xfs or btrfs")  # fmt: skip


def disks(path: str) -> frozenset[str]:
    """Gives the disks on which a folder lies, such as nvme0n1; where the kernel names none (a file
    system of the network, or of several layers), the mount's own source."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    source = _source(number)
    if not os.path.exists(f"{_BLOCK}/{number}") and source.startswith("/dev/"):
        real = os.stat(source).st_rdev  # btrfs has a number of its own
        number = f"{os.major(real)}:{os.minor(real)}"
    if os.path.exists(f"{_BLOCK}/{number}"):
        return frozenset(_whole(os.path.realpath(f"{_BLOCK}/{number}")))
    return frozenset({f"{number} {source}".strip()})


def _source(number: str) -> str:
    """Gives the source of the mount with this device number, "" for none."""
    for row in proc.read_text("/proc/self/mountinfo").splitlines():
        left, _, right = row.partition(" - ")
        if left.split()[2] == number:
            return right.split()[1]
    return ""


def _whole(block: str) -> set[str]:
    """Gives the disks under a block device: a partition's, and those under LVM, LUKS and RAID."""
    if os.path.exists(f"{block}/partition"):
        block = os.path.dirname(block)
    below = f"{block}/slaves"
    names = os.listdir(below) if os.path.isdir(below) else []
    found: set[str] = set()
    for name in names:
        found |= _whole(os.path.realpath(f"{below}/{name}"))
    backing = proc.read_text(f"{block}/loop/backing_file")
    if backing and os.path.exists(backing):
        return set(disks(backing))
    return found or {os.path.basename(block)}


def is_ours(path: str) -> bool:
    """Gives whether only root can have written a copy."""
    info = os.lstat(path)
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022 and not os.path.islink(path)
