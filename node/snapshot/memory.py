"""The host's memory and the kernel settings that the request names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from node.core import proc
from node.core.errors import CannotRead, Json


def read() -> Json:
    """Gives /proc/meminfo in bytes; `page_cache` is what dropping caches could free at most."""
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
