"""What a weights folder holds, and the sha256 of each file for as long as it is the file that was
read: inode, size, mtime and ctime are what they were.

The hashes lie beside the weights in `.rigbook/manifest.json`, so that nothing is hashed twice.
Whoever writes to a file may set its mtime back, but not its ctime: that is as good a sign as its
content. A chmod or a second name changes it too, and costs a reading. The folder is the login
user's:
he may change it while root reads, so each file is looked at by its descriptor
(node/core/dirfd.py)."""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, BinaryIO, NamedTuple

from node.change import journal
from node.core import dirfd, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.validate import ID
from node.rules.text import MAX_JSON, format_of

# models look: what a model file's own header says, and whether the file is as long as it promises.
#
# GGUF (its specification, versions 2 and 3) and safetensors; no file is read whole.

MAX_HEADER = 256 << 20
# ggml knows four dimensions; a chat template is the longest text, some 100 KB
MAX_DIMS, MAX_DEPTH = 8, 4
MAX_TEXT, MAX_ALIGN = 16 << 20, 1 << 20
MAX_PAIRS, MAX_TENSORS = 1 << 16, 1 << 20
_WINDOW = 1 << 18
_LENGTH = struct.Struct("<Q").unpack_from
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# ggml types: values a block, bytes a block (ggml.h)
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class BrokenModel(Exception):
    """A model file that is not whole or not of its kind; the text says why."""


