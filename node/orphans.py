"""Engines' processes found, whose they are, and the proof that they are gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from node import gpus, processes
from node.core import proc
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import which
from node.core.systemctl import BOOTED, inspect_unit
from node.docker import api
from node.processes import is_engine
from node.rules import engine
from node.rules.engine import is_engines
from node.rules.text import API_SERVER

# Look for engine processes: every sign that a process is one, and who holds the ports.

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


def pid_namespace(pid: int | str) -> str:
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
        for _, port, inode in processes.listening(proc.read_text(table)):
            found.setdefault(port, set()).update(by_inode.get(inode, set()))
    return {port: sorted(pids) for port, pids in sorted(found.items())}


def compute_rows() -> list[Json] | str:
    """Gives the GPU's list of compute processes, [] without a driver, or why it is unknown."""
    if which("nvidia-smi") is None:
        return []
    try:
        return list(gpus.read_gpus()["processes"])
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
    return bool(_LIBRARY.search(raw)), bool(engine.MAPPED.search(raw))


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
        after, boot, uid, argv[0] if argv else stat.comm, exe, cgroup, pid_namespace(stat.pid),
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


# Who answers for an engine process: a live supervisor, or nobody (then it is an orphan).

_LIVE = ("active", "activating", "reloading", "deactivating", "maintenance")
# what a person starts over these outlives the login; the unit does not answer for it
_LOGIN = re.compile(
    r"^(?:sshd?|getty|serial-getty|console-getty|container-getty)(?:@.*)?\.service$"
)
_FOREIGN = re.compile(r"/machine\.slice/|kubepods|/lxc|libpod|crio|cri-containerd")
_SERVICE = re.compile(r"/([^/]+\.service)(?=/|$)")
_USER_MANAGER = re.compile(r"/(user@\d+\.service)(?:/|$)")
_HELPER = re.compile(r"^from multiprocessing\.(?:forkserver|spawn|resource_tracker) import")


class Verdicted(NamedTuple):
    """A candidate with the judgement: orphan or not, ours and live, and why in words."""

    candidate: Candidate
    is_orphan: bool
    is_own: bool
    why: str

    def as_json(self) -> Json:
        """Gives the identity with the reason."""
        return {**self.candidate.as_json(), "why": self.why}


class Owners:
    """The supervisors of this host, each asked once. Takes our unit and container by name."""

    def __init__(self, our_unit: str, our_container: str) -> None:
        self.our_unit = our_unit
        self.our_container = our_container
        self._units: dict[str, str] = {}
        self._containers: dict[str, Any] = {}
        self.own_namespace = pid_namespace("self")
        self.own_container = proc.container_of(proc.cgroup(os.getpid()))

    def unit_state(self, name: str) -> str:
        """Gives a unit's ActiveState, or "unknown"."""
        if name not in self._units:
            self._units[name] = "unknown"
            if os.path.isdir(BOOTED):
                with contextlib.suppress(NodeError):
                    self._units[name] = str(inspect_unit(name)["active"]) or "unknown"
        return self._units[name]

    def container(self, identifier: str) -> Any:
        """Gives docker's own view of a container, or None for none. Raises CannotRead."""
        if identifier not in self._containers:
            if not os.path.exists(api.SOCKET):
                raise CannotRead("docker does not run here")
            path = f"/containers/{identifier}/json"
            self._containers[identifier] = api.get(path, absent_ok=True)
        return self._containers[identifier]

    def our_container_id(self) -> str | None:
        """Gives the id of our container, or None when there is none or docker does not say."""
        try:
            row = self.container(self.our_container)
        except CannotRead:
            return None
        return str(row["Id"]) if row else None


def own_ancestors(stats: dict[int, proc.Stat]) -> set[int]:
    """Gives this process and those above it."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = stats[pid].ppid if pid in stats else 0
    return found


def _allowed_uids() -> set[int]:
    """Gives whose processes may be ended: root's, ours, and those of who called us by sudo."""
    found = {0, os.geteuid()} if os.geteuid() == 0 else {os.geteuid()}
    sudo = os.environ.get("SUDO_UID", "")
    return found | ({int(sudo)} if sudo.isdigit() and os.geteuid() == 0 else set())


def judge_all(view: ProcessView, owners: Owners) -> list[Verdicted]:
    """Gives every candidate with its judgement, ascending by pid."""
    ancestors = own_ancestors(view.stats)
    return [
        _judge(candidate, view, owners, ancestors)
        for _, candidate in sorted(view.candidates.items())
    ]


