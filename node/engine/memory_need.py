"""Whether the engine's start finds the memory that it will ask for, on this host, now.

For a host that starts its engine with no operator at hand; node/rules/memory_need.py has the rule.
"""

from __future__ import annotations

from typing import NamedTuple

from node.core.errors import Json
from node.engine.config import Engine
from node.rules.memory_need import GIB, card_need, is_assigned, is_leaked, is_unified, share_of
from node.snapshot import gpus, memory


class Shortage(NamedTuple):
    """Why the start would fail. `system` is the need in bytes where it is the system's memory."""

    evidence: str
    system: int | None


def system_need(engine: Engine) -> int | None:
    """Gives the bytes of system memory that the start needs; None where the GPUs have their own.

    Raises CannotRead when the GPUs cannot be read.
    """
    if not engine.needs_nvidia:
        return engine.memory.cpu_bytes
    if any(is_unified(row["name"]) for row in gpus.read()["gpus"]):
        return share_of(int(memory.read()["total"]), engine.memory.gpu_memory_utilization)
    return None


def caches_in_the_way(need: int) -> bool:
    """Gives True when MemFree is below a need: some loaders count that, not MemAvailable."""
    return int(memory.read()["free"]) < need


def shortage(engine: Engine) -> Shortage | None:
    """Gives why the memory is not enough, or None when it is. Raises CannotRead."""
    need = system_need(engine)
    if need is not None:
        seen = memory.read()
        if seen["available"] >= need:
            return None
        users = len(gpus.read()["processes"]) if engine.needs_nvidia else 0
        return Shortage(_system(seen, need, users), need)
    report = gpus.read()
    rows = [
        row
        for row in report["gpus"]
        if is_assigned(int(row["index"]), str(row["uuid"]), engine.memory.devices)
    ]
    rows = sorted(rows, key=lambda row: int(row["index"]))[: engine.memory.gpus]
    if len(rows) < engine.memory.gpus:
        return Shortage(f"{len(rows)} GPUs for {engine.memory.gpus} ranks", None)
    for row in rows:
        found = _card(row, engine.memory.gpu_memory_utilization, report["processes"])
        if found:
            return Shortage(found, None)
    return None


def margin(engine: Engine) -> str | None:
    """Gives in words that the start itself may take what it needs, where that was measured.

    The start goes on: vLLM looks by itself, and refuses within seconds. Raises CannotRead.
    """
    need = system_need(engine) if engine.needs_nvidia else None
    seen = memory.read()
    took = seen["start_took"]
    if need is None or took is None or seen["available"] - took >= need:
        return None
    return (
        f"{_gib(seen['available'])} available, {_gib(took)} of it went to the last start itself, "
        f"{_gib(need)} needed: vLLM may refuse to start"
    )


def _system(seen: Json, need: int, users: int) -> str:
    lost = seen["unaccounted"]
    leaked = is_leaked(lost, need - seen["available"], users)
    return (
        f"{_gib(seen['available'])} available, {_gib(need)} needed (MemFree "
        f"{_gib(seen['free'])}, page cache {_gib(seen['page_cache'])}, "
        f"Shmem {_gib(seen['shmem'])})"
        + (f"; no process holds {_gib(lost)}: only a reboot brings it back" if leaked else "")
    )


def _card(row: Json, share: float, processes: list[Json]) -> str | None:
    """Gives what a GPU with memory of its own lacks, with those who hold it."""
    name = f"GPU {row['index']} ({row['name']})"
    total, free = row["memory_total_mib"], row["memory_free_mib"]
    if total is None or free is None:
        return f"{name} does not report its memory"
    need = card_need(int(total), row["memory_used_mib"], int(free), share)
    if free >= need:
        return None
    holders = [
        f"pid {p['pid']} {p['process_name']} {p['used_mib']} MiB"
        for p in processes
        if p["gpu_uuid"] == row["uuid"]
    ]
    held = ", ".join(holders) or "no listed process (another namespace, or a driver fault)"
    return f"{name}: {free} of {total} MiB free, {need} MiB needed; held by: {held}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
