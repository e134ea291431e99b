"""The processes that look like a vLLM engine."""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
from collections.abc import Sequence
from typing import NamedTuple

from node.core import proc
from node.core.errors import CannotRead, Json
from node.rules import secret

# The listening TCP ports, the connections with the peers, and who holds them.

# TCP states of include/net/tcp_states.h
_ESTABLISHED = "01"
_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_V4_IN_V6 = "::ffff:"
MAX_CONNECTIONS = 500
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")


def address(hexadecimal: str) -> str:
    """Gives the address of a /proc/net/tcp{,6} column: 32-bit words in host byte order."""
    raw = bytes.fromhex(hexadecimal)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


class Row(NamedTuple):
    """A row of /proc/net/tcp{,6}: the state as the kernel writes it, both ends, socket inode."""

    state: str
    host: str
    port: int
    peer: str
    peer_port: int
    inode: int


def rows(text: str) -> list[Row]:
    """Gives the rows of /proc/net/tcp{,6}; an IPv4 peer of an IPv6 socket as IPv4."""
    found: list[Row] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] in (_ESTABLISHED, _LISTEN):
            ends: list[tuple[str, int]] = []
            for field in fields[1:3]:
                host, _, port = field.partition(":")
                ends.append((_plain(address(host)), int(port, 16)))
            found.append(Row(fields[3], *ends[0], *ends[1], int(fields[9])))
    return found


def _plain(host: str) -> str:
    """Gives the IPv4 address that an IPv6 socket writes as ::ffff:a.b.c.d."""
    return host[len(_V4_IN_V6) :] if host.startswith(_V4_IN_V6) and "." in host else host


def listening(text: str) -> list[tuple[str, int, int]]:
    """Gives (address, port, socket inode) of the rows of /proc/net/tcp{,6} that listen."""
    return [(row.host, row.port, row.inode) for row in rows(text) if row.state == _LISTEN]


def _owners(open_files: Sequence[proc.Fd]) -> dict[int, int]:
    """Gives the pid of each socket inode; where several processes share one, the lowest."""
    owners: dict[int, int] = {}
    for pid, _, target in open_files:
        match = _SOCKET.match(target)
        if match:
            inode = int(match.group(1))
            owners[inode] = min(pid, owners.get(inode, pid))
    return owners


def _who(owner: int | None) -> Json:
    """Gives pid, process, cgroup's owner and start of a socket's holder."""
    cgroup = proc.cgroup(owner) if owner else ""
    stat = proc.stat(owner) if owner else None
    return {
        "pid": owner,
        "process": stat.comm if stat else None,
        "unit": proc.unit_of(cgroup),
        "container_id": proc.container_of(cgroup),
        "start_ticks": stat.start_ticks if stat else None,
    }


def _table() -> list[tuple[str, int, int]]:
    """Gives (address, port, socket inode) of all that listens now."""
    return [row for table in _TABLES for row in listening(proc.read_text(table))]


def read_ports(open_files: list[proc.Fd]) -> list[Json]:
    """Gives the listening ports, by port; where several processes share one, the lowest pid.

    `open_files` may be older than the sockets: a socket that nobody of it holds is looked up once
    more, and one that is gone by then is left out.
    """
    listed, owners = _table(), _owners(open_files)
    if any(inode not in owners for _, _, inode in listed):
        owners = _owners(proc.open_files())
        still = {inode for _, _, inode in _table()}
        listed = [row for row in listed if row[2] in owners or row[2] in still]
    found = [{"address": host, "port": port, **_who(owners.get(inode))}
             for host, port, inode in listed]  # fmt: skip
    return sorted(found, key=lambda row: (row["port"], row["address"], row["pid"] or 0))


def connections(open_files: list[proc.Fd], peers: Sequence[str]) -> list[Json]:
    """Gives the established connections with the peers' addresses, at most MAX_CONNECTIONS."""
    owners, wanted = _owners(open_files), set(peers)
    found: list[Json] = []
    for row in [row for table in _TABLES for row in rows(proc.read_text(table))]:
        if row.state == _ESTABLISHED and row.peer in wanted and len(found) < MAX_CONNECTIONS:
            who = _who(owners.get(row.inode))
            del who["unit"], who["start_ticks"]
            found.append(
                {
                    "local_address": row.host,
                    "local_port": row.port,
                    "peer_address": row.peer,
                    "peer_port": row.peer_port,
                    **who,
                }
            )
    return sorted(found, key=lambda c: (c["local_port"], c["peer_port"], c["peer_address"]))


