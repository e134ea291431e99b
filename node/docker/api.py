"""The Docker engine, read through its unix socket (Engine API; no docker command is needed)."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from node.core import proc
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import each, environment
from node.rules import secret
from node.rules.text import DOCKER_SOCKET

# The docker clients that run under a unit: they hold what they start in a container.
#
# A container's process shows its container alone; that a unit runs it by `docker exec`, and starts
# it
# again when the container is stopped, shows in the client.

_VERBS = frozenset(("exec", "run", "start", "attach", "restart"))


class Client(NamedTuple):
    """A docker client: the unit of its cgroup and the words of its command line."""

    unit: str
    words: frozenset[str]


def docker_clients() -> list[Client]:
    """Gives the clients that start or hold something, of those that a unit runs."""
    found: list[Client] = []
    for pid in proc.pids():
        argv = proc.argv(pid)
        if not argv or os.path.basename(argv[0]) != "docker" or not _VERBS & set(argv[1:]):
            continue
        unit = proc.unit_of(proc.cgroup(pid))
        if unit is not None:
            found.append(Client(unit, frozenset(argv[1:])))
    return found


def units_of(clients: list[Client], name: str, identifier: str) -> list[str]:
    """Gives the units whose clients name a container, by its name or the begin of its id."""
    return sorted({
        client.unit for client in clients
        if name in client.words
        or any(len(word) >= 12 and identifier.startswith(word) for word in client.words)
    })  # fmt: skip


# How a docker gives GPUs to its containers: runtimes, CDI devices, the hooks behind `--gpus`.

# docker looks them up on its PATH when it starts (moby, daemon/devices_nvidia_linux.go)
HOOKS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
PID_FILE = "/var/run/docker.pid"
_KIND = re.compile(r'^kind:\s*"?([\w.-]+/[\w.-]+)', re.M)
_NAME = re.compile(r'^\s*(?:-\s+)?name:\s*"?([\w.-]+)', re.M)
# /info lists the devices from 28.2 on (API 1.50), and none where there are none
_LISTS = (28, 2)


def gpu_access(info: Json) -> Json:
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


# HTTP over the Docker engine's socket: one call, quickly, and a connection that sends a stream.

LOOK_EVERY_S = 1.0
Look = Callable[[], None]


def exchange(
    socket_path: str, method: str, path: str, timeout_s: float, body: bytes = b""
) -> tuple[int, bytes]:
    """Gives status and body of one call; `body` is JSON, or nothing.

    Raises OSError, and ValueError for an answer that is cut, or none.
    """
    # HTTP/1.0: no chunks, and the end of the stream is the answer's
    ask = f"{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    ask += "Content-Type: application/json\r\n\r\n" if body else "\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(socket_path)
        connection.sendall(ask.encode("ascii") + body)
        raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, blank, said = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if not blank or len(words) < 2 or not words[0].startswith("HTTP/"):
        raise ValueError("no HTTP answer")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length" and int(value) != len(said):
            raise ValueError("the answer is cut")
    return int(words[1]), said


def connect(path: str, timeout_s: float, look: Look) -> Any:
    """Gives an http.client connection to a unix socket.

    `look` is called about once a second while docker keeps it waiting, and ends that by what it
    raises. `timeout_s` is the longest that docker may say, and take, nothing. Raises OSError.
    """
    # here: it imports ssl and email, which would cost every snapshot 18 ms
    import http.client

    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = _Looking(timeout_s, look)
    connection.sock.connect(path)
    return connection


class _Looking(socket.socket):
    """A unix socket that looks around while it waits. Raises socket.timeout, and what `look` does.

    A timeout of the socket itself would not do: what was sent by then, and what was read, is lost.
    """

    def __init__(self, timeout_s: float, look: Look) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wait_s, self._look = timeout_s, look
        self.settimeout(timeout_s)

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data)
        while left:
            wait(self.fileno(), select.POLLOUT, self._wait_s, self._look)
            left = left[self.send(left, flags) :]

    def makefile(self, *_: Any, **__: Any) -> Any:
        # A descriptor of its own: http.client closes the socket while the answer is still read.
        return io.BufferedReader(_Answer(os.dup(self.fileno()), self._wait_s, self._look))


class _Answer(io.RawIOBase):
    """What comes out of a descriptor, which it closes in the end."""

    def __init__(self, fd: int, timeout_s: float, look: Look) -> None:
        self._fd, self._wait_s, self._look = fd, timeout_s, look

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        wait(self._fd, select.POLLIN, self._wait_s, self._look)
        return os.readv(self._fd, [into])

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def wait(fd: int, event: int, timeout_s: float, look: Look) -> None:
    """Waits until a descriptor can be read or written, and looks about once a second.

    Raises socket.timeout, and what `look` raises.
    """
    poll = select.poll()
    poll.register(fd, event)
    deadline = time.monotonic() + timeout_s
    while True:
        look()
        if poll.poll(LOOK_EVERY_S * 1000):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")


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


def call_docker(method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
    """Gives status and body of one call. Raises CannotRead when docker does not answer."""
    try:
        return exchange(SOCKET, method, path, timeout_s, body)
    except TimeoutError:
        raise CannotRead(f"docker did not answer in {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise CannotRead(f"docker at {SOCKET}: {error}") from None


def ask(method: str, path: str, timeout_s: float, document: Json) -> tuple[int, str]:
    """Gives status and text of one call with a JSON body; docker's message where it refuses.

    Raises CannotRead when docker does not answer.
    """
    status, raw = call_docker(method, path, timeout_s, json.dumps(document).encode())
    said = raw.decode("utf-8", "replace").strip()
    if status < 400:
        return status, said
    try:
        return status, str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return status, said[:200]


def get(path: str, absent_ok: bool = False) -> Any:
    """Gives the JSON of one GET, or None for a 404 when `absent_ok`. Raises CannotRead."""
    status, body = call_docker("GET", path, TIMEOUT_S)
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
        "argv": list(secret.masked_argv([row.get("Path") or "", *(row.get("Args") or [])])),
        "environ": secret.watched_environ(environ),
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
        "labels": secret.masked_labels(config.get("Labels") or {}),
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


def read_docker(images: list[str]) -> Json:
    """Gives the engine, the named images that are there, and all containers."""
    if not os.path.exists(SOCKET):
        raise CannotRead(f"no {SOCKET}: docker is not installed or not running")
    # Not /version as well: docker starts runc for it, and /info tells the version, too.
    asked = ["/info", "/containers/json?all=1"]
    asked += [f"/images/{quote(name, safe='/:@')}/json" for name in images]
    info, listed, *rows = each(lambda p: get(p, absent_ok=p.startswith("/images/")), asked, 4)
    containers = each(_container, [str(row["Id"]) for row in listed], 4)
    held = docker_clients() if containers else []
    for box in filter(None, containers):
        box["held_by"] = units_of(held, str(box["name"]), str(box["id"]))
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
        **gpu_access(info),
    }


# The few things that the engine's unit does to its own container (Docker Engine API).

# docker answers a forced removal when the processes are gone, which a stuck driver delays
REMOVE_TIMEOUT_S = 60.0
PING_TIMEOUT_S = 5.0


def call_said(method: str, path: str, timeout_s: float) -> tuple[int, str]:
    """Gives status and message of one API call. Raises CannotRead when docker does not answer."""
    status, body = call_docker(method, path, timeout_s)
    try:
        said = str(json.loads(body.decode("utf-8"))["message"])
    except (ValueError, KeyError, TypeError):
        said = ""
    return status, said


def daemon_answers() -> bool:
    """Gives True when docker takes requests."""
    try:
        return call_said("GET", "/_ping", PING_TIMEOUT_S)[0] == 200
    except CannotRead:
        return False


def _require_answer() -> None:
    """Asks for a ping before a call that may wait for a minute. Raises CannotRead.

    docker.socket takes connections while no docker runs, and a docker that died is started again
    only when the engine's unit has ended: a caller inside that unit would wait for itself.
    """
    if not daemon_answers():
        raise CannotRead("docker does not answer")


def is_running(name: str) -> bool:
    """Gives True while a container of that name runs. Raises CannotRead."""
    row = get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return row is not None and bool(row["State"].get("Running"))


def identifier(name: str) -> str | None:
    """Gives the id of a container of that name; None when there is none. Raises CannotRead."""
    row = get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return None if row is None else str(row["Id"])


def stop_container(name: str, grace_s: int) -> bool:
    """Ends a container: TERM, after `grace_s` seconds KILL; gives False when none ran.

    Raises CannotRead, and NodeError (`container`) with docker's own words.
    """
    _require_answer()
    path = f"/containers/{quote(name, safe='')}/stop?t={grace_s}"
    status, said = call_said("POST", path, grace_s + 20.0)
    if status not in (204, 304, 404):
        raise NodeError(f"docker stop {name}: {status} {said}", "container")
    return status == 204


def remove_container(name: str) -> bool:
    """Removes a container, running or not; gives False when there was none.

    Raises CannotRead, and NodeError (`container`) when it is still there after a minute.
    """
    _require_answer()
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    path = f"/containers/{quote(name, safe='')}?force=true"
    removed = False
    while True:
        status, said = call_said("DELETE", path, REMOVE_TIMEOUT_S)
        if status == 404:
            return removed
        removed = True
        if status == 204:
            return True
        # 409: --rm removes it at this moment
        if time.monotonic() > deadline:
            raise NodeError(f"docker rm -f {name}: {status} {said}", "container")
        time.sleep(0.5)
