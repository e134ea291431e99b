"""The Docker engine, read through its unix socket (Engine API; no docker command is needed)."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Optional
from urllib.parse import quote

from node.errors import CannotRead, Json
from node.snapshot import secrets

SOCKET = "/var/run/docker.sock"
TIMEOUT_S = 8.0
# what decides how a container of the image runs; the rest differs by store and engine version
_CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "Shell", "StopSignal", "User",
    "Volumes", "WorkingDir",
)  # fmt: skip


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(path: str, absent_ok: bool = False) -> Any:
    """Gives the JSON of one GET, or None for a 404 when `absent_ok`. Raises CannotRead."""
    connection = Connection(SOCKET)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except socket.timeout:
        raise CannotRead(f"docker did not answer in {TIMEOUT_S:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise CannotRead(f"docker at {SOCKET}: {error}") from None
    finally:
        connection.close()
    if response.status == 404 and absent_ok:
        return None
    if response.status != 200:
        raise CannotRead(f"docker answered {response.status} to {path.split('?')[0]}")
    return json.loads(body)


def image(row: Json) -> Json:
    """Gives an image of GET /images/NAME/json.

    `config_sha256` is taken over the fields that decide how it runs, so it is the same for both
    image stores, whose `.Id` differ.
    """
    config = {key: (row.get("Config") or {}).get(key) for key in _CONFIG}
    known = {key: value for key, value in config.items() if value}
    known.update(Architecture=row.get("Architecture", ""), Os=row.get("Os", ""))
    canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return {
        "id": row["Id"],
        "tags": sorted(row.get("RepoTags") or []),
        "digests": sorted(row.get("RepoDigests") or []),
        "layers": list((row.get("RootFS") or {}).get("Layers") or []),
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "arch": str(row.get("Architecture", "")),
        "size": int(row.get("Size", 0)),
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
        "argv": list(secrets.masked_argv([row.get("Path") or "", *(row.get("Args") or [])])),
        "environ": secrets.watched_environ(environ),
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
        "labels": secrets.masked_labels(config.get("Labels") or {}),
    }


def _container(identifier: str) -> Optional[Json]:
    """Gives one container, or None when it went meanwhile."""
    row = get(f"/containers/{identifier}/json", absent_ok=True)
    return None if row is None else container(row)


def read(images: List[str]) -> Json:
    """Gives the engine, the named images that are there, and all containers."""
    if not os.path.exists(SOCKET):
        raise CannotRead(f"no {SOCKET}: docker is not installed or not running")
    with ThreadPoolExecutor(4) as pool:
        version = pool.submit(get, "/version")
        info = pool.submit(get, "/info")
        rows = pool.map(
            lambda name: get(f"/images/{quote(name, safe='/:@')}/json", absent_ok=True), images
        )
        listed = [str(row["Id"]) for row in get("/containers/json?all=1")]
        containers = [found for found in pool.map(_container, listed) if found]
        return {
            "version": str(version.result().get("Version", "")),
            "storage_driver": str(info.result().get("Driver", "")),
            "root": str(info.result().get("DockerRootDir", "")),
            "images": [image(row) for row in rows if row is not None],
            "containers": sorted(containers, key=lambda row: str(row["name"])),
        }
