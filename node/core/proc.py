"""Read /proc. Processes come and go while it is read: a vanished one gives None, never an error."""

from __future__ import annotations

import contextlib
import os
import re
from _thread import get_ident
from collections.abc import Iterator
from typing import NamedTuple

# docker (docker-ID.scope, /docker/ID), containerd and cri-o under Kubernetes
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_UNIT = re.compile(r"/([A-Za-z0-9:_.\\@-]+\.service)(?=/|$)")
# an engine's own is a few KB
MAX_ARGV = 64 << 10


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that identify and place a process (man 5 proc)."""

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    start_ticks: int
    rss: int


# what each thread waits for, by its ident: a read of a process that is stuck in the kernel, or of
# a dead mount, never ends, and who waited for that thread says of what
waits: dict[int, str] = {}


@contextlib.contextmanager
def waiting_for(path: str) -> Iterator[None]:
    """Keeps in `waits` what this thread reads meanwhile."""
    waits[get_ident()] = path
    try:
        yield
    finally:
        waits.pop(get_ident(), None)


def read(path: str) -> bytes:
    """Gives the bytes of a /proc file. Raises OSError."""
    with waiting_for(path), open(path, "rb") as file:
        return file.read()


def read_bytes(path: str) -> bytes | None:
    """Gives the bytes of a /proc file, or None when it is gone or not ours to read."""
    try:
        return read(path)
    except OSError:
        return None


def read_text(path: str) -> str:
    """Gives the stripped text of a small file, or "" when it cannot be read."""
    raw = read_bytes(path)
    return "" if raw is None else raw.decode("utf-8", "replace").strip()


def boot_id() -> str:
    """Gives this boot's id: it changes with every reboot."""
    return read_text("/proc/sys/kernel/random/boot_id")


def pids() -> list[int]:
    """Gives the pids that exist now, ascending."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def stat(pid: int) -> Stat | None:
    """Gives the identity of a process, or None when it is gone."""
    raw = read_bytes(f"/proc/{pid}/stat")
    if not raw:
        return None
    text = raw.decode("utf-8", "replace")
    # comm may hold blanks and brackets: the last ")" ends it
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 22:
        return None
    return Stat(
        pid=pid,
        comm=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        rss=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    )


def argv(pid: int) -> tuple[str, ...]:
    """Gives the argument vector; for a process that set its title, the title alone.

    setproctitle overwrites the argument area: /proc/PID/cmdline is then the title followed by
    NUL padding.
    """
    # the kernel lets a process of anybody have 2 MB of it
    raw = (read_bytes(f"/proc/{pid}/cmdline") or b"")[:MAX_ARGV]
    if not raw:
        return ()
    if raw.startswith(b"VLLM::"):
        return (raw.split(b"\0", 1)[0].decode("utf-8", "replace").strip(),)
    if raw.endswith(b"\0"):
        raw = raw[:-1]
    return tuple(part.decode("utf-8", "replace") for part in raw.split(b"\0"))


def environ(pid: int) -> dict[str, str]:
    """Gives the environment a process was started with; empty when it cannot be read."""
    raw = read_bytes(f"/proc/{pid}/environ") or b""
    pairs = (part.decode("utf-8", "replace").partition("=") for part in raw.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def exe(pid: int) -> str | None:
    """Gives the executable's path, or None when it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def uid(pid: int) -> int | None:
    """Gives the user id that a process runs as, or None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def cgroup(pid: int) -> str:
    """Gives the cgroup path (v2, else systemd's own v1 hierarchy), or ""."""
    lines = (read_bytes(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace").splitlines()
    for wanted in ("0::", "name=systemd:"):
        for line in lines:
            if wanted in line:
                path = line.split(":", 2)[2]
                if path != "/" or wanted != "0::":
                    return path
    return "/" if lines else ""


def container_of(path: str) -> str | None:
    """Gives the container id in a cgroup path, or None.

    Below a service or a user's slice, folders are named by who runs there: none counts.
    """
    end = _UNIT.search(path)
    found = _CONTAINER.findall(path[: end.start()] if end else path)
    if path.startswith("/user.slice/"):
        return None
    return found[-1] if found else None


def unit_of(path: str) -> str | None:
    """Gives the service in a cgroup path, or None (login sessions are no supervisor).

    The outermost: it is the system's own, and who runs in it may name folders below as he likes.
    """
    found = _UNIT.search(path)
    return found[1] if found and not container_of(path) else None


class Fd(NamedTuple):
    """An open descriptor of a process and what it points to."""

    pid: int
    number: str
    target: str


def open_files() -> list[Fd]:
    """Gives the sockets and shared memory files that processes have open now."""
    found: list[Fd] = []
    for pid in pids():
        folder = f"/proc/{pid}/fd"
        try:
            with waiting_for(folder):
                numbers = os.listdir(folder)
        except OSError:
            continue
        for number in numbers:
            try:
                target = os.readlink(f"{folder}/{number}")
            except OSError:
                continue
            if target.startswith("socket:[") or "/dev/shm/" in target:
                found.append(Fd(pid, number, target))
    return found