def _judge(one: Candidate, view: ProcessView, owners: Owners, ancestors: set[int]) -> Verdicted:
    """Gives the judgement of one candidate."""

    def spared(why: str, own: bool = False) -> Verdicted:
        return Verdicted(one, False, own, f"{why} ({signs})")

    signs = "; ".join(one.signs)
    if one.stat.pid in ancestors or one.stat.pid == 1:
        return spared("it is this program or one of its own ancestors")
    identifier = proc.container_of(one.cgroup)
    if one.namespace != owners.own_namespace or identifier not in (None, owners.own_container):
        judged = _in_container(one, identifier, owners)
    elif _USER_MANAGER.search(one.cgroup):
        judged = (False, False, f"{_USER_MANAGER.findall(one.cgroup)[0]} answers for it")
    elif _FOREIGN.search(one.cgroup):
        judged = (False, False, f"it belongs to another container runtime: {one.cgroup[:120]}")
    else:
        judged = _in_unit(one, view, owners)
    orphan, own, why = judged
    if not orphan:
        return spared(why, own)
    if not one.is_proven:
        return spared("not proven to be an engine")
    return Verdicted(one, True, False, f"{why} ({signs})")


def _in_container(one: Candidate, identifier: str | None, owners: Owners) -> Any:
    """Gives (orphan, own, why) of a process in a container or another pid namespace."""
    inside = one.namespace != owners.own_namespace
    if identifier is None:
        return False, False, "it lives in another pid namespace, which answers for it"
    short = identifier[:12]
    try:
        row = owners.container(identifier)
    except CannotRead as error:
        return False, False, f"whether its container {short} lives is not known: {error}"
    if row is None:
        if inside or "docker" not in one.cgroup:
            return False, False, f"its container {short} is another runtime's"
        return True, False, f"its container {short} is gone"
    name, state = str(row["Name"]).lstrip("/"), row["State"]
    if not any(state.get(key) for key in ("Running", "Paused", "Restarting")):
        return True, False, f"its container {name} is {state.get('Status')}"
    if name != owners.our_container:
        return False, False, f"the container {name} runs and answers for it"
    now = owners.unit_state(owners.our_unit)
    if now in (*_LIVE, "unknown"):
        return False, True, f"the container {name} of {owners.our_unit} ({now}) answers for it"
    return True, False, f"the container {name} runs, but {owners.our_unit} is {now}"


def _in_unit(one: Candidate, view: ProcessView, owners: Owners) -> Any:
    """Gives (orphan, own, why) of a process of this pid namespace, by its unit or its parents."""
    services = _SERVICE.findall(one.cgroup)
    if services and not _LOGIN.match(services[0]):
        now = owners.unit_state(services[0])
        own = services[0] == owners.our_unit
        if now in (*_LIVE, "unknown"):
            return False, own, f"the unit {services[0]} ({now}) answers for it"
        # our own unit's engine runs as the user that the recipe names
        if not own and one.uid not in _allowed_uids():
            return False, False, f"left over from {services[0]}, but another user's (uid {one.uid})"
        return True, False, f"left over from {services[0]}, which is {now}"
    if one.uid not in _allowed_uids():
        return False, False, f"it belongs to another user (uid {one.uid})"
    return _by_parents(one, view)


def _by_parents(one: Candidate, view: ProcessView) -> Any:
    """Gives (orphan, own, why) by who is above the engine's uppermost process."""
    top = one.stat
    while True:
        parent = view.stats.get(top.ppid)
        if top.ppid == 0:
            return False, False, "it was started from outside this pid namespace"
        if parent is None:
            return False, False, f"its parent pid {top.ppid} went while we looked"
        above = view.candidates.get(parent.pid)
        if not (above and above.is_proven) and not _is_helper(parent.pid):
            break
        top = parent
    name = f"pid {parent.pid} ({parent.comm})"
    # a child has its parent's session or one of its own: another one says that it was adopted
    adopted = parent.pid == 1 or top.session not in (top.pid, parent.session)
    if not adopted and not _is_user_init(parent):
        return False, False, f"its parent {name} lives and answers for it"
    uppermost = view.candidates.get(top.pid)
    leader = view.stats.get(top.session)
    if uppermost and uppermost.is_server and leader and leader.pid != top.pid:
        return False, False, f"the shell that started it lives: pid {leader.pid} ({leader.comm})"
    serves = _served(top.pid, view) if uppermost and uppermost.is_server else []
    if serves and not set(serves) & set(view.holders):
        named = json.dumps({"ports": serves[:1]})
        return False, False, (f"it serves on port {serves[0]}, started by hand, its shell is gone; "
                              f"to end it: rignode reap '{named}'")  # fmt: skip
    return True, False, f"its parent is gone, it was left to {name}"


def _served(top: int, view: ProcessView) -> list[int]:
    """Gives the ports on which a process or one below it listens."""

    def below(pid: int) -> bool:
        seen: set[int] = set()
        while pid != top and pid in view.stats and pid not in seen:
            seen.add(pid)
            pid = view.stats[pid].ppid
        return pid == top

    return sorted(port for port, pids in view.listening.items() if any(map(below, pids)))


def _is_helper(pid: int) -> bool:
    """Gives True for a process of Python's multiprocessing, which stands between two engine's."""
    argv = proc.argv(pid)
    return len(argv) > 2 and argv[1] == "-c" and bool(_HELPER.match(argv[2]))


def _is_user_init(stat: proc.Stat) -> bool:
    """Gives True for `systemd --user`, which adopts what its user's logins leave."""
    return stat.comm == "systemd" and "--user" in proc.argv(stat.pid)


