"""Look for engine processes: every sign that a process is one, and who holds the ports."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import which
from node.rules import shm_names
from node.rules.patterns import API_SERVER
from node.snapshot import gpus, ports
from node.snapshot.processes import is_engine

TITLE = "VLLM::"
_LIBRARY = re.compile(rb"/vllm/[^\n]*\.so", re.MULTILINE)
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")


class Candidate(NamedTuple):
    """A process with at least one sign of an engine.

    `is_server` is true for one that a person or a supervisor starts (`vllm serve`), false for
    those that another engine process starts (`VLLM::…`). `signs` are in words, `is_proven` says
    whether they are enough.
    """

    stat: proc.Stat
    boot_id: str
    uid: int
    argv0: str
    exe: str | None
    cgroup: str
    namespace: str
    signs: tuple[str, ...]
    is_proven: bool
    is_server: bool

    def as_json(self) -> Json:
        """Gives the identity: pid + start_ticks + boot_id, uid and argv0 (no other argument)."""
        return {
            "pid": self.stat.pid,
            "start_ticks": self.stat.start_ticks,
            "boot_id": self.boot_id,
            "uid": self.uid,
            "argv0": self.argv0[:200],
        }


class ProcessView(NamedTuple):
    """One look at the host: all processes, those with a sign, and the holders of the ports.

    A port that is held by nobody is not in `holders`; an empty list is a holder not to be seen.
    `compute` is the GPU list, or why it cannot be read. `listening` has all ports, not only those
    that were asked for.
    """

    stats: dict[int, proc.Stat]
    candidates: dict[int, Candidate]
    holders: dict[int, list[int]]
    compute: list[Json] | str
    listening: dict[int, list[int]]


def is_server(argv: Sequence[str]) -> bool:
    """Gives True for a command line that serves a model: `vllm serve`, `-m vllm…api_server`.

    `vllm chat` and `vllm bench` are clients of one.
    """
    if not is_engine(argv) or argv[0].startswith(TITLE):
        return False
    words = list(argv)
    for n, word in enumerate(words):
        if API_SERVER.search(word):
            return True
        if word in ("vllm", "vllm.entrypoints.cli.main") or word.endswith(
            ("/vllm", "/cli/main.py")
        ):
            return words[n + 1 : n + 2] == ["serve"]
    return False


def is_dead(stat: proc.Stat) -> bool:
    """Gives True for a process that has ended; one whose first thread alone has is alive."""
    if stat.state != "Z":
        return stat.state == "X"
    try:
        return len(os.listdir(f"/proc/{stat.pid}/task")) < 2
    except OSError:
        return True


def is_stuck(stat: proc.Stat) -> bool:
    """Gives True for a process that stays in uninterruptible sleep.

    Reading its command line or its maps could then wait for as long as it does.
    """
    for _ in range(3):
        now = proc.stat(stat.pid)
        if now is None or now.state != "D":
            return False
        time.sleep(0.02)
    return True


def namespace(pid: int | str) -> str:
    """Gives the pid namespace of a process, or "" when it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def port_holders(open_files: list[proc.Fd]) -> dict[int, list[int]]:
    """Gives, for each TCP port on which somebody listens, the pids that hold it."""
    by_inode: dict[int, set[int]] = {}
    for pid, _, target in open_files:
        match = _SOCKET.match(target)
        if match:
            by_inode.setdefault(int(match.group(1)), set()).add(pid)
    found: dict[int, set[int]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for _, port, inode in ports.listening(proc.read_text(table)):
            found.setdefault(port, set()).update(by_inode.get(inode, set()))
    return {port: sorted(pids) for port, pids in sorted(found.items())}


def compute_rows() -> list[Json] | str:
    """Gives the GPU's list of compute processes, [] without a driver, or why it is unknown."""
    if which("nvidia-smi") is None:
        return []
    try:
        return list(gpus.read()["processes"])
    except CannotRead as error:
        return str(error)


def _signs(stat: proc.Stat, argv: tuple[str, ...], gpu: set[int]) -> tuple[list[str], list[str]]:
    """Gives the signs that only an engine has, and those that other programs have too."""
    own: list[str] = []
    shared: list[str] = []
    if argv and argv[0].startswith(TITLE):
        own.append(f"title {argv[0][:60]}")
    elif is_server(argv):
        own.append("command line of a vLLM server")
    # the kernel cuts it at 15 characters: VLLM::EngineCor
    elif stat.comm.startswith(TITLE):
        own.append(f"name {stat.comm}")
    if stat.pid in gpu:
        shared.append("computes on a GPU")
    return own, shared


def _mapped(pid: int) -> tuple[bool, bool]:
    """Gives whether a process maps vLLM's compiled code, and a shared memory segment."""
    raw = proc.read_bytes(f"/proc/{pid}/maps") or b""
    return bool(_LIBRARY.search(raw)), bool(shm_names.MAPPED.search(raw))


def _candidate(
    stat: proc.Stat, boot: str, gpu: set[int], held: list[int], ours: Sequence[str]
) -> Candidate | None:
    """Gives the process with its signs, or None when it has none or went meanwhile."""
    stuck = stat.state == "D" and is_stuck(stat)
    argv = () if stuck else proc.argv(stat.pid)
    own, shared = _signs(stat, argv, gpu)
    is_strong = bool(own)
    library, shm = (False, False) if stuck else _mapped(stat.pid)
    cgroup = proc.cgroup(stat.pid)
    if library:
        own.append("maps vLLM's code")
    if any(part in cgroup.split("/") or f"-{part}." in cgroup for part in ours):
        own.append("in our cgroup")
    if shm:
        shared.append("maps /dev/shm/psm_*")
    shared += [f"listens on port {port}" for port in held]
    exe, uid, after = proc.exe(stat.pid), proc.uid(stat.pid), proc.stat(stat.pid)
    # a pid that was given to another process meanwhile would mix two; kernel threads have no exe
    if not own + shared or uid is None or after is None or after.start_ticks != stat.start_ticks:
        return None
    if is_dead(after) or (exe is None and not argv and not stuck and after.state != "Z"):
        return None
    # GPU, segment and port are what any program may have: one sign must be an engine's alone
    is_proven = is_strong or (bool(own) and len(own + shared) > 1)
    return Candidate(
        after, boot, uid, argv[0] if argv else stat.comm, exe, cgroup, namespace(stat.pid),
        tuple(own + shared), is_proven, is_server(argv),
    )  # fmt: skip


def inspect_processes(
    wanted_ports: Iterable[int], unit: str, container_id: str | None
) -> ProcessView:
    """Gives one look at the host. `unit` and `container_id` are ours; reads only."""
    boot = proc.boot_id()
    compute = compute_rows()
    gpu = {int(row["pid"]) for row in compute} if isinstance(compute, list) else set()
    listening = port_holders(proc.open_files())
    holders = {port: listening[port] for port in sorted(wanted_ports) if port in listening}
    stats = {stat.pid: stat for stat in map(proc.stat, proc.pids()) if stat}
    ours = [unit, *([container_id] if container_id else [])]
    candidates: dict[int, Candidate] = {}
    for stat in stats.values():
        held = [port for port, pids in holders.items() if stat.pid in pids]
        found = _candidate(stat, boot, gpu, held, ours)
        if found:
            candidates[stat.pid] = found
    return ProcessView(stats, candidates, holders, compute, listening)
