"""Images read from docker's own folders."""

from __future__ import annotations

import base64
import contextlib
import glob
import gzip
import hashlib
import io
import json
import os
import posixpath
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from node.core.dirfd import BLOCK
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.rules.text import DIGEST

# A bbolt file (containerd's index of its snapshots), read while its owner goes on writing it.
#
# The format is that of go.etcd.io/bbolt (page.go, meta.go, bucket.go): pages with a B+ tree of
# sorted keys, buckets in buckets, two meta pages by turns. A commit writes pages that are free and
# the meta page last, so what is read between two equal looks at the meta pages is one state.

MAX_BOLTDB_BYTES = 256 << 20
_PAGE, _META = struct.Struct("<QHHI"), struct.Struct("<IIIIQQQQQQ")
_BRANCH, _LEAF = struct.Struct("<IIQ"), struct.Struct("<IIII")
_MAGIC, _VERSION = 0xED0CDAED, 2
_IS_BRANCH, _IS_LEAF, _IS_BUCKET = 1, 2, 1
_DEPTH, _TRIES = 32, 20
# those of the machines that Linux knows
_PAGE_SIZES = (4096, 262144)


class Bucket:
    """A bucket: its values and its buckets, by key."""

    def __init__(self, file: _File, root: int, page: bytes | None = None) -> None:
        self._file = file
        self._items: dict[bytes, tuple[bool, bytes]] = {}
        budget = _Budget(file)
        start = file.page(root, budget) if page is None else page
        for is_bucket, key, value in file.items(start, 0, budget):
            self._items[key] = (is_bucket, value)

    def names(self) -> list[bytes]:
        """Gives the keys of all it holds, in order."""
        return list(self._items)

    def value(self, key: bytes) -> bytes:
        """Gives a value; empty where there is none."""
        is_bucket, value = self._items.get(key, (False, b""))
        return b"" if is_bucket else value

    def bucket(self, *keys: bytes) -> Bucket:
        """Gives the bucket below this one. Raises CannotRead where there is none."""
        found = self
        for key in keys:
            is_bucket, value = found._items.get(key, (False, b""))
            if not is_bucket or len(value) < 16:
                raise CannotRead(f"{self._file.path}: no bucket {key.decode('latin-1')[:80]}")
            root = int.from_bytes(value[:8], "little")
            found = Bucket(self._file, root, None if root else value[16:])
        return found


class _Budget:
    """The bytes that a bucket's pages, and what they hold, may have in sum: no page is in a tree
    twice, and no two values share bytes."""

    def __init__(self, file: _File) -> None:
        self._path, self._pages, self._values = file.path, file.length, file.length

    def take(self, pages: int, values: int) -> None:
        """Notes what was read. Raises CannotRead for more than the file has."""
        self._pages -= pages
        self._values -= values
        if self._pages < 0 or self._values < 0:
            raise CannotRead(f"{self._path} is damaged: its pages overlap")


class _File:
    """One state of the file."""

    def __init__(self, path: str, raw: bytes, page_size: int) -> None:
        self.path, self._raw, self._size = path, raw, page_size

    @property
    def length(self) -> int:
        """Gives the file's length."""
        return len(self._raw)

    def page(self, number: int, budget: _Budget) -> bytes:
        """Gives a page with what overflows it."""
        start = number * self._size
        _, _, _, overflow = _PAGE.unpack_from(self._raw, start)
        size = (1 + overflow) * self._size
        budget.take(size, 0)
        return self._raw[start : start + size]

    def items(
        self, page: bytes, depth: int, budget: _Budget
    ) -> Iterator[tuple[bool, bytes, bytes]]:
        """Gives whether it is a bucket, key and value of all that lies below a page."""
        _, kind, count, _ = _PAGE.unpack_from(page)
        if depth > _DEPTH or not kind & (_IS_BRANCH | _IS_LEAF):
            raise CannotRead(f"{self.path} is damaged: a page of kind {kind}")
        for at in range(_PAGE.size, _PAGE.size + count * _LEAF.size, _LEAF.size):
            if kind & _IS_BRANCH:
                child = self.page(_BRANCH.unpack_from(page, at)[2], budget)
                yield from self.items(child, depth + 1, budget)
                continue
            flags, position, key_size, value_size = _LEAF.unpack_from(page, at)
            budget.take(0, key_size + value_size)
            key_end = at + position + key_size
            value = page[key_end : key_end + value_size]
            yield bool(flags & _IS_BUCKET), page[at + position : key_end], value


def _fnv(raw: bytes) -> int:
    found = 0xCBF29CE484222325
    for byte in raw:
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return found


