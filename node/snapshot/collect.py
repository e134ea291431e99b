"""snapshot: one read-only document about the host (schema/observed/snapshot.py is its type)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from node.change import journal
from node.core import proc, validate
from node.core.errors import Json, guarded
from node.core.version import installed_version
from node.docker import api, image_files
from node.health import report as health
from node.snapshot import (
    cron,
    files,
    gpus,
    identity,
    memory,
    network,
    ports,
    processes,
    shm,
    units,
    venv,
    watch,
    weights,
)

Section = Callable[[], Any]
DEEP_TIMEOUT_S = 3600.0
DISKS_S = 10.0


def parse_request(request: Any) -> Json:
    """Gives a SnapshotRequest with every value checked and absent ones filled in."""
    lists: dict[str, Callable[[Any, str], str]] = {
        "files": validate.path,
        "units": validate.unit,
        "images": validate.image,
        "weights": validate.path,
        "peers": validate.address,
        "connections": validate.address,
        "disks": _any_path,
        "sysctls": validate.sysctl,
    }
    others = ("image_files", "venvs", "deep", "fabric_device", "fabric_mtu", "reach")
    body = validate.keys(request, "request", [*lists, *others])
    out: Json = {
        key: [one(v, f"{key}[{n}]") for n, v in enumerate(validate.array(body.get(key) or [], key))]
        for key, one in lists.items()
    }
    probes = validate.array(body.get("image_files") or [], "image_files")
    out["image_files"] = [_probe(probe, f"image_files[{n}]") for n, probe in enumerate(probes)]
    rows = validate.array(body.get("venvs") or [], "venvs")
    out["venvs"] = [_venv(row, f"venvs[{n}]") for n, row in enumerate(rows)]
    rows = validate.array(body.get("reach") or [], "reach", 100)
    out["reach"] = [_port(row, f"reach[{n}]") for n, row in enumerate(rows)]
    out["deep"] = validate.boolean(body.get("deep", False), "deep")
    device, mtu = body.get("fabric_device"), body.get("fabric_mtu")
    out["fabric_device"] = None if device is None else validate.device(device, "fabric_device")
    out["fabric_mtu"] = None if mtu is None else int(validate.number(mtu, "fabric_mtu", 576, 65535))
    return out


def _any_path(value: Any, where: str) -> str:
    """Gives an absolute path; here the root folder is one too."""
    return "/" if value == "/" else validate.path(value, where)


def _probe(value: Any, where: str) -> Json:
    """Gives a checked probe of a file inside an image."""
    names = ("image", "path", "contains")
    probe = validate.keys(value, where, names, names)
    image = probe["image"]
    # a venv's folder, or an image by its name
    in_folder = isinstance(image, str) and image.startswith("/")
    return {
        "image": (validate.path if in_folder else validate.image)(image, f"{where}.image"),
        "path": validate.path(probe["path"], f"{where}.path"),
        "contains": validate.text(probe["contains"], f"{where}.contains", 200),
    }


def _venv(value: Any, where: str) -> Json:
    """Gives a checked question about a venv."""
    names = ("path", "user")
    row = validate.keys(value, where, names, names)
    return {
        "path": validate.path(row["path"], f"{where}.path"),
        "user": validate.text(row["user"], f"{where}.user", 200),
    }


def _port(value: Any, where: str) -> Json:
    """Gives a checked question about a peer's port."""
    row = validate.keys(value, where, ("address", "port", "device"), ("address", "port"))
    device = row.get("device")
    return {
        "address": validate.address(row["address"], f"{where}.address"),
        "port": int(validate.number(row["port"], f"{where}.port", 1, 65535)),
        "device": None if device is None else validate.device(device, f"{where}.device"),
    }


