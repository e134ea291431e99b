"""The spool: what came so far of a transfer that is under way, its lock and its progress.

It lies beside the journal. The lock is the transfer's own: a transfer takes minutes and changes
nothing that anybody uses, so the host's lock stays free meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
import time

from node.core import files
from node.core.errors import Json, NodeError

ROOM_LEFT = 512 << 20
KINDS = ("image", "weights", "tree")


def folder() -> str:
    """Gives the spool's folder."""
    return os.path.join(files.state_root(), "spool")


def ensure() -> str:
    """Makes the spool's folder, root's alone; gives it."""
    files.ensure_state()
    path = folder()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    else:
        files.sync_folder(files.state_root())
    return path


class TransferLock(files.FileLock):
    """The lock of one kind of transfer (`image`, `weights`) on this host, a context manager.

    Raises NodeError (`transfer_runs`) while another one runs; it ends with its process.
    """

    tells = True

    def __init__(self, what: str) -> None:
        # a look at the progress has it for an instant
        super().__init__(wait_s=0.15)
        self._what = what

    def path(self) -> str:
        """Gives the lock's file."""
        return os.path.join(ensure(), f"{self._what}.lock")

    def refused(self, said: str) -> NodeError:
        """Gives the error that names the transfer under way."""
        return NodeError(
            f"another transfer of {self._what} runs on this host: {said or 'an unknown process'}",
            "transfer_runs",
            "wait for it; how far it is: sudo rignode progress",
        )

    def text(self) -> str:
        """Gives who transfers, and since when."""
        return f"pid {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"


def remove_others(suffixes: list[str], names: list[str]) -> None:
    """Removes files of these suffixes that belong to no transfer any more."""
    for name in os.listdir(ensure()):
        if name.endswith(tuple(suffixes)) and name not in names:
            os.unlink(os.path.join(folder(), name))


def free(path: str) -> int:
    """Gives the bytes free where `path` lies, or its nearest folder that is there."""
    room = os.statvfs(_filesystem(path)[0])
    return room.f_bavail * room.f_frsize


def require_room(needs: list[tuple[str, int]], docker: str | None = None) -> None:
    """Raises NodeError (`no_room`) when a filesystem has less free than is asked of it in sum.

    `docker`: where docker keeps its images; what lacks room there, pruning them may give.
    """
    wanted: dict[int, tuple[int, str]] = {}
    for path, size in needs:
        at, device = _filesystem(path)
        total, shown = wanted.get(device, (0, at))
        wanted[device] = (total + size, shown)
    for device, (total, shown) in wanted.items():
        there = free(shown)
        if there < total + ROOM_LEFT:
            prune = docker is not None and _filesystem(docker)[1] == device
            raise NodeError(
                f"{shown} has {there / 1e9:.2f} GB free, the transfer needs"
                f" {(total + ROOM_LEFT) / 1e9:.2f} GB",
                "no_room",
                f"df -h {shlex.quote(shown)}; " + ("sudo docker image prune" if prune
                                      else "remove from that filesystem what is not needed"),
            )  # fmt: skip


def _filesystem(path: str) -> tuple[str, int]:
    """Gives the nearest folder of a path that is there, and its filesystem's number."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path, os.stat(path).st_dev


def progress_line(row: Json) -> str:
    """Gives a line about a transfer: bytes, share, rate, estimate; or what docker does with it."""
    total, done, rate = row["total"], row["done"], row["rate"]
    if row["phase"] not in ("wire", "sha256"):
        return f"{row['phase']}: {total / 1e9:.2f} GB are here, {row['took_s']:.0f} s so far"
    share = 100 * done // total if total else 100
    left = f", about {(total - done) / rate:.0f} s left" if rate else ""
    kept = f" ({row['kept'] / 1e9:.2f} GB of an earlier run)" if row["kept"] else ""
    return f"{done / 1e9:.2f} of {total / 1e9:.2f} GB{kept}, {share} %, {rate / 1e6:.0f} MB/s{left}"


class Progress:
    """How far a transfer is, in a file that anybody with root may read at any time.

    `total` and `done` are bytes; `kept` are those that were there before (a resumed transfer):
    they count as done and not for the rate.
    """

    def __init__(self, what: str, total: int, kept: int = 0) -> None:
        self._path = os.path.join(ensure(), f"{what}.progress")
        self.total, self.kept, self.done = total, kept, kept
        self.phase = "wire"
        self._started = time.monotonic()
        self._last = 0.0
        # One thread brings the blocks, another one hands them to docker; both tell.
        self._lock = threading.Lock()
        self.tell(force=True)

    def add(self, count: int) -> None:
        """Notes bytes that came (or, negative, that have to come again)."""
        self.done += count
        self.tell()

    def at(self, phase: str) -> None:
        """Notes what is being done."""
        self.phase = phase
        self.tell(force=True)

    def tell(self, force: bool = False) -> None:
        """Writes the file, at most twice a second."""
        now = time.monotonic()
        with self._lock:
            if not force and now - self._last < 0.5:
                return
            self._last = now
            took = max(1e-3, now - self._started)
            row = {
                "phase": self.phase,
                "total": self.total,
                "done": self.done,
                "kept": self.kept,
                "rate": round((self.done - self.kept) / took),
                "took_s": round(took, 1),
            }
            row["line"] = progress_line(row)
            temp = self._path + ".new"
            with open(temp, "w", encoding="ascii") as file:
                json.dump(row, file)
            os.rename(temp, self._path)

    def end(self) -> None:
        """Removes the file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def progress(what: str) -> str | None:
    """Gives a transfer's progress file as text, or None."""
    try:
        with open(os.path.join(folder(), f"{what}.progress"), encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return None


def active_transfer(what: str) -> str | None:
    """Gives who moves such a thing now, or None; writes nothing."""
    said = files.held_by(os.path.join(folder(), f"{what}.lock"))
    return None if said is None else said or "an unknown process"


def progress_lines() -> list[str]:
    """Gives how far each transfer of this host is, a line each."""
    found = []
    for what in KINDS:
        who, raw = active_transfer(what), progress(what)
        try:
            said = str(json.loads(raw)["line"]) if raw else "nothing came yet"
        except (ValueError, KeyError, TypeError):
            said = "its progress file is damaged"
        if who:
            found.append(f"{what}: {said} ({who})")
        elif raw:
            found.append(f"{what}: was cut off at {said}; the next run goes on from there")
    return found or ["no transfer runs"]