def _newest(raw: bytes, at: int) -> tuple[int, int, int] | None:
    """Gives transaction, page size and root page of the meta page at an offset, if it is whole."""
    if len(raw) < at + _PAGE.size + _META.size:
        return None
    fields = _META.unpack_from(raw, at + _PAGE.size)
    summed = raw[at + _PAGE.size : at + _PAGE.size + _META.size - 8]
    if fields[:2] != (_MAGIC, _VERSION) or fields[9] != _fnv(summed):
        return None
    if not _PAGE_SIZES[0] <= fields[2] <= _PAGE_SIZES[1]:
        return None
    return fields[8], fields[2], fields[4]


def _meta(raw: bytes) -> tuple[int, int, int] | None:
    first = _newest(raw, 0)
    size = first[1] if first else os.sysconf("SC_PAGE_SIZE")
    return max(filter(None, (first, _newest(raw, size))), default=None)


def read_boltdb(path: str) -> Bucket:
    """Gives the file's top bucket. Raises CannotRead, for a file that is damaged too."""
    for _ in range(_TRIES):
        try:
            with open(path, "rb") as handle:
                raw = handle.read(MAX_BOLTDB_BYTES)
                meta = _meta(raw)
                handle.seek(0)
                if meta is None or meta != _meta(handle.read(1 << 18)):
                    time.sleep(0.02)
                    continue
            return Bucket(_File(path, raw, meta[1]), meta[2])
        except OSError as error:
            raise CannotRead(f"{path}: {error.strerror or error}") from None
        except struct.error:
            raise CannotRead(f"{path} is damaged: it ends in the middle of a page") from None
    raise CannotRead(f"{path} is no index that can be read, or is written all the time")


# Layers of docker's graph-driver store (overlay2), read without docker.
#
# `docker save` reads and writes the whole image before its first byte comes. The store keeps for
# each layer its files and, in tar-split.json.gz, everything of its tar that is not file content,
# in
# order: put together they are the layer's tar byte for byte, whose sha256 is its diff id.

_CACHE = re.compile(r"^[0-9a-z-]{16,80}$")
OVERLAY2 = "overlay2"
Reader = Callable[[memoryview], int]


def overlay2_chains(diff_ids: list[str]) -> list[str]:
    """Gives the chain id of each layer: the first one's diff id, then sha256("parent diff")."""
    found: list[str] = []
    for diff in diff_ids:
        if found:
            diff = "sha256:" + hashlib.sha256(f"{found[-1]} {diff}".encode()).hexdigest()
        found.append(diff)
    return found


def folder_of(root: str, chain: str) -> str:
    """Gives the store's folder of a layer. Raises NodeError for what is no digest."""
    if not DIGEST.match(chain):
        raise NodeError(f"{chain[:80]!r} is not a digest", "image_store")
    return os.path.join(root, "image", OVERLAY2, "layerdb", "sha256", chain[7:])


def present(root: str, diff_ids: list[str]) -> int:
    """Gives how many of an image's layers, counted from the lowest, the store has.

    docker load looks a layer up by its chain id and does not read it from the archive then.
    """
    count = 0
    for chain in overlay2_chains(diff_ids):
        folder = folder_of(root, chain)
        if not all(
            os.path.exists(os.path.join(folder, n)) for n in ("cache-id", "tar-split.json.gz")
        ):
            break
        count += 1
    return count


def raw_config(root: str, image_id: str) -> bytes:
    """Gives an image's config as it is stored, whose sha256 is the image's id."""
    if not DIGEST.match(image_id):
        raise NodeError(f"{image_id[:80]!r} is not an image id", "image_store")
    path = os.path.join(root, "image", OVERLAY2, "imagedb", "content", "sha256", image_id[7:])
    with open(path, "rb") as file:
        raw = file.read(8 << 20)
    if "sha256:" + hashlib.sha256(raw).hexdigest() != image_id:
        raise NodeError(f"{path} is damaged", "image_store", "pull or load the image again")
    return raw


