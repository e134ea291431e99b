"""All that the gates read of a host, in one verb; network and RDMA."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from node import gpus, health, host_files, processes, units
from node.change import journal
from node.core import dirfd, files, proc, validate
from node.core.errors import CannotRead, Json, guarded, installed_version
from node.core.run import TimedOut, each, run
from node.docker import api, store
from node.transfer import manifest

# One document of what a host is; a section that cannot be read says why.

# RDMA devices as the kernel shows them: device, port, netdev, state, rate and GID table.
#
# Format: Documentation/ABI/stable/sysfs-class-infiniband. An empty GID has the type that its file
# refuses to tell (EINVAL), or reads as zeros; it is left out.

ROOT = "/sys/class/infiniband"
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def _rdma_names(folder: str) -> list[str]:
    """Gives a folder's names, numbers in their order; none where there is no such folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))


def _gids(port: str) -> list[Json]:
    """Gives the filled rows of a port's GID table."""
    rows: list[Json] = []
    for index in _rdma_names(f"{port}/gids"):
        gid = proc.read_text(f"{port}/gids/{index}")
        if gid and gid != _EMPTY:
            kind = proc.read_text(f"{port}/gid_attrs/types/{index}")
            netdev = proc.read_text(f"{port}/gid_attrs/ndevs/{index}")
            rows.append(
                {"index": int(index), "gid": gid, "kind": kind or None, "netdev": netdev or None}
            )
    return rows


def _value(text: str) -> str | None:
    """Gives the word of `4: ACTIVE`."""
    return text.partition(":")[2].strip() or None


def _rate(text: str) -> float | None:
    """Gives the Gbit/s of `200 Gb/sec (4X HDR)`."""
    word = text.partition(" ")[0]
    return float(word) if word.replace(".", "", 1).isdigit() else None


def read_rdma(root: str = ROOT) -> list[Json]:
    """Gives every port of every RDMA device; none on a host without them.

    `netdev` is the network device that carries the port, None where the kernel names none.
    """
    found: list[Json] = []
    for device in _rdma_names(root):
        netdevs = _rdma_names(f"{root}/{device}/device/net")
        card = {
            "board": proc.read_text(f"{root}/{device}/board_id") or None,
            "firmware": proc.read_text(f"{root}/{device}/fw_ver") or None,
        }
        for number in _rdma_names(f"{root}/{device}/ports"):
            port = f"{root}/{device}/ports/{number}"
            gids = _gids(port)
            named = next((row["netdev"] for row in gids if row["netdev"]), None)
            found.append(
                {
                    **card,
                    "device": device,
                    "port": int(number),
                    "netdev": netdevs[0] if len(netdevs) == 1 else named,
                    "state": _value(proc.read_text(f"{port}/state")),
                    "link": _value(proc.read_text(f"{port}/phys_state")),
                    "rate_gbit": _rate(proc.read_text(f"{port}/rate")),
                    "link_layer": proc.read_text(f"{port}/link_layer") or None,
                    "gids": gids,
                }
            )
    return found


# Links, RDMA devices and how the peers are reached.

TIMEOUT_S = 5.0
REACH_S = 2.5
_OVERHEAD = {4: 28, 6: 48}  # IP header + ICMP header, in bytes


