"""What a weights folder holds, and the sha256 of each file for as long as it is the file that was
read: inode, size, mtime and ctime are what they were.

The hashes lie beside the weights in `.rigbook/manifest.json`, so that nothing is hashed twice.
Whoever writes to a file may set its mtime back, but not its ctime: that is as good a sign as its
content. A chmod or a second name changes it too, and costs a reading. The folder is the login
user's:
he may change it while root reads, so each file is looked at by its descriptor
(node/files/dirfd.py)."""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from node.core.errors import Json, NodeError
from node.files import cold_read, dirfd
from node.weights import hub_cache

OWN = ".rigbook"
MANIFEST = "manifest.json"
MAX_FILES = 20000
# 20000 files of 300 characters each are a tenth of it
MAX_MANIFEST = 64 << 20
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Read for the quick check: the header of a safetensors file and its end.
PROBE = 64 << 10
_CHUNK = 4 << 20
# What tells whether a file is still the one that was read.
_SIGNS = ("ino", "size", "mtime_ns", "ctime_ns")
_KEPT = ("name", *_SIGNS, "sha256")
_NAMES = 4


class Hash(NamedTuple):
    """A file's sha256, and what the file was when it was read.

    `ctime_ns` is None for one that has got its name and owner since, which changed it.
    """

    sha256: str
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int | None = None


class Folder:
    """A weights folder, or one file as a folder of one. `only` is that file's name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.only: str | None = None
        if os.path.isfile(path) or path.endswith((".gguf", ".safetensors")):
            self.path, self.only = os.path.split(path)

    def names(self) -> builtins.list[str]:
        """Gives the files, sorted; hidden ones are left out. Raises NodeError for too many.

        A link counts where it leads to a file inside the folder, or inside the Hugging Face cache
        that the folder is a snapshot of.
        """
        return self._walked()[0]

    def outside(self) -> builtins.list[str]:
        """Gives the links of the folder that lead out of it, or nowhere: they are not moved."""
        return self._walked()[1]

    def _walked(self) -> tuple[builtins.list[str], builtins.list[str]]:
        if self.only is not None:
            return ([self.only] if self._is_file(self.only) else []), []
        found: list[str] = []
        out: list[str] = []
        for here, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            out += [os.path.relpath(os.path.join(here, f), self.path)
                    for f in folders if os.path.islink(os.path.join(here, f))]  # fmt: skip
            for name in names:
                if name.startswith("."):
                    continue
                path = os.path.relpath(os.path.join(here, name), self.path)
                if self._is_file(path):
                    found.append(path)
                elif os.path.islink(os.path.join(here, name)):
                    out.append(path)
            if len(found) + len(out) > MAX_FILES:
                raise NodeError(f"{self.path} holds more than {MAX_FILES} files", "weights")
        return sorted(found), sorted(out)

    def _is_file(self, name: str) -> bool:
        """Gives whether a name is a file that may be read. Raises NodeError for weights of one file
        that lead out of their folder."""
        try:
            os.close(self._open(name))
        except OSError as error:
            if self.only is not None and error.errno == errno.EXDEV:
                raise self._leads_out() from None
            return False
        return True

    def _leads_out(self) -> NodeError:
        path = os.path.join(self.path, str(self.only))
        return NodeError(f"{path} leads out of its folder, and is not read", "weights",
                         f"name the file itself: readlink -f {path}")  # fmt: skip

    def _open(self, name: str) -> int:
        """Gives a descriptor of a file. Raises OSError."""
        real = os.path.realpath(self.path)
        root = hub_cache.root_of(real) or real
        return dirfd.open_beneath(root, os.path.relpath(os.path.join(real, name), root))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """Gives a file of the folder, unbuffered. Raises NodeError for one that lies elsewhere."""
        path = os.path.join(self.path, name)
        try:
            fd = self._open(name)
        except OSError as error:
            raise NodeError(f"{path} is no file of this folder: {error.strerror}", "weights",
                            f"ls -l {shlex.quote(path)}") from None  # fmt: skip
        with os.fdopen(fd, "rb", buffering=0) as file:
            yield file

    def list(self) -> builtins.list[Json]:
        """Gives each file: name, inode, size, times, probe, and its sha256 where it is known."""
        known = self.known()
        with ThreadPoolExecutor(_NAMES) as pool:
            return list(pool.map(lambda name: self._file(name, known), self.names()))

    def _file(self, name: str, known: dict[str, Any]) -> Json:
        with self.opened(name) as file:
            info = os.fstat(file.fileno())
            probe = probe_of(file.fileno(), info.st_size)
        sha256 = hash_that_holds(known.get(name, {}), info)
        return {"name": name, **_signs(info), "probe": probe, "sha256": sha256}

    def known(self) -> dict[str, Any]:
        """Gives what the manifest says; one that is damaged or not root's own says nothing."""
        try:
            with dirfd.folder(self.path) as fd, dirfd.inside(fd, OWN, self.path) as own:
                _require_ours(os.fstat(own), os.path.join(self.path, OWN))
                with os.fdopen(os.open(MANIFEST, _LOOK, dir_fd=own), "rb") as file:
                    info = os.fstat(file.fileno())
                    is_ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
                    if not is_ours or info.st_size > MAX_MANIFEST:
                        return {}
                    rows = json.loads(file.read(MAX_MANIFEST))["files"]
            return {str(row["name"]): row for row in rows}
        except (NodeError, OSError, ValueError, KeyError, TypeError):
            return {}

    def save(self, hashes: dict[str, Hash]) -> None:
        """Writes the manifest: what is there, with these hashes added to those that still hold.

        A hash of a file that is another by now is dropped. Raises NodeError (`unsafe_folder`).
        """
        listed = self.list()
        rows = [{key: row[key] for key in _KEPT} for row in listed]
        for row in rows:
            found = hashes.get(str(row["name"]))
            if found and all(
                getattr(found, key) == row[key]
                for key in _SIGNS
                if key != "ctime_ns" or found.ctime_ns is not None
            ):
                row["sha256"] = found.sha256
        if self.only is not None:
            # Other models may lie beside this one, each known by itself.
            others = {name: row for name, row in self.known().items() if name != self.only}
            rows += [{key: row.get(key) for key in _KEPT} for row in others.values()]
        with self.own() as fd:
            temp = MANIFEST + ".new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp, dir_fd=fd)
            new = os.open(
                temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=fd
            )
            with os.fdopen(new, "w", encoding="utf-8") as file:
                json.dump({"format": 1, "files": rows}, file, indent=0)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temp, MANIFEST, src_dir_fd=fd, dst_dir_fd=fd)

    @contextlib.contextmanager
    def own(self) -> Iterator[int]:
        """Gives a descriptor of our own folder beside the weights, made where it is not there.

        It is root's alone, so what lies in it cannot be swapped. Raises NodeError
        (`unsafe_folder`) where it is a link or somebody else's.
        """
        with dirfd.folder(self.path) as fd:
            with contextlib.suppress(FileExistsError):
                os.mkdir(OWN, 0o755, dir_fd=fd)
            self.require_own()
            with dirfd.inside(fd, OWN, self.path) as own:
                _require_ours(os.fstat(own), os.path.join(self.path, OWN))
                yield own

    def require_own(self) -> None:
        """Raises NodeError (`unsafe_folder`) where our own folder is there and is not ours."""
        path = os.path.join(self.path, OWN)
        with contextlib.suppress(FileNotFoundError):
            _require_ours(os.lstat(path), path)