def _sections(request: Json) -> list[tuple[str, float, Section]]:
    """Gives the sections: name, time limit in seconds, reader."""
    r = request
    peers = (r["fabric_device"], r["fabric_mtu"], r["peers"], r["reach"])
    deep = DEEP_TIMEOUT_S if r["deep"] else 20.0
    opened = _once(proc.open_files)
    return [
        ("gpus", 15.0, gpus.read),
        ("docker", 20.0, lambda: api.read(r["images"])),
        ("units", 15.0, lambda: units.read(r["units"])),
        ("cron", 10.0, cron.read),
        ("network", 15.0, lambda: network.read(*peers)),
        ("weights", deep, lambda: weights.read(r["weights"], r["deep"])),
        ("files", 20.0, lambda: files.read(r["files"])),
        ("image_files", 20.0, lambda: image_files.read(r["image_files"])),
        ("venvs", 20.0, lambda: venv.read(r["venvs"])),
        ("disks", DISKS_S, lambda: files.disks(r["disks"])),
        ("health", 15.0, health.read),
        ("memory", 10.0, memory.read),
        ("shm", 20.0, lambda: shm.read(opened())),
        ("engine_processes", 20.0, processes.read),
        ("ports", 20.0, lambda: ports.read(opened())),
        ("connections", 20.0, lambda: ports.connections(opened(), r["connections"])),
        ("sysctls", 10.0, lambda: memory.sysctls(r["sysctls"])),
        ("journal", 10.0, journal.summary_section),
        ("watch", 10.0, watch.read),
    ]


def _once(read: Callable[[], list[proc.Fd]]) -> Callable[[], list[proc.Fd]]:
    """Gives `read` for several threads: the first reads, the others wait for what it found."""
    lock = threading.Lock()
    kept: list[list[proc.Fd]] = []

    def once() -> list[proc.Fd]:
        with lock:
            if not kept:
                kept.append(read())
        return kept[0]

    return once


class _Job:
    """A section in a thread of its own, and its answer after at most `limit` seconds."""

    def __init__(self, name: str, limit: float, section: Section) -> None:
        self.limit, self.until = limit, time.monotonic() + limit
        self.found: list[Any] = []
        # daemon: a reader stuck in the kernel must not keep the program from ending
        self.thread = threading.Thread(
            target=lambda: self.found.append(guarded(section)), name=name, daemon=True
        )
        self.thread.start()

    def answer(self) -> Any:
        """Gives what was read, or that it is late, and what it waits for."""
        self.thread.join(max(0.0, self.until - time.monotonic()))
        path = proc.waits.get(self.thread.ident or 0)
        if self.found:
            return self.found[0]
        late = f"no answer in {self.limit:g} s"
        return {"unreadable": f"{late}: {_named(path)} does not answer" if path else late}


def _named(path: str) -> str:
    """Gives a path, and the process that it is about."""
    pid = path.split("/")[2] if path.startswith("/proc/") else ""
    stat = proc.stat(int(pid)) if pid.isdigit() else None
    return f"{path} (process {stat.comm}, state {stat.state})" if stat else path


def _add_docker_root(answers: Json) -> None:
    """Add the room where docker really keeps its things, which only its answer tells."""
    roots = [root for root in map(answers["docker"].get, ("root", "containerd")) if root]
    disks = answers["disks"]
    if isinstance(disks, list):
        more = [root for root in roots if all(row["path"] != root for row in disks)]
        found = _Job("docker's disks", DISKS_S, lambda: files.disks(more)).answer()
        answers["disks"] = disks + found if isinstance(found, list) else found


def collect(request: Any) -> Json:
    """Gives the snapshot. Raises NodeError for a bad request only.

    Each section has a thread and a time limit of its own: also a read of /proc or of a disk's room
    waits for as long as a process or a mount is stuck in the kernel.
    """
    started = time.monotonic()
    jobs = [
        (name, _Job(name, limit, read)) for name, limit, read in _sections(parse_request(request))
    ]
    # before what waits: the clocks of nodes that are asked at once are compared
    who = identity.read()
    answers: Json = {name: job.answer() for name, job in jobs}
    _add_docker_root(answers)
    return {
        "format": 1,
        "identity": who,
        **answers,
        "node_version": installed_version(),
        "took_s": round(time.monotonic() - started, 4),
    }