def _ip(*words: str) -> Any:
    """Gives the JSON of an `ip` command. Raises CannotRead with its message."""
    try:
        done = run(["ip", "-j", *words], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("ip not found: install iproute2") from None
    if done.rc != 0:
        raise CannotRead(f"ip {' '.join(words)}: {done.last_line()}")
    return json.loads(done.out or "[]")


def bond_slaves_down(text: str) -> tuple[str, ...]:
    """Gives the slaves that /proc/net/bonding/NAME reports as not up."""
    down: list[str] = []
    slave: str | None = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Slave Interface":
            slave = value.strip()
        elif key == "MII Status" and slave and value.strip() != "up":
            down.append(slave)
    return tuple(down)


def _speed(name: str) -> int | None:
    """Gives a link's speed in Mbit/s, or None where the driver does not say."""
    text = proc.read_text(f"/sys/class/net/{name}/speed")
    return int(text) if text.isdigit() else None


def links(rows: list[Json]) -> list[Json]:
    """Gives the links of `ip -j -d addr`."""
    found: list[Json] = []
    for row in rows:
        name = str(row["ifname"])
        slaves = sorted(str(other["ifname"]) for other in rows if other.get("master") == name)
        found.append(
            {
                "name": name,
                "kind": (row.get("linkinfo") or {}).get("info_kind"),
                "state": str(row.get("operstate", "UNKNOWN")),
                "carrier": "LOWER_UP" in row.get("flags", []),
                "mtu": int(row["mtu"]),
                "mac": row.get("address"),
                "addresses": [
                    f"{info['local']}/{info['prefixlen']}"
                    for info in row.get("addr_info", [])
                    if "local" in info
                ],
                "speed_mbit": _speed(name),
                "master": row.get("master"),
                "slaves": slaves,
                "bond_slaves_down": list(
                    bond_slaves_down(proc.read_text(f"/proc/net/bonding/{name}"))
                ),
            }
        )
    return found


def _ping(peer: str, device: str, mtu: int) -> tuple[bool | None, str]:
    """Send a full-size unfragmented ping, at most twice; gives the answer and a line about it."""
    version = 6 if ":" in peer else 4
    size = mtu - _OVERHEAD[version]
    argv = ["ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(size), "-I", device, peer]
    detail = ""
    for _ in range(2):
        try:
            done = run(argv, 3.0)
        except FileNotFoundError:
            return None, "ping not found"
        except TimedOut as error:
            detail = str(error)
            continue
        if done.rc == 0:
            return True, f"{size} bytes unfragmented through {device}"
        said = [line for line in (done.out + done.err).splitlines() if "essage too long" in line]
        detail = said[0].strip() if said else f"no answer to {size} bytes through {device}"
    return False, detail


def probe(peer: str, device: str | None, mtu: int | None, rows: list[Json]) -> Json:
    """Gives the route to a peer and whether a full-size ping gets there.

    The ping leaves by `device` (else by the route's), with `mtu` bytes (else the device's MTU).
    """
    answer: Json = {
        "address": peer,
        "route_device": None,
        "route_source": None,
        "full_size_ping": None,
    }
    try:
        routes = _ip("route", "get", peer)
    except CannotRead as error:
        return {**answer, "detail": str(error)}
    if not routes or not routes[0].get("dev"):
        return {**answer, "detail": f"no route to {peer}"}
    answer.update(route_device=routes[0]["dev"], route_source=routes[0].get("prefsrc"))
    out = device or str(routes[0]["dev"])
    known = {str(row["ifname"]): int(row["mtu"]) for row in rows}
    if out not in known:
        return {**answer, "detail": f"no device {out}"}
    answer["full_size_ping"], detail = _ping(peer, out, mtu or known[out])
    return {**answer, "detail": detail}


def reach(ask: Json) -> Json:
    """Gives what a TCP connection to a peer's port meets; nothing is sent over one that opens.

    A packet that a firewall drops has no answer, not even the second SYN that follows after 1 s.
    """
    state, detail = "open", "somebody listens there"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(REACH_S)
        try:
            if ask["device"]:
                option = getattr(socket, "SO_BINDTODEVICE", 25)
                sock.setsockopt(socket.SOL_SOCKET, option, ask["device"].encode() + b"\0")
            sock.connect((ask["address"], ask["port"]))
        except ConnectionRefusedError:
            state, detail = "refused", "nobody listens there"
        except TimeoutError:
            state, detail = "filtered", f"no answer in {REACH_S:g} s"
        except OSError as error:
            state, detail = "no-way", error.strerror or str(error)
    return {**ask, "state": state, "detail": detail}


def read_network(
    device: str | None, mtu: int | None, peers: list[str], asked: Sequence[Json] = ()
) -> Json:
    """Gives links, RDMA ports and one probe for each peer and each port, all at once."""
    rows = _ip("-d", "addr")
    reached = each(reach, list(asked), 8)
    probes = each(lambda peer: probe(peer, device, mtu, rows), peers, 8)
    return {"links": links(rows), "rdma": read_rdma(), "peers": probes, "reach": reached}


# What this host's watch last saw of its engine (node/watch keeps it), where one is installed.

# node/engine/silence.py has the same; it is the watch's own, and its program may be another version
CONFIG = "/etc/rigbook/watch.json"


def read_watch() -> Json | None:
    """Gives the state of the last look; None where no watch is installed or it never looked.

    Raises CannotRead when the state is no JSON object, OSError when it cannot be read.
    """
    path = os.path.join(files.state_root(), "watch", "state.json")
    if not os.path.lexists(os.environ.get("RIGBOOK_WATCH") or CONFIG):
        return None
    try:
        with proc.waiting_for(path), open(path, "rb") as file:
            state = json.loads(file.read(1 << 20))
    except FileNotFoundError:
        return None
    except ValueError:
        raise CannotRead(f"{path} is not JSON") from None
    if not isinstance(state, dict):
        raise CannotRead(f"{path} is not an object")
    silence = state.get("silence") or {}
    return {
        "status": str(state.get("status")),
        "looked_unix_s": float(state.get("looked_unix_s") or 0),
        "silent": silence.get("reason"),
        "evidence": silence.get("evidence"),
        "restarts": list(silence.get("restarts") or []),
        "stood_down_unix_s": silence.get("stood_down_unix_s"),
    }


# The weights folders that the request names.

MAX_FILES = 20000
MAX_INDEX = 64 << 20
MAX_HEADER = 100_000_000
# a vocabulary of a million words is half of it
MAX_GGUF_HEADER = 64 << 20
_INDEX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')


def _inside(folder: str, path: str) -> bool:
    """Gives True when a path, links resolved, stays in the folder (links resolved)."""
    return os.path.realpath(path).startswith(folder.rstrip("/") + "/")


def _weights_names(folder: str) -> tuple[list[str], int]:
    """Gives the regular files of a folder, sorted, and how many are links into the blobs of the
    Hugging Face cache that it is a snapshot of. Another link that leads out is not followed.
    """
    found: list[str] = []
    cache, linked = manifest.root_of(folder) or folder, 0
    for here, folders, names in os.walk(folder):
        # our own folder beside the weights: parts, and what a change replaced
        folders[:] = [name for name in folders if name != manifest.OWN or here != folder]
        for name in names:
            path = os.path.join(here, name)
            if os.path.isfile(path) and (not os.path.islink(path) or _inside(cache, path)):
                found.append(os.path.relpath(path, folder))
                linked += not _inside(folder, path)
        if len(found) > MAX_FILES:
            raise CannotRead(f"{folder} holds more than {MAX_FILES} files: not a weights folder")
    return sorted(found), linked


def _file(folder: str, name: str, deep: bool, known: Json) -> Json:
    """Gives one file: size, first 16 bytes, the hash of its ends, what its header says, its sha256
    when deep or when it is known from an earlier reading."""
    with open(os.path.join(folder, name), "rb") as file:
        info = os.fstat(file.fileno())
        size = info.st_size
        probe = manifest.probe_of(file.fileno(), size)
        magic = file.read(16)
        digest = manifest.hash_that_holds(known.get(name, {}), info)
        if deep:
            sha, read = hashlib.sha256(magic), len(magic)
            with dirfd.Passing(file.fileno()) as passing:
                for chunk in iter(lambda: file.read(1 << 22), b""):
                    sha.update(chunk)
                    read += len(chunk)
                    passing.upto(read)
            digest = sha.hexdigest()
        says, broken = None, None
        if name.endswith(_SUFFIX):
            says = _header_says(file.fileno(), magic, size)
        elif magic.startswith(b"GGUF"):
            try:
                says = manifest.gguf(file, size, MAX_GGUF_HEADER)[1]
            except manifest.BrokenModel as error:
                broken = str(error)
    row = {"name": name, "size": size, "magic": magic.hex(), "sha256": digest, "probe": probe}
    return {**row, "header_says": says, "broken": broken}


def _header_says(fd: int, magic: bytes, size: int) -> int | None:
    """Gives the length that a safetensors header gives its file, or None where it gives none.

    8 bytes of length, a JSON header, then the tensors: the last one's end is the file's.
    """
    length = int.from_bytes(magic[:8], "little")
    if len(magic) < 10 or not 2 <= length <= MAX_HEADER or magic[8:9] != b"{":
        return None
    header = os.pread(fd, length, 8) if 8 + length <= size else b""
    ends = [int(end) for end in _OFFSETS.findall(header)]
    return 8 + length + max(ends) if ends else (8 + length if size < 8 + length else None)


def _missing(folder: str, names: list[str]) -> list[str]:
    """Gives the shards that an index names and the folder lacks, sorted."""
    there, missing = set(names), set()
    for index in (name for name in names if name.endswith(_INDEX)):
        for shard in _shards(os.path.join(folder, index)):
            relative = os.path.normpath(os.path.join(os.path.dirname(index), shard))
            if relative not in there:
                missing.add(relative)
    return sorted(missing)


def _shards(index: str) -> set[str]:
    """Gives the file names of an index's weight_map. Raises CannotRead when it is damaged."""
    try:
        if os.path.getsize(index) > MAX_INDEX:
            raise CannotRead(f"{index} is larger than {MAX_INDEX >> 20} MiB")
        with open(index, encoding="utf-8") as file:
            return {str(shard) for shard in json.load(file)["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CannotRead(f"{index} is not a safetensors index") from None


def _one(path: str, deep: bool) -> Json:
    """Gives one weights folder, or one file as a folder of one."""
    found = manifest.snapshot_of(path)
    where: Json = {"path": path, "folder": found}
    try:
        is_file = stat.S_ISREG(os.stat(found).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return {**where, "exists": False, "files": [], "missing_shards": [],
                "incomplete": None, "displaced": []}  # fmt: skip
    real = os.path.realpath(found)
    folder, names = os.path.split(real) if is_file else (real, "")
    listed, linked = ([names], 0) if is_file else _weights_names(real)
    jobs: list[tuple[str, str]] = [(folder, name) for name in listed]
    known = manifest.Folder(real).known()
    files = each(lambda job: _file(job[0], job[1], deep, known), jobs, min(4, os.cpu_count() or 1))
    missing = [] if is_file else _missing(folder, listed)
    return {
        **where,
        "exists": True,
        "linked": linked,
        "files": files,
        "missing_shards": missing,
        "incomplete": manifest.incomplete(real),
        "displaced": manifest.displaced_sets(real),
    }


def read_weights(paths: list[str], deep: bool) -> list[Json]:
    """Gives the named weights, in their order; sha256 only when `deep`."""
    return [_one(path, deep) for path in paths]


# snapshot: one read-only document about the host (schema/snapshot.py is its type).

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
        ("gpus", 15.0, gpus.read_gpus),
        ("docker", 20.0, lambda: api.read_docker(r["images"])),
        ("units", 15.0, lambda: units.read_units(r["units"])),
        ("cron", 10.0, units.read_cron),
        ("network", 15.0, lambda: read_network(*peers)),
        ("weights", deep, lambda: read_weights(r["weights"], r["deep"])),
        ("files", 20.0, lambda: host_files.read_files(r["files"])),
        ("image_files", 20.0, lambda: store.read_image_files(r["image_files"])),
        ("venvs", 20.0, lambda: host_files.read_venvs(r["venvs"])),
        ("disks", DISKS_S, lambda: host_files.disks_of_files(r["disks"])),
        ("health", 15.0, health.read_health),
        ("memory", 10.0, gpus.read_memory),
        ("shm", 20.0, lambda: processes.read_shm(opened())),
        ("engine_processes", 20.0, processes.read_processes),
        ("ports", 20.0, lambda: processes.read_ports(opened())),
        ("connections", 20.0, lambda: processes.connections(opened(), r["connections"])),
        ("sysctls", 10.0, lambda: gpus.memory_sysctls(r["sysctls"])),
        ("journal", 10.0, journal.summary_section),
        ("watch", 10.0, read_watch),
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
        found = _Job("docker's disks", DISKS_S, lambda: host_files.disks_of_files(more)).answer()
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
    who = host_files.read_identity()
    answers: Json = {name: job.answer() for name, job in jobs}
    _add_docker_root(answers)
    return {
        "format": 1,
        "identity": who,
        **answers,
        "node_version": installed_version(),
        "took_s": round(time.monotonic() - started, 4),
    }
