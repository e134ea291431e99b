"""The Docker engine, read through its unix socket (Engine API; no docker command is needed)."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any
from urllib.parse import quote

from node.core import masking
from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.docker import clients, gpu_access, http
from node.rules.image_names import DOCKER_SOCKET

SOCKET = DOCKER_SOCKET
TIMEOUT_S = 8.0
# the last API version that says where any store keeps its layers
_TELLS_LAYERS = "1.51"
# what /info says of a docker that keeps its images in containerd (moby, daemon/containerd)
_CONTAINERD = ["driver-type", "io.containerd.snapshotter.v1"]
# containerd's folder where it runs as a service of its own, which both Debian's and Docker's
# packages make it; else docker starts one below its own root
_CONTAINERD_ROOT = "/var/lib/containerd"
# what decides how a container of the image runs; the rest differs by store and engine version
_CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "Shell", "StopSignal", "User",
    "Volumes", "WorkingDir",
)  # fmt: skip


def call(method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
    """Gives status and body of one call. Raises CannotRead when docker does not answer."""
    try:
        return http.exchange(SOCKET, method, path, timeout_s, body)
    except TimeoutError:
        raise CannotRead(f"docker did not answer in {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise CannotRead(f"docker at {SOCKET}: {error}") from None


def ask(method: str, path: str, timeout_s: float, document: Json) -> tuple[int, str]:
    """Gives status and text of one call with a JSON body; docker's message where it refuses.

    Raises CannotRead when docker does not answer.
    """
    status, raw = call(method, path, timeout_s, json.dumps(document).encode())
    said = raw.decode("utf-8", "replace").strip()
    if status < 400:
        return status, said
    try:
        return status, str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return status, said[:200]


def get(path: str, absent_ok: bool = False) -> Any:
    """Gives the JSON of one GET, or None for a 404 when `absent_ok`. Raises CannotRead."""
    status, body = call("GET", path, TIMEOUT_S)
    if status == 200:
        try:
            return json.loads(body)
        except ValueError as error:
            raise CannotRead(f"docker at {SOCKET}: {error}") from None
    if status == 404 and absent_ok:
        return None
    raise CannotRead(f"docker answered {status} to {path.split('?')[0]}")


def inspection(path: str) -> Any:
    """Gives docker's inspection of an image or a container with its GraphDriver; None for a 404.

    From API 1.52 on (Docker 29) it is left out where containerd keeps the images (moby#50893), and
    given to who asks for an older version (moby#51270). A docker that leaves it out knows 1.52, so
    1.51 is not above what it speaks. One that no longer answers 1.51 is taken at its word. Raises
    CannotRead.
    """
    row = get(path, absent_ok=True)
    if row is None or row.get("GraphDriver"):
        return row
    try:
        return get(f"/v{_TELLS_LAYERS}{path}")
    except CannotRead:
        return row


def config_sha256(config: Json, arch: str, system: str) -> str:
    """Gives a hash over the fields that decide how an image runs.

    So it is the same for both image stores, whose `.Id` differ.
    """
    known = {key: config[key] for key in _CONFIG if config.get(key)}
    known.update(Architecture=arch, Os=system)
    canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def image(row: Json) -> Json:
    """Gives an image of GET /images/NAME/json."""
    return {
        "id": row["Id"],
        "tags": sorted(row.get("RepoTags") or []),
        "digests": sorted(row.get("RepoDigests") or []),
        "layers": list((row.get("RootFS") or {}).get("Layers") or []),
        "config_sha256": config_sha256(
            row.get("Config") or {}, row.get("Architecture", ""), row.get("Os", "")
        ),
        "arch": str(row.get("Architecture", "")),
        "size": int(row.get("Size", 0)),
        "user": str((row.get("Config") or {}).get("User") or ""),
    }


def container(row: Json) -> Json:
    """Gives a container of GET /containers/ID/json; secrets are masked."""
    config, host, state = row["Config"], row["HostConfig"], row["State"]
    environ = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    return {
        "id": row["Id"],
        "name": str(row["Name"]).lstrip("/"),
        "image": str(config.get("Image", "")),
        "image_id": str(row.get("Image", "")),
        "state": str(state.get("Status", "")),
        "exit_code": int(state.get("ExitCode", 0)),
        "pid": int(state["Pid"]) if state.get("Pid") else None,
        "argv": list(masking.masked_argv([row.get("Path") or "", *(row.get("Args") or [])])),
        "environ": masking.watched_environ(environ),
        "restart_policy": str((host.get("RestartPolicy") or {}).get("Name") or "no"),
        "network_mode": str(host.get("NetworkMode", "")),
        "ipc_mode": str(host.get("IpcMode", "")),
        "privileged": bool(host.get("Privileged")),
        "init": bool(host.get("Init")),
        "mounts": [
            {
                "source": str(mount.get("Source", "")),
                "target": str(mount.get("Destination", "")),
                "read_only": not mount.get("RW", True),
            }
            for mount in sorted(row.get("Mounts") or [], key=lambda m: str(m.get("Destination")))
        ],
        "restarts": int(row.get("RestartCount", 0)),
        "labels": masking.masked_labels(config.get("Labels") or {}),
    }


def _container(identifier: str) -> Json | None:
    """Gives one container, or None when it went meanwhile."""
    row = get(f"/containers/{identifier}/json", absent_ok=True)
    return None if row is None else container(row)


def containerd(info: Json) -> str | None:
    """Gives the folder of the containerd image store from /info, None for a docker without it."""
    if _CONTAINERD not in (info.get("DriverStatus") or []):
        return None
    if os.path.isdir(os.path.join(_CONTAINERD_ROOT, "io.containerd.content.v1.content")):
        return _CONTAINERD_ROOT
    return os.path.join(str(info.get("DockerRootDir", "")), "containerd", "daemon")


def unpacked(found: Json) -> int:
    """Gives the bytes that an image of the containerd store takes without its compression.

    Its inspection counts the blobs as they came, compressed ones too; the list counts blobs and
    unpacked layers together.
    """
    size, names = int(found["size"]), (found["tags"] or found["digests"])[:1]
    wanted = quote(json.dumps({"reference": names}))
    for row in get(f"/images/json?filters={wanted}") if names else []:
        if row["Id"] == found["id"]:
            return max(size, int(row.get("Size", 0)) - size)
    return size


def read(images: list[str]) -> Json:
    """Gives the engine, the named images that are there, and all containers."""
    if not os.path.exists(SOCKET):
        raise CannotRead(f"no {SOCKET}: docker is not installed or not running")
    # Not /version as well: docker starts runc for it, and /info tells the version, too.
    asked = ["/info", "/containers/json?all=1"]
    asked += [f"/images/{quote(name, safe='/:@')}/json" for name in images]
    info, listed, *rows = each(lambda p: get(p, absent_ok=p.startswith("/images/")), asked, 4)
    containers = each(_container, [str(row["Id"]) for row in listed], 4)
    held = clients.read() if containers else []
    for box in filter(None, containers):
        box["held_by"] = clients.units_of(held, str(box["name"]), str(box["id"]))
    found = [image(row) for row in rows if row is not None]
    root = containerd(info)
    if root is not None:
        found = [{**row, "size": unpacked(row)} for row in found]
    return {
        "version": str(info.get("ServerVersion", "")),
        "storage_driver": str(info.get("Driver", "")),
        "root": str(info.get("DockerRootDir", "")),
        "images": found,
        "containers": sorted(filter(None, containers), key=lambda row: str(row["name"])),
        "containerd": root,
        **gpu_access.read(info),
    }