def _require_ours(info: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022:
        return
    # A copy of the weights by rsync or cp brings it along, as the user's.
    raise NodeError(f"{path} is not a folder of root alone", "unsafe_folder",
                    "it only holds hashes and half files: sudo rm -r "
                    + shlex.quote(path))  # fmt: skip


def probe_of(fd: int, size: int) -> str:
    """Gives the sha256 of a file's beginning and its end."""
    ends = os.pread(fd, PROBE, 0), os.pread(fd, PROBE, max(0, size - PROBE))
    return hashlib.sha256(b"".join(ends)).hexdigest()


def hash_that_holds(had: Json, info: os.stat_result) -> str | None:
    """Gives the sha256 that a manifest's row has of a file, if it is still the file of that row."""
    holds = all(had.get(key) == value for key, value in _signs(info).items())
    return had.get("sha256") if holds else None


def _signs(info: os.stat_result) -> dict[str, int]:
    return {key: getattr(info, f"st_{key}") for key in _SIGNS}


def hash_of(file: IO[bytes], name: str, tick: Callable[[int], None] = lambda count: None) -> Hash:
    """Gives an opened file's hash; `tick` gets the bytes read, `name` is for messages.

    Raises NodeError (`weights`) when somebody writes to it meanwhile.
    """
    before = os.fstat(file.fileno())
    digest, read = hashlib.sha256(), 0
    with cold_read.Passing(file.fileno()) as passing:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
            read += len(chunk)
            passing.upto(read)
            tick(len(chunk))
    after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise NodeError(f"{name} is written to while it is read", "weights", "wait for it")
    # the signs of before: what changed meanwhile, if only its mode, is not vouched for
    return Hash(digest.hexdigest(), **_signs(before))


def same(one: Json, other: Json) -> bool | None:
    """Gives whether two listed files are the same; None where only their whole content can tell."""
    if one["size"] != other["size"]:
        return False
    if one["sha256"] and other["sha256"]:
        return bool(one["sha256"] == other["sha256"])
    return None if one["probe"] == other["probe"] else False
