"""The host's memory and the kernel settings that the request names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from node.core import proc
from node.core.errors import CannotRead, Json
from node.snapshot import start_memory

# categories that do not overlap; Shmem is in Cached
_HELD = (
    "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables",
    "SecPageTables", "Percpu", "VmallocUsed", "Hugetlb",
)  # fmt: skip


def read() -> Json:
    """Gives /proc/meminfo in bytes, and what the engine's last start took.

    `page_cache` is what dropping caches could free at most. `unaccounted` is in no category, such
    as pages that a driver took for a GPU without memory of its own.
    """
    kib: dict[str, int] = {}
    for line in proc.read_text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0])
    if "MemAvailable" not in kib:
        raise CannotRead("/proc/meminfo has no MemAvailable")
    size = {name: value * 1024 for name, value in kib.items()}
    return {
        "total": size["MemTotal"],
        "free": size["MemFree"],
        "available": size["MemAvailable"],
        "shmem": size["Shmem"],
        # Shmem is part of Cached and cannot be dropped
        "page_cache": max(0, size["Cached"] + size["Buffers"] - size["Shmem"]),
        "dirty": size["Dirty"],
        "swap_total": size["SwapTotal"],
        "swap_free": size["SwapFree"],
        "unaccounted": max(0, size["MemTotal"] - sum(size.get(name, 0) for name in _HELD)),
        "start_took": start_memory.taken(),
    }


def sysctls(names: Iterable[str]) -> dict[str, str]:
    """Gives the values of the named sysctls; one that this kernel lacks is left out."""
    values: dict[str, str] = {}
    for name in names:
        path = "/proc/sys/" + (name if "/" in name else name.replace(".", "/"))
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            values[name] = " ".join(file.read().split())
    return values
