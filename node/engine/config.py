"""What this host's engine is: /etc/rigbook/engine/node.json, which serve renders from the plan."""

from __future__ import annotations

import os
from typing import Any
from typing import NamedTuple
from node.core.errors import Json
from node.rules.text import is_http_url
from node.core import validate
from node.core import files


ENGINE_PATH = "/etc/rigbook/engine/node.json"
FORMAT = 1
_KEYS = (
    "format", "rig", "node", "role", "rank", "unit", "container", "image", "fabric", "peers",
    "master", "endpoint", "ports", "start_budget_s", "memory", "needs_nvidia", "weights",
)  # fmt: skip
_REMEDY = "run deploys/serve.py: it writes the file anew"


class Fabric(NamedTuple):
    """The link to the peers: device, our address on it, MTU in bytes, seconds to wait for it."""

    device: str
    address: str
    mtu: int
    wait_s: float


class Master(NamedTuple):
    """Where the ranks meet: the head's fabric address and the port that it listens on."""

    address: str
    port: int


class Endpoint(NamedTuple):
    """Where the head answers, and what is asked of it."""

    url: str
    model: str
    reasoning: bool
    chat_template_kwargs: Json


class Need(NamedTuple):
    """Memory that the start asks for: a share of each of `gpus` GPUs, and bytes on CPU rigs.

    `devices` are the GPUs that the engine gets, by index or UUID; None: all of them.
    """

    gpu_memory_utilization: float
    gpus: int
    cpu_bytes: int
    devices: tuple[str, ...] | None = None


class Venv(NamedTuple):
    """Where the engine is installed, who runs it, and which version it has to be (None: any)."""

    path: str
    user: str
    version: str | None


class Engine(NamedTuple):
    """This host's part of the engine; `fabric` and `master` are None on a rig of one node.

    It runs in a container (`container`, `image`) or in a venv; the other is None.
    """

    rig: str
    node: str
    role: str
    rank: int
    unit: str
    container: str | None
    image: str | None
    fabric: Fabric | None
    peers: tuple[str, ...]
    master: Master | None
    endpoint: Endpoint | None
    ports: tuple[int, ...]
    start_budget_s: float
    memory: Need
    needs_nvidia: bool
    weights: str
    venv: Venv | None = None


def engine_path() -> str:
    """Gives the file's path; RIGBOOK_ENGINE names another one (tests)."""
    return os.environ.get("RIGBOOK_ENGINE") or ENGINE_PATH


def load_engine() -> Engine:
    """Gives this host's engine. Raises NodeError (`engine_file`): one line with file and key."""
    return files.read_settings(engine_path(), parse_engine, "engine_file", _REMEDY)


