"""The containers that hold an engine, or were made to, and how each was made."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from node.core import masking, proc
from node.core.errors import CannotRead, Json
from node.docker import api
from node.former.engines import OURS
from node.rules.secret import MASK

MAX_CHANGED = 30
# main processes that only wait for `docker exec`; a shell or an init may start one of them
_WAITS = ("sleep", "tail", "pause", "cat", "earlyoom")
_SHELLS = ("bash", "sh", "tini", "docker-init", "dumb-init")
_WAITING = re.compile(r"\b(?:sleep|tail|pause|earlyoom)\b")
# what a running engine writes, and what docker itself puts there
_WRITTEN = ("/tmp", "/var", "/run", "/proc", "/sys", "/dev", "/root/.cache", "/root/.triton",
            "/root/.config", "/root/.nv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
            "/etc/mtab", "/root/.bash_history")  # fmt: skip
# keys of HostConfig that change what an engine may do and that a recipe has none for
_OPTIONS = {
    "CapAdd": "--cap-add", "CapDrop": "--cap-drop", "Devices": "--device",
    "SecurityOpt": "--security-opt", "Ulimits": "--ulimit", "ExtraHosts": "--add-host",
    "Dns": "--dns", "GroupAdd": "--group-add", "Memory": "--memory", "NanoCpus": "--cpus",
    "CpusetCpus": "--cpuset-cpus", "PidMode": "--pid", "Tmpfs": "--tmpfs", "PidsLimit":
    "--pids-limit", "OomScoreAdj": "--oom-score-adj", "Sysctls": "--sysctl",
}  # fmt: skip
_DEFAULT_SHM = 64 << 20


def environment(rows: Sequence[str] | None) -> dict[str, str]:
    """Gives NAME=VALUE rows as a map, sorted, with the values of secrets masked."""
    pairs = dict(row.partition("=")[::2] for row in rows or [])
    return {
        name: MASK if masking.is_secret(name, pairs[name]) else pairs[name]
        for name in sorted(pairs)
    }


def waits(main: Sequence[str]) -> bool:
    """Gives True for a container whose main process only waits for `docker exec`."""
    text = " ".join(main)
    if not main or "vllm" in text:
        return False
    program = os.path.basename(main[0])
    shell = program in _SHELLS and (len(main) == 1 or _WAITING.search(text))
    return program in _WAITS or bool(shell)


def _words(value: Any) -> str:
    """Gives an option's value in words."""
    rows = value if isinstance(value, list) else [value]
    named = (row.get("PathOnHost") or row.get("Name") if isinstance(row, dict) else row
             for row in rows)  # fmt: skip
    return ",".join(str(row) for row in named)


def _options(config: Json, host: Json) -> list[str]:
    """Gives what a recipe has no key for, as options of `docker run`."""
    found = [f"{option}={_words(host[key])}" for key, option in _OPTIONS.items() if host.get(key)]
    if config.get("User"):
        found.append(f"--user={config['User']}")
    return found


def _gpus(host: Json) -> bool:
    """Gives True where docker was asked for GPUs (--gpus, deploy.resources, a CDI device)."""
    for row in host.get("DeviceRequests") or []:
        capabilities = [name for group in row.get("Capabilities") or [] for name in group]
        if "gpu" in capabilities or row.get("Driver") in ("nvidia", "cdi"):
            return True
    return False