class _Gguf:
    """A GGUF header, read from the front through a window of it; arrays are passed over."""

    def __init__(self, file: BinaryIO, size: int, limit: int) -> None:
        self._file, self._size, self._limit = file, size, limit
        self._window, self._from, self._next = b"", 4, 0

    @property
    def at(self) -> int:
        """The byte that is read next."""
        return self._from + self._next

    def _ahead(self, count: int) -> None:
        """Raises BrokenModel when the header ends before the next `count` bytes, or is too long."""
        if self.at + count > self._size:
            raise BrokenModel(f"cut off in its header, at byte {self.at} of {self._size}")
        if self.at + count > self._limit:
            raise BrokenModel(f"its header is longer than {self._limit >> 20} MiB")

    def take(self, count: int) -> bytes:
        """Gives the next bytes. Raises BrokenModel when the header ends before them."""
        self._ahead(count)
        if count > MAX_TEXT:
            raise BrokenModel(f"its header has a text of {count} bytes")
        if self._next + count > len(self._window):
            self._from, self._next = self.at, 0
            self._file.seek(self._from)
            self._window = self._file.read(max(count, _WINDOW))
            if len(self._window) < count:
                raise BrokenModel(f"cut off in its header, at byte {self.at} of {self._size}")
        self._next += count
        return self._window[self._next - count : self._next]

    def pass_over(self, count: int) -> None:
        """Leaves bytes unread. Raises BrokenModel when the header ends before them."""
        self._ahead(count)
        self._next += count
        if self._next > len(self._window):
            self._window, self._from, self._next = b"", self.at, 0

    def number(self, layout: str) -> int:
        """Gives one little-endian number."""
        return int(struct.unpack("<" + layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        """Gives a string."""
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def _pass_texts(self, count: int) -> None:
        """Leaves strings unread: a vocabulary has hundreds of thousands, so without a call each."""
        while count:
            window, here, end = self._window, self._next, len(self._window)
            while count and here + 8 <= end:
                behind = here + 8 + _LENGTH(window, here)[0]
                if behind > end:
                    break
                here = behind
                count -= 1
            self._next = here
            self._ahead(0)
            if count:
                self.pass_over(self.number("Q"))
                count -= 1

    def _pass_array(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BrokenModel(f"its header has arrays more than {MAX_DEPTH} deep")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.pass_over(_SCALARS[inner] * count)
        elif inner == _STRING:
            self._pass_texts(count)
        elif inner == _ARRAY:
            for _ in range(count):
                self._pass_array(depth + 1)
        else:
            raise BrokenModel(f"its header has a value of the unknown kind {inner}")

    def value(self, kind: int, wanted: bool) -> Any:
        """Gives a string or an unsigned number that is wanted; None for what is passed over."""
        if kind == _ARRAY:
            self._pass_array(1)
        elif kind == _STRING and wanted:
            return self.text()
        elif kind == _STRING:
            self.pass_over(self.number("Q"))
        elif kind in _SCALARS:
            raw = self.take(_SCALARS[kind])
            return int.from_bytes(raw, "little") if kind in (4, 10) else None
        else:
            raise BrokenModel(f"its header has a value of the unknown kind {kind}")
        return None


def gguf(file: BinaryIO, size: int, limit: int = MAX_HEADER) -> tuple[str, int]:
    """Gives a GGUF's header in words, and the size that it promises. Raises BrokenModel.

    `limit` bounds the bytes that are read for it.
    """
    head = _Gguf(file, size, limit)
    version = head.number("I")
    if version not in (2, 3):
        raise BrokenModel(f"GGUF of version {version}, which no loader here reads")
    tensors, pairs = head.number("Q"), head.number("Q")
    if pairs > MAX_PAIRS or tensors > MAX_TENSORS:
        raise BrokenModel(f"its header would have {pairs} keys and {tensors} tensors")
    known: dict[str, Any] = {}
    for _ in range(pairs):
        key = head.text()
        wanted = key in ("general.architecture", "general.alignment")
        value = head.value(head.number("I"), wanted)
        if wanted:
            known[key] = value
    end = max((_tensor_end(head) for _ in range(tensors)), default=0)
    align = known.get("general.alignment", 32)
    if not isinstance(align, int) or not 0 < align <= MAX_ALIGN:
        raise BrokenModel("its general.alignment is no number of bytes")
    data = -(-head.at // align) * align
    name = known.get("general.architecture") or "unknown"
    # a vocabulary alone has no data, and need not be padded up to it
    promised = data + end if tensors else head.at
    return f"GGUF version {version}, {tensors} tensors, architecture {name}", promised


def _tensor_end(head: _Gguf) -> int:
    """Gives where a tensor ends, counted from the data's begin, by its entry in the header."""
    head.text()
    count = head.number("I")
    if count > MAX_DIMS:
        raise BrokenModel(f"its header has a tensor of {count} dimensions")
    dims = [head.number("Q") for _ in range(count)]
    kind, offset = head.number("I"), head.number("Q")
    values = 1
    for dim in dims:
        values *= dim
    block, width = _BLOCKS.get(kind, (1, 0))
    return offset + values // block * width


def safetensors(file: BinaryIO, size: int) -> tuple[str, int]:
    """Gives a safetensors' header in words, and the size that it promises. Raises BrokenModel."""
    file.seek(0)
    length = struct.unpack("<Q", file.read(8))[0]
    if length > MAX_JSON:
        raise BrokenModel(f"its header would be {length} bytes long")
    raw = file.read(length)
    if len(raw) != length:
        raise BrokenModel(f"cut off in its header: {8 + length} bytes of it, {size} in the file")
    try:
        rows: dict[str, Any] = json.loads(raw)
        tensors = [row for key, row in rows.items() if key != "__metadata__"]
        end = max((int(row["data_offsets"][1]) for row in tensors), default=0)
        kinds = sorted({str(row["dtype"]) for row in tensors})
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise BrokenModel("its header is no JSON of tensors") from None
    return f"safetensors, {len(tensors)} tensors of {', '.join(kinds)}", 8 + length + end


def one(path: str) -> Json:
    """Gives a file: size, format, its header in words, and why it is not whole (or null)."""
    answer: Json = {"path": path, "size": None, "format": None, "said": "", "broken": None}
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise BrokenModel("not a plain file")
            answer.update(size=info.st_size, format=format_of(file.read(16)))
            readers = {"gguf": gguf, "safetensors": safetensors}
            if answer["format"] in readers:
                answer["said"], wanted = readers[answer["format"]](file, info.st_size)
                answer["broken"] = _wrong_size(info.st_size, wanted, answer["format"])
    except OSError as error:
        answer["broken"] = io_reason(error)
    except BrokenModel as error:
        answer["broken"] = str(error)
    except (ValueError, ArithmeticError, RecursionError, struct.error) as error:
        answer["broken"] = f"its header makes no sense: {error}"
    return answer


def _wrong_size(size: int, wanted: int, kind: str) -> str | None:
    if size < wanted:
        return f"cut off: its header promises {wanted} bytes, there are {size}"
    # GGUF may be padded at its end; the loader of safetensors refuses bytes that nobody owns
    if size > wanted and kind == "safetensors":
        return f"{size - wanted} bytes more than its header promises"
    return None


def inspect_models(request: Any) -> Json:
    """Gives the headers of the named files, in their order."""
    body = validate.keys(request, "request", ("paths",), ("paths",))
    rows = validate.array(body["paths"], "paths", 100)
    paths: list[str] = [validate.path(row, f"paths[{n}]") for n, row in enumerate(rows)]
    if not paths:
        raise NodeError("no paths", "bad_request")
    return {"files": [one(path) for path in paths]}


# The layout of a Hugging Face cache: models--ORG--NAME with blobs, refs and snapshots/REVISION.
#
# A snapshot's files are links into ../../blobs; refs/main names the revision that the hub's client
# takes for a model without one (huggingface_hub, "Understand caching").

_MODEL = "models--"
_REVISION = re.compile(r"^[0-9A-Za-z][0-9A-Za-z._-]{0,127}$")
_MAX_REF = 256


def root_of(path: str) -> str | None:
    """Gives the folder of a model in a cache, where `path` is a snapshot of it, whose links lead to
    its blobs."""
    model, snapshots = os.path.split(os.path.dirname(path))
    is_cache = snapshots == "snapshots" and os.path.basename(model).startswith(_MODEL)
    return model if is_cache and os.path.isdir(os.path.join(model, "blobs")) else None


def snapshot_of(path: str) -> str:
    """Gives the snapshot that a model's folder in a cache stands for: refs/main's, or the only one.

    Any other path, and a folder without one, is given as it is.
    """
    snapshots = os.path.join(path, "snapshots")
    if not os.path.basename(path).startswith(_MODEL) or not os.path.isdir(snapshots):
        return path
    try:
        with open(os.path.join(path, "refs", "main"), encoding="ascii") as file:
            named = file.read(_MAX_REF).strip()
    except (OSError, ValueError):
        there = sorted(os.listdir(snapshots))
        named = there[0] if len(there) == 1 else ""
    found = os.path.join(snapshots, named)
    return found if _REVISION.match(named) and os.path.isdir(found) else path


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
        root = root_of(real) or real
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
    with dirfd.Passing(file.fileno()) as passing:
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


# What lies in `.rigbook/` beside weights: the mark of a set that is half switched, and the former
# files that a change replaced, which its undo puts back.
#
# A set's former files stay until the next run that brings files there, once their change is
# settled:
# one former set at most lies beside each folder of weights. They may be removed by hand at any
# time;
# the undo of their change is refused then.

INCOMPLETE = "incomplete"
# no change's id has a "+" in it
_DISPLACED = "displaced-"
_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_MARK = 4096


def displaced_name(change: str, number: int) -> str:
    """Gives the name of the folder for what the `number`th set of a change replaces."""
    return f"{_DISPLACED}{change}" + (f"+{number}" if number else "")


def mark_beside(own: int, change: str) -> None:
    """Says on the disk that the set is none until `unmark`; `own` is `.rigbook`'s descriptor."""
    with os.fdopen(os.open(INCOMPLETE, _PRIVATE, 0o644, dir_fd=own), "w") as file:
        json.dump({"change": change}, file)
        file.flush()
        os.fsync(file.fileno())
    os.fsync(own)


def unmark_beside(own: int) -> None:
    """Says that the set is whole again."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(INCOMPLETE, dir_fd=own)
        os.fsync(own)


def incomplete(path: str) -> str | None:
    """Gives the change that has left the weights at `path` half switched, or None."""
    folder = Folder(path)
    if folder.only is not None:
        return None  # one file is switched whole
    try:
        fd = os.open(os.path.join(path, OWN, INCOMPLETE), _LOOK)
        with os.fdopen(fd, "rb") as file:
            return str(json.loads(file.read(_MAX_MARK))["change"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def displaced_sets(path: str) -> list[Json]:
    """Gives the former files that are kept beside the weights at `path`: a row a folder with its
    change, path, number of files and bytes."""
    folder = Folder(path)
    found: list[Json] = []
    own = os.path.join(folder.path, OWN)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(own)):
            change = name.removeprefix(_DISPLACED).partition("+")[0]
            if name.startswith(_DISPLACED) and ID.match(change):
                sizes = list(_sizes(os.path.join(own, name)))
                found.append({"change": change, "path": os.path.join(own, name),
                              "files": len(sizes), "bytes": sum(sizes)})  # fmt: skip
    return found


def _sizes(folder: str) -> Iterator[int]:
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(os.path.join(here, name))
                yield info.st_size if stat.S_ISREG(info.st_mode) else 0


def free_former(path: str, keep: str) -> list[Json]:
    """Removes the former files of changes that are settled; gives their rows.

    Those of the change `keep`, and of one that may still have to be undone, stay.
    """
    Folder(path).require_own()
    freed: list[Json] = []
    for row in displaced_sets(path):
        if row["change"] != keep and is_settled(row["change"]):
            shutil.rmtree(row["path"])
            freed.append(row)
    return freed


def is_settled(change: str) -> bool:
    """Gives whether nothing of a change is left to finish or undo: it ended, or is not known."""
    found = journal.find(change)
    return found is None or found["status"] in ("COMMITTED", "ROLLED_BACK")
