"""The NVIDIA module that is loaded, and the versions of what user space has beside it."""

from __future__ import annotations

import glob
import os
import re

from node.core import proc
from node.core.errors import Json

LOADED = "/proc/driver/nvidia/version"
LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
SPECS = ("/etc/cdi/*", "/var/run/cdi/*")
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
_IN_SPEC = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)\b")


def _libraries(folders: tuple[str, ...]) -> list[str]:
    """Gives the versions of libnvidia-ml that lie in the linker's folders."""
    found = set()
    for folder in folders:
        for path in glob.glob(f"{folder}/libnvidia-ml.so.*"):
            version = path.rpartition(".so.")[2]
            if _VERSION.fullmatch(version) and os.path.exists(path):
                found.add(version)
    return sorted(found)


def read(
    loaded: str = LOADED,
    libraries: tuple[str, ...] = LIBRARIES,
    specs: tuple[str, ...] = SPECS,
) -> Json:
    """Gives the loaded module's version (None: no module), the libraries', and the CDI specs'."""
    line = proc.read_text(loaded).partition("\n")[0]
    version = _VERSION.search(line)
    cdi = {}
    for path in sorted(path for pattern in specs for path in glob.glob(pattern)):
        named = sorted(set(_IN_SPEC.findall(proc.read_text(path))))
        if named and "nvidia" in os.path.basename(path):
            cdi[path] = named
    return {
        "module": version[1] if version else None,
        "libraries": _libraries(libraries),
        "cdi": cdi,
    }