def upper_folder(pid: int) -> str | None:
    """Gives the folder of a running container's own layer, None where its root is no overlay.

    Docker's GET /containers/ID/changes says the same, and compares the whole image for it.
    """
    for line in proc.read_text(f"/proc/{pid}/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        if place.split()[4:5] == ["/"] and source.startswith("overlay "):
            options = source.split()[2].split(",")
            return next((o.partition("=")[2] for o in options if o.startswith("upperdir=")), None)
    return None


def _changed(pid: int) -> list[str]:
    """Gives the files that were put into a container by hand (docker cp, a patch), at most 30.

    Raises CannotRead.
    """
    top = upper_folder(pid)
    if top is None or not os.path.isdir(top):
        raise CannotRead("its root is no overlay that can be read")
    found: list[str] = []
    for folder, folders, files in os.walk(top):
        inside = folder[len(top) :]
        folders[:] = [f for f in sorted(folders) if not _own(f"{inside}/{f}")]
        found += [f"{inside}/{f}" for f in sorted(files) if not _own(f"{inside}/{f}")]
        if len(found) >= MAX_CHANGED:
            break
    return found[:MAX_CHANGED]


def _own(path: str) -> bool:
    """Gives True for what an engine and docker write by themselves."""
    return path.endswith("/__pycache__") or any(
        path == known or path.startswith(f"{known}/") for known in _WRITTEN
    )


def detail(row: Json, image: Json | None, changed: list[str]) -> Json:
    """Gives a FormerContainer of GET /containers/ID/json and its image's GET /images/ID/json."""
    config, host = row["Config"], row["HostConfig"]
    made = api.container(row)
    own = (image or {}).get("Config") or {}
    shm = int(host.get("ShmSize") or 0)
    policy = host.get("RestartPolicy") or {}
    return {
        "id": made["id"],
        "name": made["name"],
        "image": made["image"],
        "image_id": made["image_id"],
        "digests": sorted((image or {}).get("RepoDigests") or []),
        "tags": sorted((image or {}).get("RepoTags") or []),
        "state": made["state"],
        "main": made["argv"],
        "env": environment(config.get("Env")),
        "image_env": environment(own.get("Env")),
        "mounts": made["mounts"],
        "restart_policy": str(policy.get("Name") or "no"),
        "auto_remove": bool(host.get("AutoRemove")),
        "network_mode": made["network_mode"],
        "ipc_mode": made["ipc_mode"],
        "shm_bytes": 0 if shm == _DEFAULT_SHM or made["ipc_mode"] == "host" else shm,
        "privileged": made["privileged"],
        "runtime": str(host.get("Runtime") or ""),
        "gpus": _gpus(host),
        "labels": made["labels"],
        "other_options": _options(config, host),
        "changed": changed,
    }


def _inspect(identifier: str, unread: list[str], brief: bool) -> Json | None:
    """Gives one container, or None when it went meanwhile."""
    row = api.get(f"/containers/{identifier}/json", absent_ok=True)
    if row is None:
        return None
    image = api.get(f"/images/{quote(str(row.get('Image')), safe=':')}/json", absent_ok=True)
    pid, changed = int((row.get("State") or {}).get("Pid") or 0), []
    try:
        changed = _changed(pid) if pid and not brief else []
    except CannotRead as error:
        unread.append(f"files put into container {row['Name'].lstrip('/')}: {error}")
    return {**detail(row, image, changed), "pid": pid}


def read(
    holding: Collection[str], unread: list[str], brief: bool = False
) -> tuple[list[Json], set[str]]:
    """Gives the containers with one of these ids, and those with vLLM in name, image or command;
    and the ids of rigbook's own. What could not be read is added to `unread`. `brief`: without
    the files that were put into them.
    """
    ours: set[str] = set()
    if not os.path.exists(api.SOCKET):
        return [], ours
    try:
        listed = api.get("/containers/json?all=1")
        found = []
        for row in listed:
            name = str((row.get("Names") or [""])[0]).lstrip("/")
            told = " ".join((name, str(row.get("Image")), str(row.get("Command")))).lower()
            wanted = row["Id"] in holding or "vllm" in told
            if name.startswith(OURS):
                ours.add(str(row["Id"]))
            elif wanted:
                found.append(_inspect(str(row["Id"]), unread, brief))
    except CannotRead as error:
        unread.append(f"containers: {error}")
        return [], ours
    return sorted(filter(None, found), key=lambda box: str(box["name"])), ours