def parse_engine(value: Any) -> Engine:
    """Gives the engine of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", (*_KEYS, "venv"), _KEYS)
    files.format_is(body, FORMAT)
    venv = _venv(body.get("venv"))
    if (venv is None) == (body["container"] is None):
        raise validate.bad("container and venv: one of them runs the engine")
    peers = [validate.address(row, f"peers[{n}]") for n, row in enumerate(_list(body, "peers"))]
    return Engine(
        rig=validate.text(body["rig"], "rig", 200),
        node=validate.text(body["node"], "node", 200),
        role=validate.choice(body["role"], "role", ("head", "worker")),
        rank=int(validate.number(body["rank"], "rank", 0, 63)),
        unit=validate.unit(body["unit"], "unit"),
        container=None if venv else validate.image(body["container"], "container"),
        image=None if venv else validate.image(body["image"], "image"),
        fabric=_fabric(body["fabric"]),
        peers=tuple(peers),
        master=_master(body["master"]),
        endpoint=None if body["endpoint"] is None else endpoint(body["endpoint"], "endpoint"),
        ports=tuple(_port(row, f"ports[{n}]") for n, row in enumerate(_list(body, "ports"))),
        start_budget_s=validate.number(body["start_budget_s"], "start_budget_s", 1, 7200),
        memory=_need(body["memory"]),
        needs_nvidia=validate.boolean(body["needs_nvidia"], "needs_nvidia"),
        weights=validate.path(body["weights"], "weights"),
        venv=venv,
    )


def _venv(value: Any) -> Venv | None:
    if value is None:
        return None
    row = validate.keys(value, "venv", Venv._fields, Venv._fields)
    version = row["version"]
    return Venv(
        validate.path(row["path"], "venv.path"),
        validate.text(row["user"], "venv.user", 200),
        None if version is None else validate.text(version, "venv.version", 200),
    )


def _list(body: Json, key: str) -> list[Any]:
    return validate.array(body[key], key, 64)


def _port(value: Any, where: str) -> int:
    return int(validate.number(value, where, 1, 65535))


def _fabric(value: Any) -> Fabric | None:
    if value is None:
        return None
    row = validate.keys(value, "fabric", Fabric._fields, Fabric._fields)
    return Fabric(
        validate.device(row["device"], "fabric.device"),
        validate.address(row["address"], "fabric.address"),
        int(validate.number(row["mtu"], "fabric.mtu", 576, 65535)),
        validate.number(row["wait_s"], "fabric.wait_s", 0, 86400),
    )


def _master(value: Any) -> Master | None:
    if value is None:
        return None
    row = validate.keys(value, "master", Master._fields, Master._fields)
    address = validate.address(row["address"], "master.address")
    return Master(address, _port(row["port"], "master.port"))


def _need(value: Any) -> Need:
    row = validate.keys(value, "memory", Need._fields, Need._fields[:3])
    share = validate.number(row["gpu_memory_utilization"], "memory.gpu_memory_utilization", 0, 1)
    gpus = int(validate.number(row["gpus"], "memory.gpus", 0, 64))
    size = int(validate.number(row["cpu_bytes"], "memory.cpu_bytes", 0, 1 << 50))
    given = row.get("devices")
    if given is None:
        return Need(share, gpus, size)
    names = validate.array(given, "memory.devices", 64)
    where = "memory.devices"
    return Need(share, gpus, size, tuple(validate.text(n, where, 100) for n in names))


def endpoint(value: Any, where: str) -> Endpoint:
    """Gives a checked endpoint of its JSON object."""
    row = validate.keys(value, where, Endpoint._fields, Endpoint._fields)
    kwargs = row["chat_template_kwargs"]
    if not isinstance(kwargs, dict):
        raise validate.bad(f"{where}.chat_template_kwargs is not an object")
    return Endpoint(
        http_url(row["url"], f"{where}.url"),
        validate.text(row["model"], f"{where}.model", 500),
        validate.boolean(row["reasoning"], f"{where}.reasoning"),
        kwargs,
    )


def http_url(value: Any, where: str) -> str:
    """Gives an http or https URL without blanks; a refusal does not quote it: it may be secret."""
    wrong = validate.bad(f"{where} is not an http or https URL: no blanks, no user name in it")
    if not isinstance(value, str) or not is_http_url(value):
        raise wrong
    return value


# /etc/rigbook/library.json: which library was swapped, the hashes that are known, the guard.

LIBRARY_PATH = "/etc/rigbook/library.json"
_STATE_KEYS = ("format", "rig", "node", "target", "original", "ours", "guard", "reapply", "webhook",
         "webhook_file")  # fmt: skip
_STATE_REMEDY = "run deploys/libvgpu.py: it writes the file anew"


class LibraryState(NamedTuple):
    """The swapped file, the hash that we found first, ours, and what the guard does.

    `reapply`: ours is put back when the plugin restored its own. The webhook is watch's kind.
    """

    rig: str
    node: str
    target: str
    original: str
    ours: str
    guard: bool
    reapply: bool
    webhook: str | None
    webhook_file: str | None


def library_path() -> str:
    """Gives the file's path; RIGBOOK_LIBRARY names another one (tests)."""
    return os.environ.get("RIGBOOK_LIBRARY") or LIBRARY_PATH


def parse_library(value: Any) -> LibraryState:
    """Gives the state of the file's content, every value checked. Raises NodeError."""
    body = validate.keys(value, "the file", _STATE_KEYS, _STATE_KEYS)
    files.format_is(body, FORMAT)
    url, file = body["webhook"], body["webhook_file"]
    return LibraryState(
        validate.text(body["rig"], "rig", 200),
        validate.text(body["node"], "node", 200),
        validate.path(body["target"], "target"),
        validate.sha256(body["original"], "original"),
        validate.sha256(body["ours"], "ours"),
        validate.boolean(body["guard"], "guard"),
        validate.boolean(body["reapply"], "reapply"),
        None if url is None else http_url(url, "webhook"),
        None if file is None else validate.path(file, "webhook_file"),
    )


def read_library() -> LibraryState | None:
    """Gives the state, or None where no library was swapped. Raises NodeError (`library_file`)."""
    if not os.path.lexists(library_path()):
        return None
    return files.read_settings(library_path(), parse_library, "library_file", _STATE_REMEDY)


def load_library() -> Json | None:
    """Gives what others may know of the state (not the webhook), or None."""
    found = read_library()
    if found is None:
        return None
    return {key: value for key, value in found._asdict().items() if not key.startswith("webhook")}
