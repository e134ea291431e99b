"""The proof after a reap: processes gone, ports free, memory back; else the evidence."""

from __future__ import annotations

from typing import NamedTuple

from node.core import proc
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import which
from node.reap import find
from node.reap.find import Candidate, ProcessView
from node.rules.shm_names import is_engines
from node.snapshot import gpus, memory, shm


class Wanted(NamedTuple):
    """How much memory must be free: MiB on each GPU, bytes of MemAvailable; None for any."""

    vram_free_mib: float | None
    available_bytes: float | None


def measure() -> Json:
    """Gives MemAvailable, MemFree and Shmem in bytes, and the GPUs with their processes.

    `gpus` is None without a driver; `gpus_unreadable` says why it is None otherwise.
    """
    seen = memory.read()
    found: Json = {key: seen[key] for key in ("available", "free", "shmem")}
    found.update(gpus=None, processes=None, gpus_unreadable=None)
    if which("nvidia-smi") is None:
        return found
    try:
        report = gpus.read()
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
        rows = shm.read(proc.open_files())
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


def computing(rows: list[Json]) -> list[str]:
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
        if now is None or now.start_ticks != one.stat.start_ticks or find.is_dead(now):
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