class Layer:
    """One layer of the store. `diff_id` is what its tar must hash to."""

    def __init__(self, root: str, chain: str, diff_id: str) -> None:
        self.diff_id = diff_id
        folder = folder_of(root, chain)
        self._split = os.path.join(folder, "tar-split.json.gz")
        with open(os.path.join(folder, "cache-id"), encoding="ascii") as file:
            cache = file.read().strip()
        if not _CACHE.match(cache):
            raise NodeError(f"{folder}/cache-id is damaged", "image_store")
        self._files = os.path.realpath(os.path.join(root, OVERLAY2, cache, "diff"))
        self._safe: dict[str, str] = {}

    def _entries(self) -> Iterator[tuple[int, Any]]:
        """Gives for each part of the tar its length, and its bytes in base64 or a file's entry."""
        with gzip.open(self._split, "rb") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["type"] == 2:
                    text = entry["payload"]
                    yield len(text) // 4 * 3 - text[-2:].count("="), text
                elif entry.get("size"):
                    yield int(entry["size"]), entry

    def size(self) -> int:
        """Gives the length of the layer's tar in bytes; reads no file of it."""
        return sum(length for length, _ in self._entries())

    def blocks(self, offset: int = 0) -> Iterator[memoryview]:
        """Gives the layer's tar from `offset` on, in blocks of BLOCK bytes (the last is shorter).

        A block holds until the next one is asked for. Raises NodeError when a file is not as long
        as the store says, or leads out of the layer.
        """
        # Filled in place: every copy of the bytes costs as much as reading them.
        block = memoryview(bytearray(BLOCK))
        full = 0
        for length, part in self._entries():
            if offset >= length:
                offset -= length
                continue
            left = length - offset
            with self._reader(part, length, offset) as read_into:
                while left:
                    count = read_into(block[full : min(BLOCK, full + left)])
                    if not count:
                        raise NodeError(
                            f"a file of layer {self.diff_id[:19]} is cut", "image_store"
                        )
                    left -= count
                    full += count
                    if full == BLOCK:
                        yield block
                        full = 0
            offset = 0
        if full:
            yield block[:full]

    @contextlib.contextmanager
    def _reader(self, part: Any, length: int, offset: int) -> Iterator[Reader]:
        """Gives what reads a part of the tar from `offset` on into a buffer."""
        if isinstance(part, str):
            yield io.BytesIO(base64.b64decode(part)[offset:]).readinto
            return
        fd = os.open(self._path(part), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != length:
                raise NodeError(f"a file of layer {self.diff_id[:19]} changed", "image_store")
            if offset:
                os.lseek(fd, offset, os.SEEK_SET)
            yield lambda into: os.readv(fd, [into])
        finally:
            os.close(fd)

    def _path(self, entry: Any) -> bytes:
        """Gives the file of an entry; one that leads out of the layer's folder is refused."""
        raw = entry.get("name_raw")
        name = base64.b64decode(raw) if raw else str(entry["name"]).encode("utf-8")
        folder, base = os.path.split(os.path.normpath(b"/" + name))
        known = os.fsdecode(folder)
        if known not in self._safe:
            real = os.path.realpath(self._files + known)
            if real != self._files and not real.startswith(self._files + "/"):
                raise NodeError(f"{known!r} leads out of layer {self.diff_id[:19]}", "image_store")
            self._safe[known] = real
        return os.path.join(os.fsencode(self._safe[known]), base)


# The folders in which docker's store keeps the layers of an image or of a container.
#
# docker's own store (overlay2) tells them. With the containerd store docker does not: containerd's
# overlayfs snapshotter has them in its index, under an image's chain id or a container's id.

SNAPSHOTTER = "overlayfs"
# docker's namespace in containerd
NAMESPACE = b"moby/"
_DEEPEST = 1000


def of_image(row: Json) -> list[str]:
    """Gives the folders of an image's layers, the topmost first, from docker's inspection of it.

    Gives none where the store keeps them in another way, or has not unpacked them. Raises
    CannotRead.
    """
    root = _snapshotter(row)
    diff_ids = (row.get("RootFS") or {}).get("Layers")
    if root is None or not diff_ids:
        return _named(row)
    # here, since what it imports would cost every snapshot its time

    return _in_containerd(root, overlay2_chains(diff_ids)[-1])


def of_container(row: Json) -> list[str]:
    """Gives the folders of a container's layers, the topmost first; else as `of_image`."""
    root = _snapshotter(row)
    return _named(row) if root is None else _in_containerd(root, str(row["Id"]))


def _named(row: Json) -> list[str]:
    """Gives the folders that docker names."""
    data = (row.get("GraphDriver") or {}).get("Data") or {}
    found = [data.get("UpperDir") or "", *str(data.get("LowerDir") or "").split(":")]
    return [folder for folder in found if folder]


def _snapshotter(row: Json) -> str | None:
    """Gives the folder of the containerd store where its snapshotter has the layers.

    A docker whose inspection does not name the snapshotter names it in /info.
    """
    named = (row.get("GraphDriver") or {}).get("Name")
    if named not in (None, SNAPSHOTTER):
        return None
    info = api.get("/info")
    return api.containerd(info) if SNAPSHOTTER in (named, info.get("Driver")) else None


def _in_containerd(root: str, name: str) -> list[str]:
    home = os.path.join(root, f"io.containerd.snapshotter.v1.{SNAPSHOTTER}")
    index = read_boltdb(os.path.join(home, "metadata.db")).bucket(b"v1", b"snapshots")
    # a key is NAMESPACE/NUMBER/NAME
    keys = {key.split(b"/", 2)[2]: key for key in index.names() if key.startswith(NAMESPACE)}
    wanted = keys.get(name.encode(), b"")
    found: list[str] = []
    while wanted and len(found) < _DEEPEST:
        snapshot = index.bucket(wanted)
        folder = os.path.join(home, "snapshots", str(_uvarint(snapshot.value(b"id"))), "fs")
        if not os.path.isdir(folder):
            raise CannotRead(f"containerd's index names {folder}, which is not there")
        found.append(folder)
        wanted = snapshot.value(b"parent")
    return found


def _uvarint(raw: bytes) -> int:
    """Gives the number that Go's binary.PutUvarint wrote."""
    return sum((byte & 0x7F) << 7 * n for n, byte in enumerate(raw))


# Whether a file is there inside a container or an image, links followed as its own root has it.
#
# Read on disk: no container is made and nothing is run in one.

MAX_LINKS = 40
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Tree(NamedTuple):
    """A container's or image's files: its layers, the topmost first, and what is mounted over.

    `what` names it in words; `path` is its PATH, `workdir` its working folder, `entry` its
    entrypoint, `default` its command.
    """

    what: str
    layers: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    path: str
    workdir: str
    entry: tuple[str, ...]
    default: tuple[str, ...]


def _made(what: str, layers: list[str], mounts: list[tuple[str, str]], config: Any) -> Tree:
    """Gives a Tree from docker's Config of a container or an image."""
    environ = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    return Tree(
        what,
        tuple(layers),
        tuple(sorted(mounts, reverse=True)),
        environ.get("PATH") or DEFAULT_PATH,
        config.get("WorkingDir") or "/",
        tuple(config.get("Entrypoint") or ()),
        tuple(config.get("Cmd") or ()),
    )


def container_tree(name: str) -> Tree:
    """Gives a container's files, running or not. Raises CannotRead."""
    row = api.inspection(f"/containers/{quote(name, safe='')}/json")
    if row is None:
        raise CannotRead(f"there is no container {name}")
    what = f"container {name}"
    pid = (row.get("State") or {}).get("Pid")
    if pid:
        return _made(what, [f"/proc/{pid}/root"], [], row["Config"])
    layers = of_container(row)
    if not layers:
        raise CannotRead(f"{what} does not run, and its store keeps layers packed")
    mounts = [
        (str(mount["Destination"]).rstrip("/"), str(mount["Source"]))
        for mount in row.get("Mounts") or []
        if mount.get("Source")
    ]
    return _made(what, layers, mounts, row["Config"])


def image_tree(name: str, mounts: list[tuple[str, str]]) -> Tree:
    """Gives an image's files with these (target, source) mounted. Raises CannotRead."""
    row = api.get(f"/images/{quote(name, safe='/:@')}/json", absent_ok=True)
    if row is None:
        raise CannotRead(f"there is no image {name} here")
    return _made(f"image {name}", layers(name), mounts, row.get("Config") or {})


def layers(image: str) -> list[str]:
    """Gives the folders of an image's layers, the topmost first; of a venv its folder.

    Raises CannotRead.
    """
    if image.startswith("/"):
        if not os.path.isdir(image):
            raise CannotRead(f"no folder {image} here")
        return [image]
    row = api.inspection(f"/images/{quote(image, safe='/:@')}/json")
    if row is None:
        raise CannotRead(f"no image {image} here")
    return of_image(row) or [_running_root(str(row["Id"]), image)]


def _running_root(image_id: str, image: str) -> str:
    """Gives the root folder of a running container of the image. Raises CannotRead."""
    for row in api.get("/containers/json"):
        if row.get("ImageID") == image_id:
            pid = api.get(f"/containers/{row['Id']}/json")["State"]["Pid"]
            return f"/proc/{pid}/root"
    raise CannotRead(f"{image}: its store keeps layers packed, and no container of it runs")


def layered(folders: Sequence[str], path: str) -> os.stat_result | None:
    """Gives the entry of the topmost layer that has the path; overlay's marks are heeded.

    No link is followed: a path that leads through one has no entry.
    """
    parts = [part for part in path.split("/") if part]
    for layer in folders:
        at = layer
        for n, part in enumerate(parts):
            at = os.path.join(at, part)
            try:
                info = os.lstat(at)
            except (FileNotFoundError, NotADirectoryError):
                break
            if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                return None  # overlay's mark of something deleted
            if n == len(parts) - 1:
                return info
            hides = _opaque(at) and not _under(at, parts[n + 1 :])
            if hides or not stat.S_ISDIR(info.st_mode):
                return None
    return None


def _opaque(folder: str) -> bool:
    """Gives True for a folder that hides what the layers below have in it."""
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False


def _under(folder: str, parts: list[str]) -> bool:
    return os.path.lexists(os.path.join(folder, *parts))


def _entry(tree: Tree, path: str) -> tuple[os.stat_result | None, str]:
    """Gives a path's entry, no link followed, and where it lies on this host."""
    for target, source in tree.mounts:
        if path == target or path.startswith(target + "/"):
            real = source + path[len(target) :]
            try:
                return (os.stat(real) if path == target else os.lstat(real)), real
            except OSError:
                return None, real
    info = layered(tree.layers, path)
    for layer in tree.layers:
        if info is not None and os.path.lexists(layer + path):
            return info, layer + path
    return info, path


def stat_mode(tree: Tree, path: str) -> int | None:
    """Gives the st_mode of what a path leads to inside the tree, or None when nothing is there.

    Raises CannotRead for links without end.
    """
    todo = [part for part in reversed(path.split("/")) if part]
    at, links, found = "", 0, stat.S_IFDIR
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at, found = posixpath.dirname(at), stat.S_IFDIR
            continue
        info, real = _entry(tree, f"{at}/{part}")
        if info is None:
            return None
        if not stat.S_ISLNK(info.st_mode):
            at, found = f"{at}/{part}", info.st_mode
            continue
        links += 1
        if links > MAX_LINKS:
            raise CannotRead(f"{path} in {tree.what} is a link without end")
        leads = os.readlink(real)
        at = "" if leads.startswith("/") else at
        todo += [step for step in reversed(leads.split("/")) if step]
    return found


def program_problem(tree: Tree, name: str) -> str | None:
    """Gives what is wrong with a program that is to run inside the tree, or None.

    A bare name is looked for on the tree's PATH. Raises CannotRead.
    """
    if "/" in name:
        paths = [posixpath.join(tree.workdir, name)]
    else:
        paths = [f"{folder}/{name}" for folder in tree.path.split(":") if folder]
    found = [info for info in (stat_mode(tree, path) for path in paths) if info is not None]
    if not found:
        return f"which is not in {tree.what}"
    if not any(stat.S_ISREG(info) and info & 0o111 for info in found):
        return f"which is no executable file in {tree.what}"
    return None


# Files inside an image, read where its layers lie on disk: no container is made for it.
#
# Known for overlay2 and for the containerd store with overlayfs, whose layers are folders. Where
# they
# are not, a running container of the image is looked into, through /proc/PID/root.

MAX_IMAGE_FILE_BYTES = 8 * 1024 * 1024


def image_file_matches(layers: list[str], pattern: str) -> Iterator[str]:
    """Gives the paths on this host of the files that a glob pattern finds inside the image.

    One that a layer above hides does not count, nor one behind a link: it could lead out of the
    image, into this host.
    """
    for layer in layers:
        for path in sorted(glob.glob(glob.escape(layer) + pattern)):
            entry = layered(layers, path[len(layer) :])
            if entry is None or not stat.S_ISREG(entry.st_mode):
                continue
            if os.path.samestat(entry, os.lstat(path)):
                yield path


def _one(layers: list[str], probe: Json) -> Json:
    """Gives the files of one probe: path inside the image, sha256, times the text occurs."""
    rows = []
    for path in image_file_matches(layers, probe["path"]):
        with open(path, "rb") as handle:
            raw = handle.read(MAX_IMAGE_FILE_BYTES)
        for layer in layers:
            if path.startswith(layer + "/"):
                path = path[len(layer) :]
                break
        rows.append(
            {
                "path": path,
                "sha256": hashlib.sha256(raw).hexdigest(),
                "count": raw.count(probe["contains"].encode()),
            }
        )
    return {**probe, "matches": rows}


def read_image_files(probes: list[Json]) -> list[Json]:
    """Gives what each probe (`image`, `path` as a glob, `contains`) finds. Raises CannotRead."""
    found = {image: layers(image) for image in {probe["image"] for probe in probes}}
    return [_one(found[probe["image"]], probe) for probe in probes]
