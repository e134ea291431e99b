"""How a docker gives GPUs to its containers: runtimes, CDI devices, the hooks behind `--gpus`."""

from __future__ import annotations

import json
import os
import re

from node.core import proc
from node.core.errors import Json
from node.core.run import environment

# docker looks them up on its PATH when it starts (moby, daemon/devices_nvidia_linux.go)
HOOKS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
PID_FILE = "/var/run/docker.pid"
_KIND = re.compile(r'^kind:\s*"?([\w.-]+/[\w.-]+)', re.M)
_NAME = re.compile(r'^\s*(?:-\s+)?name:\s*"?([\w.-]+)', re.M)
# /info lists the devices from 28.2 on (API 1.50), and none where there are none
_LISTS = (28, 2)


def read(info: Json) -> Json:
    """Gives the part of the docker section that is about GPUs, of /info. Raises OSError."""
    return {
        "runtimes": sorted(info.get("Runtimes") or {}),
        "default_runtime": str(info.get("DefaultRuntime") or ""),
        "cdi_devices": sorted(_devices(info)),
        "gpu_hooks": [name for name in HOOKS if _on_path(name)],
    }


def _on_path(name: str) -> bool:
    """Gives True for a program on dockerd's own PATH; where that cannot be read, on ours."""
    pid = proc.read_bytes(PID_FILE)
    path = proc.environ(int(pid)).get("PATH") if pid and pid.strip().isdigit() else None
    folders = (path or environment()["PATH"]).split(":")
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders)


def _devices(info: Json) -> set[str]:
    """Gives the CDI devices that docker knows, such as nvidia.com/gpu=all.

    An older docker does not list them: then those in the spec files of its CDISpecDirs, which it
    names only where CDI is on.
    """
    version = tuple(map(int, re.findall(r"\d+", str(info.get("ServerVersion", "")))[:2]))
    if version >= _LISTS:
        rows = info.get("DiscoveredDevices") or []
        return {str(row["ID"]) for row in rows if row.get("Source") == "cdi"}
    found: set[str] = set()
    for folder in info.get("CDISpecDirs") or []:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if name.endswith((".yaml", ".json")):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    found.update(_specified(file.read(1 << 20)))
    return found


def _specified(text: str) -> list[str]:
    """Gives the devices of a CDI spec, which is JSON or what nvidia-ctk writes as YAML."""
    try:
        spec = json.loads(text)
        return [f"{spec['kind']}={row['name']}" for row in spec["devices"]]
    except (ValueError, KeyError, TypeError):
        return [f"{kind}={name}" for kind in _KIND.findall(text) for name in _NAME.findall(text)]