# The proof after a reap: processes gone, ports free, memory back; else the evidence.


class Wanted(NamedTuple):
    """How much memory must be free: MiB on each GPU, bytes of MemAvailable; None for any."""

    vram_free_mib: float | None
    available_bytes: float | None


def measure_memory() -> Json:
    """Gives MemAvailable, MemFree and Shmem in bytes, and the GPUs with their processes.

    `gpus` is None without a driver; `gpus_unreadable` says why it is None otherwise.
    """
    seen = gpus.read_memory()
    found: Json = {key: seen[key] for key in ("available", "free", "shmem")}
    found.update(gpus=None, processes=None, gpus_unreadable=None)
    if which("nvidia-smi") is None:
        return found
    try:
        report = gpus.read_gpus()
    except CannotRead as error:
        found["gpus_unreadable"] = str(error)
        return found
    keys = ("index", "name", "memory_total_mib", "memory_used_mib", "memory_free_mib")
    found["gpus"] = [{key: row[key] for key in keys} for row in report["gpus"]]
    found["processes"] = [
        {key: row[key] for key in ("pid", "process_name", "used_mib")}
        for row in report["processes"]
    ]
    return found


def check_possible(wanted: Wanted, seen: Json) -> None:
    """Raise NodeError when a threshold cannot be measured on this host."""
    if wanted.vram_free_mib is None:
        return
    rows = seen["gpus"]
    why = "" if rows else seen["gpus_unreadable"] or "there is no nvidia-smi here"
    if rows and any(row["memory_free_mib"] is None for row in rows):
        why = "a GPU does not report its memory; use memory_available_bytes"
    if why:
        raise NodeError(f"vram_free_mib cannot be checked: {why}", "bad_request",
                        "rignode reap without it, or mend the driver")  # fmt: skip


def _unused_segments() -> int:
    """Gives the bytes of engine segments that nobody maps: `shm` frees them, not a reboot."""
    try:
        rows = processes.read_shm(proc.open_files())
    except (CannotRead, OSError):
        return 0
    mine = [row for row in rows if is_engines(str(row["name"]))]
    return sum(int(row["size"]) for row in mine if not row["mappers"])


def memory_lacks(wanted: Wanted, seen: Json) -> list[str]:
    """Gives what is not as wanted, in words."""
    lacks: list[str] = []
    if seen["gpus_unreadable"] and wanted.vram_free_mib is not None:
        lacks.append(str(seen["gpus_unreadable"]))
    for row in seen["gpus"] or []:
        free = row["memory_free_mib"]
        if wanted.vram_free_mib is not None and (free is None or free < wanted.vram_free_mib):
            lacks.append(f"GPU {row['index']} has {free} of {row['memory_total_mib']} MiB free, "
                         f"{wanted.vram_free_mib:g} wanted")  # fmt: skip
    limit = wanted.available_bytes
    if limit is not None and seen["available"] < limit:
        # asked only here: it reads the maps of every process
        unused = _unused_segments()
        if seen["available"] + unused < limit:
            lacks.append(f"MemAvailable is {seen['available']} bytes ({unused} more in segments "
                         f"that nobody maps), {limit:g} wanted")  # fmt: skip
    return lacks


def computing_pids(rows: list[Json]) -> list[str]:
    """Gives the processes that the driver lists, in words."""
    lines: list[str] = []
    for row in rows:
        known = "" if proc.stat(row["pid"]) else ", no such process here"
        lines.append(f"pid {row['pid']} {row['process_name']} {row['used_mib']} MiB{known}")
    return lines


def survivors(ended: list[Candidate]) -> list[str]:
    """Gives those of the ended that still live, with state and where in the kernel they wait."""
    lines: list[str] = []
    for one in ended:
        now = proc.stat(one.stat.pid)
        if now is None or now.start_ticks != one.stat.start_ticks or is_dead(now):
            continue
        where = proc.read_text(f"/proc/{one.stat.pid}/wchan") or "?"
        lines.append(f"pid {one.stat.pid} {one.argv0[:60]} outlived SIGKILL: state {now.state}, "
                     f"waits in {where}")  # fmt: skip
    return lines


def holder_words(view: ProcessView, port: int) -> str:
    """Gives who holds a port: pid, name, unit and container of each."""
    words: list[str] = []
    for pid in view.holders.get(port, []):
        cgroup = proc.cgroup(pid)
        owner = proc.container_of(cgroup)
        where = f"container {owner[:12]}" if owner else proc.unit_of(cgroup) or "no unit"
        stat = view.stats.get(pid)
        words.append(f"pid {pid} ({stat.comm if stat else '?'}, {where})")
    return ", ".join(words) or "a process that cannot be seen from here"


def port_rows(view: ProcessView, ports: list[int]) -> list[Json]:
    """Gives each port with the pids that hold it, and who that is; null for a free one."""
    return [
        {
            "port": port,
            "pids": view.holders.get(port, []),
            "held_by": holder_words(view, port) if port in view.holders else None,
        }
        for port in ports
    ]