_PYTHON = re.compile(r"^python[0-9.]*$")
_ENTRY = re.compile(r"(?:^|/)vllm$|(?:^|/)vllm/entrypoints/.*\.py$")


def is_engine(argv: Sequence[str]) -> bool:
    """Gives True for `VLLM::…` titles and for an interpreter or script that runs vLLM itself.

    Only the program position counts: `docker run IMAGE vllm serve`, `bash -c 'vllm serve'` and
    `docker-init -- vllm serve` are not engines.
    """
    if not argv:
        return False
    if argv[0].startswith("VLLM::") or _ENTRY.search(argv[0]):
        return True
    if not _PYTHON.match(os.path.basename(argv[0])):
        return False
    rest = list(argv[1:])
    while rest:
        arg = rest.pop(0)
        if arg == "-m":
            module = rest[0] if rest else ""
            return module == "vllm" or module.startswith("vllm.entrypoints")
        if arg in ("-X", "-W"):
            rest = rest[1:]
        elif not arg.startswith("-"):
            return bool(_ENTRY.search(arg))
        elif arg == "-c":
            return False
    return False


def read_processes() -> list[Json]:
    """Gives the engine processes, ascending by pid."""
    found: list[Json] = []
    for pid in proc.pids():
        argv = proc.argv(pid)
        if not is_engine(argv):
            continue
        before = proc.stat(pid)
        cgroup = proc.cgroup(pid)
        environ = proc.environ(pid)
        exe = proc.exe(pid)
        uid = proc.uid(pid)
        after = proc.stat(pid)
        # a pid that was given to another process meanwhile would mix two
        if before is None or after is None or uid is None:
            continue
        if before.start_ticks != after.start_ticks or after.state in "ZX":
            continue
        parent = proc.stat(after.ppid)
        found.append(
            {
                "pid": pid,
                "ppid": after.ppid,
                "start_ticks": after.start_ticks,
                "uid": uid,
                "comm": after.comm,
                "argv": list(secret.masked_argv(argv)),
                "exe": exe,
                "cgroup": cgroup,
                "unit": proc.unit_of(cgroup),
                "container_id": proc.container_of(cgroup),
                "environ": secret.watched_environ(environ),
                "rss": after.rss,
                "parent_comm": parent.comm if parent else None,
            }
        )
    return found


# The files in /dev/shm and the processes that map or open them.

FOLDER = "/dev/shm"


def read_shm(open_files: list[proc.Fd]) -> list[Json]:
    """Gives every regular file of /dev/shm with its mappers' pids.

    A segment without mappers may be removed by someone who reads this, so it is an error, not an
    empty list, when the maps of a process cannot be read.
    """
    segments: dict[int, Json] = {}
    users: dict[int, set[int]] = {}
    for entry in os.scandir(FOLDER):
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(info.st_mode):
            users[info.st_ino] = set()
            segments[info.st_ino] = {
                "name": entry.name,
                "size": info.st_size,
                "uid": info.st_uid,
                "inode": info.st_ino,
                "mtime": info.st_mtime,
            }
    if segments:
        _add_openers(users, open_files)
        _add_mappers(users)
    for inode, segment in segments.items():
        segment["mappers"] = sorted(users[inode])
    return sorted(segments.values(), key=lambda segment: str(segment["name"]))


def _add_openers(users: dict[int, set[int]], open_files: list[proc.Fd]) -> None:
    """Add the pids that hold a segment open (a descriptor that is not mapped)."""
    device = os.stat(FOLDER).st_dev
    for pid, number, target in open_files:
        if "/dev/shm/" not in target:
            continue
        try:
            info = os.stat(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if info.st_dev == device and info.st_ino in users:
            users[info.st_ino].add(pid)


def _add_mappers(users: dict[int, set[int]]) -> None:
    """Add the pids that map a segment, found by device and inode: paths differ by container."""
    device = os.stat(FOLDER).st_dev
    wanted = b"%02x:%02x" % (os.major(device), os.minor(device))
    denied = 0
    for pid in proc.pids():
        try:
            raw = proc.read(f"/proc/{pid}/maps")
        except PermissionError:
            # some sandboxes hide pid 1, even from root; init maps no engine's segment
            denied += pid != 1
            continue
        except OSError:
            continue
        if wanted not in raw:
            continue
        for line in raw.splitlines():
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == wanted and int(fields[4]) in users:
                users[int(fields[4])].add(pid)
    if denied:
        raise CannotRead(f"the maps of {denied} processes cannot be read: run as root")
