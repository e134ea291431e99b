"""Tar and zstd written and read."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from node.backup.store import FILE, FOLDER, LINK, NS, SYMLINK, Member
from node.core.errors import Json, NodeError, io_reason
from node.core.run import environment, which

# GNU tar and zstd as children, with the compressed bytes hashed while they pass.

CHUNK = 1 << 20
# zstd takes memory for each thread; more than this gains nothing over tar's one
MAX_THREADS = 8
# the payload goes to the disk in pieces of this size while the rest is being made
FLUSH = 64 << 20
# pieces that are compressed before they are hashed
AHEAD = 8
PROGRESS_S = 5.0
_F_SETPIPE_SZ = 1031


def compressors() -> None:
    """Raise NodeError when GNU tar or zstd is missing."""
    for name in ("tar", "zstd"):
        if which(name) is None:
            raise NodeError(f"{name} is not installed on this host", "no_program",
                            f"apt-get install {name}")  # fmt: skip
    version = subprocess.run(["tar", "--version"], stdout=subprocess.PIPE, env=environment(),
                             check=False).stdout  # fmt: skip
    if b"GNU tar" not in version:
        raise NodeError("tar is not GNU tar", "no_program", "install GNU tar")


class Progress:
    """A line on stderr now and then: how far, of how much, how long it will take.

    `note` is a file that holds the last line, for those who ask meanwhile (`tree list`).
    """

    def __init__(self, what: str, total: int, note: str = "") -> None:
        self.what, self.total, self.done, self.note = what, max(total, 1), 0, note
        self.began = self.told = time.monotonic()

    def add(self, count: int) -> None:
        """Take note of bytes that were done; tells at most every PROGRESS_S seconds."""
        self.done += count
        self.tell(lambda: self.done)

    def tell(self, look: Callable[[], int]) -> None:
        """Tell how far it is when it is time to; `look` gives the bytes that are done."""
        now = time.monotonic()
        if now - self.told < PROGRESS_S:
            return
        self.told, self.done = now, look()
        share = min(self.done / self.total, 1.0)
        left = (now - self.began) * (1 - share) / max(share, 0.01)
        line = f"{self.what}: {self.done >> 20} of {self.total >> 20} MiB, about {left:.0f} s left"
        with contextlib.suppress(OSError):  # nobody listens any more: the work goes on
            if self.note:
                with open(self.note, "w", encoding="utf-8") as file:
                    file.write(line)
            print(line, file=sys.stderr, flush=True)

    def over(self) -> None:
        """Take the note away."""
        if self.note:
            with contextlib.suppress(OSError):
                os.unlink(self.note)


def start_compressor(argv: list[str], **files: Any) -> subprocess.Popen[bytes]:
    """Gives a child in a session of its own: a Ctrl-C at the terminal is ours to handle."""
    return subprocess.Popen(argv, env=environment(), start_new_session=True, **files)


def enlarge_pipe(file: Any) -> None:
    """Let a pipe hold 1 MiB, where the kernel lets us: fewer switches between the programs."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(file.fileno(), _F_SETPIPE_SZ, CHUNK)


def reap_children(children: list[subprocess.Popen[bytes]]) -> None:
    """Kill what is left of the children, and collect them.

    Killed before their pipes are closed: a thread that is blocked in a write holds the pipe.
    """
    for child in children:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    for child in children:
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()


class StderrTail:
    """The last words of the children, from one pipe that a thread reads."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self._text = b""
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        while True:
            raw = os.read(self.read_fd, 4096)
            if not raw:
                return
            self._text = (self._text + raw)[-2000:]

    def last(self) -> str:
        """Gives the last line that says something; call it once the children have ended."""
        os.close(self.write_fd)
        self._thread.join(2)
        os.close(self.read_fd)
        lines = [line.strip() for line in self._text.decode("utf-8", "replace").splitlines()]
        told = [line for line in lines if line and "Exiting with failure status" not in line]
        return told[-1] if told else ""


def pack(
    root: str,
    paths: Iterable[str],
    target: str,
    progress: Progress,
    tap: Callable[[bytes], None],
    stop: Callable[[], None],
) -> Json:
    """Write the members to a new file, as `squeeze` does. Raises NodeError when tar fails, too."""

    def tar_of(said: StderrTail, children: list[subprocess.Popen[bytes]]) -> Iterator[bytes]:
        tar = start_compressor(
            ["tar", "--create", "--file=-", "--format=posix", "--numeric-owner", "--xattrs",
             "--xattrs-include=*", "--pax-option=delete=atime,delete=ctime", "--sparse",
             "--sparse-version=0.1", "--blocking-factor=512", "--no-recursion", "--null",
             f"--directory={root}", "--files-from=-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said.write_fd,
        )  # fmt: skip
        children.append(tar)
        assert tar.stdin and tar.stdout
        enlarge_pipe(tar.stdout)
        threading.Thread(target=_feed, args=(tar.stdin, paths), daemon=True).start()
        pipe = tar.stdout.fileno()
        return iter(lambda: os.read(pipe, CHUNK), b"")

    return squeeze(tar_of, target, progress, tap, stop)


def squeeze(
    begin: Callable[[StderrTail, list[subprocess.Popen[bytes]]], Iterator[bytes]],
    target: str,
    progress: Progress,
    tap: Callable[[bytes], None],
    stop: Callable[[], None],
) -> Json:
    """Write a tar, compressed, to a new file, 0600; gives its sha256 and size. It is on the disk
    then.

    `begin` gives the tar's pieces, of children that it adds to a list, if of any. `tap` gets every
    piece, in a thread of its own. `stop` is called between two pieces. All may
    raise to end it. Raises NodeError when a child fails, OSError when the file cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(target, flags, 0o600)
    threads = min(os.cpu_count() or 1, MAX_THREADS)
    said = StderrTail()
    children: list[subprocess.Popen[bytes]] = []
    last = ""
    try:
        pieces = begin(said, children)
        zstd = start_compressor(["zstd", "-1", f"-T{threads}", "--no-progress", "-q", "-c"],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=said.write_fd)  # fmt: skip
        children.append(zstd)
        assert zstd.stdin and zstd.stdout
        enlarge_pipe(zstd.stdin)
        enlarge_pipe(zstd.stdout)
        passing = _Passing(pieces, zstd.stdin, tap)
        digest, size = hashlib.sha256(), 0
        with _Flusher(fd) as flusher:
            while True:
                raw = os.read(zstd.stdout.fileno(), CHUNK)
                if not raw:
                    break
                digest.update(raw)
                view = memoryview(raw)
                while view:
                    view = view[os.write(fd, view) :]
                size += len(raw)
                flusher.tell(size)
                progress.tell(lambda: passing.count)
                stop()
        passing.over()
        codes = [child.wait() for child in children]
        os.fsync(fd)
    finally:
        reap_children(children)
        last = said.last()
        os.close(fd)
    for name, code in zip(("tar", "zstd")[-len(codes) :], codes, strict=True):
        if code != 0:
            raise NodeError(f"{name} ended with {code}: {last or 'no word'}", "tree_failed",
                            "mend that, then run it again")  # fmt: skip
    return {"sha256": digest.hexdigest(), "bytes": size}


def write_lines(path: str, lines: Iterable[bytes]) -> Json:
    """Write a new file, 0600, flushed; gives its sha256, size and number of lines."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    digest, size, count = hashlib.sha256(), 0, 0
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for line in lines:
            digest.update(line)
            size += len(line)
            count += 1
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size, "count": count}


def _feed(pipe: Any, paths: Iterable[str]) -> None:
    """Write the names to tar's stdin, each ended by NUL; tar's end is seen by its reader."""
    with contextlib.suppress(BrokenPipeError, OSError, ValueError), pipe:
        for path in paths:
            pipe.write(os.fsencode(path) + b"\0")


class _Passing:
    """Pieces are handed on to a child, in a thread; in a second one `tap` gets each of them, at
    most AHEAD pieces behind.
    """

    def __init__(self, pieces: Iterator[bytes], sink: Any, tap: Callable[[bytes], None]) -> None:
        self.count = 0
        self._error: Exception | None = None
        self._pieces: queue.Queue[bytes | None] = queue.Queue(AHEAD)
        self._threads = [
            threading.Thread(target=self._pass, args=(pieces, sink), daemon=True),
            threading.Thread(target=self._tap, args=(tap,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _pass(self, pieces: Iterator[bytes], sink: Any) -> None:
        with contextlib.suppress(OSError, ValueError), sink:  # why zstd ended is told by itself
            try:
                for raw in pieces:
                    self._pieces.put(raw)
                    if self._error is not None:
                        break
                    sink.write(raw)
                    self.count += len(raw)
            except NodeError as error:
                self._error = error
        self._pieces.put(None)

    def _tap(self, tap: Callable[[bytes], None]) -> None:
        while (raw := self._pieces.get()) is not None:
            if self._error is None:
                try:
                    tap(raw)
                except Exception as error:  # whatever it is: the pieces have to be taken on
                    self._error = error

    def over(self) -> None:
        """Wait for the end of it; raises what `tap` or the pieces raised."""
        for thread in self._threads:
            thread.join()
        if self._error:
            raise self._error


class _Flusher:
    """Flushes a file in the background while it is written, and drops it from the page cache.

    The end is not a long wait then, and a backup does not push an engine's pages out of memory.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._written = self._done = 0
        self._over = False
        self._wake = threading.Condition()
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Flusher:
        self._thread.start()
        return self

    def tell(self, written: int) -> None:
        """Say how far the file is written. Raises the error that flushing met."""
        if self.error:
            raise self.error
        with self._wake:
            self._written = written
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._over or self._written - self._done >= FLUSH)
                if self._over:
                    return
                upto = self._written
            try:
                os.fdatasync(self.fd)
                os.posix_fadvise(self.fd, 0, upto, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                self.error = error
                return
            self._done = upto

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._over = True
            self._wake.notify()
        self._thread.join()
        if self.error and not _[0]:
            raise self.error


# Read the members of a tar stream as they pass, and refuse what a backup never holds.
#
# Only the form that we write is understood (ustar and pax headers, holes as GNU tar's form 0.1);
# everything else is an error, so that tar can never read a stream differently from us.

BLOCK = 512
# of a file with many holes: each takes some 20 bytes
MAX_PAX = 16 << 20
_KNOWN = (FILE, LINK, SYMLINK, FOLDER)
# name, mode, uid, gid, size, mtime, checksum, type, link, magic, version, prefix
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s80x155s12x")
_BLANK = sum(b" " * 8)
_XATTR = "SCHILY.xattr."
_SPARSE = "GNU.sparse."
_HOLES = ("map", "name", "numblocks", "size")
_ZEROS = bytes(1 << 20)
# where bytes lie in a file, and how many
Regions = list[tuple[int, int]]
_KINDS = {"3": "a device", "4": "a device", "6": "a pipe", "7": "a contiguous file",
          "L": "a GNU long name", "K": "a GNU long link", "S": "a sparse file",
          "g": "a global header"}  # fmt: skip


def refused(text: str) -> NodeError:
    """Gives the error for a stream that must not be unpacked."""
    return NodeError(f"the payload is not what the manifest says: {text}", "backup_damaged",
                     "take another one: rignode tree list")  # fmt: skip


def _text(raw: bytes) -> str:
    """Gives a header's text field, as os.fsdecode would."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(raw: bytes) -> int:
    """Gives a number of a header: octal, or base 256."""
    if raw[:1] and raw[0] & 0x80:
        return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:], "big")
    digits = raw.rstrip(b" \0").lstrip(b" ") or b"0"
    if not digits.isdigit():
        raise ValueError("a number is none")
    return int(digits, 8)


def _pax(raw: bytes) -> dict[str, bytes]:
    """Gives the records of a pax header. Raises ValueError when it is not one."""
    found: dict[str, bytes] = {}
    while raw:
        length = int(raw[: raw.index(b" ")])
        record = raw[:length]
        if len(record) != length or not record.endswith(b"\n"):
            raise ValueError("a record is cut")
        name, _, value = record[record.index(b" ") + 1 : -1].partition(b"=")
        key = name.decode("utf-8", "surrogateescape")
        if key in found:
            raise ValueError("a record stands twice")
        found[key] = value
        raw = raw[length:]
    return found


def _digits(text: str) -> int:
    """Gives a number of a pax record; int() would take more than tar does."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a number is none")
    return int(text)


def _nanoseconds(text: str) -> int:
    """Gives a pax record's time: decimal seconds, perhaps before 1970."""
    whole, _, part = text.removeprefix("-").partition(".")
    number = _digits(whole) * NS + _digits(part[:9].ljust(9, "0"))
    return -number if text.startswith("-") else number


def _holes(told: dict[str, str], stored: int) -> Regions:
    """Gives where the bytes of a file with holes lie. Raises ValueError."""
    if tuple(sorted(told)) != _HOLES:
        raise ValueError("a sparse file of another form")
    numbers = [_digits(text) for text in told["map"].split(",")]
    if len(numbers) != 2 * _digits(told["numblocks"]):
        raise ValueError("a sparse file whose map has another length")
    regions = list(zip(numbers[::2], numbers[1::2], strict=True))
    end = 0
    for start, length in regions:
        if start < end:
            raise ValueError("a sparse file whose map is none")
        end = start + length
    if end > _digits(told["size"]) or sum(length for _, length in regions) != stored:
        raise ValueError("a sparse file whose map is not its size")
    return regions


def _apply(row: Member, pax: dict[str, bytes]) -> tuple[Member, Regions]:
    """Gives the member with what its pax header says, and where its bytes lie."""
    told: dict[str, Any] = {}
    xattrs: dict[str, str] = {}
    sparse: dict[str, str] = {}
    for key, value in pax.items():
        text = value.decode("utf-8", "surrogateescape")
        if key == "path":
            told["path"] = text
        elif key == "linkpath":
            told["link"] = text
        elif key in ("size", "uid", "gid"):
            told[key] = _digits(text)
        elif key == "mtime":
            told[key] = _nanoseconds(text)
        elif key.startswith(_XATTR):
            # tar writes % and = of a name as escapes
            name = key[len(_XATTR) :].replace("%3D", "=").replace("%25", "%")
            xattrs[name] = base64.b64encode(value).decode("ascii")
        elif key.startswith(_SPARSE) and row.type == FILE:
            sparse[key[len(_SPARSE) :]] = text
        else:
            raise ValueError(f"an unknown record {key[:40]!r}")
    row = row._replace(**told, xattrs=xattrs)
    if not sparse:
        return row, [(0, row.size)]
    regions = _holes(sparse, row.size)
    # "path" is then a name for those who know nothing of holes
    return row._replace(path=sparse["name"], size=int(sparse["size"])), regions


class _Contents:
    """The sha256 of a file's bytes as they pass; a hole counts as the zeros that it reads as."""

    def __init__(self, size: int, regions: Regions) -> None:
        self._digest = hashlib.sha256()
        self._size, self._at = size, 0
        self._regions = iter(regions)
        self._left = 0

    def add(self, raw: memoryview) -> None:
        """Take in the next bytes that are stored."""
        while raw:
            while not self._left:
                start, self._left = next(self._regions)
                self._fill(start)
            part = raw[: self._left]
            self._digest.update(part)
            self._at += len(part)
            self._left -= len(part)
            raw = raw[len(part) :]

    def _fill(self, upto: int) -> None:
        while self._at < upto:
            count = min(upto - self._at, len(_ZEROS))
            self._digest.update(memoryview(_ZEROS)[:count])
            self._at += count

    def sha256(self) -> str:
        """Gives the hash of all of the file."""
        self._fill(self._size)
        return self._digest.hexdigest()


class Reader:
    """The stream, piece by piece. `feed` raises NodeError before the piece may go any further.

    `wanted` gives the members in the order in which they must come; `check` gets each of them.
    `hashes` are those of the files' bytes, in the same order.
    """

    def __init__(self, wanted: Iterator[Member], check: Callable[[Member], None]) -> None:
        self._wanted = wanted
        self._check = check
        self._rest = b""
        self._skip = 0
        self._body: list[bytes] | None = None
        self._pax: dict[str, bytes] = {}
        self._left = 0
        self._ended = False
        self._file = Member("", "", 0, 0, 0, 0, 0, "", {})
        self._contents: _Contents | None = None
        self.count = 0
        self.hashes: list[str] = []

    def feed(self, piece: bytes) -> None:
        """Look at the next piece of the stream."""
        data = memoryview(self._rest + piece if self._rest else piece)
        at = 0
        while True:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._pass(data[at : at + step])
                at += step
                self._skip -= step
                if self._skip:
                    break
                self._end_of_body()
            if len(data) - at < BLOCK:
                break
            self._header(bytes(data[at : at + BLOCK]))
            at += BLOCK
        self._rest = bytes(data[at:])

    def _pass(self, part: memoryview) -> None:
        """Look at bytes of a body; what fills its last block is not among those of a file."""
        if self._body is not None:
            self._body.append(bytes(part))
            return
        if self._contents and self._left:
            self._contents.add(part[: self._left])
            self._left -= min(self._left, len(part))

    def _end_of_file(self) -> None:
        """Compare a file's bytes with their hash, once all of them have passed."""
        if self._contents is None:
            return
        found, self._contents = self._contents.sha256(), None
        self.hashes.append(found)
        if self._file.sha256 not in ("", found):
            raise refused(f"{self._file.path[:80]!r} has other bytes than were recorded")

    def _end_of_body(self) -> None:
        """Take in a pax header's records, or a file's hash, once all of it is there."""
        if self._body is None:
            self._end_of_file()
            return
        raw = b"".join(self._body)[: self._left]
        self._body = None
        try:
            self._pax = _pax(raw)
        except ValueError as error:
            raise refused(f"a pax header cannot be read: {error}") from None

    def _header(self, raw: bytes) -> None:
        """Look at one header block."""
        if raw.count(0) == BLOCK:
            self._ended = True
            return
        if self._ended:
            raise refused("something stands behind its end")
        try:
            fields = _HEADER.unpack(raw)
            if fields[9] != b"ustar\0" or fields[10] != b"00":
                raise ValueError("not a header of our form")
            if _number(fields[6]) != sum(raw) - sum(fields[6]) + _BLANK:
                raise ValueError("its checksum is wrong")
            letter = chr(raw[156])
            if letter == "x":
                size = _number(fields[4])
                if self._pax or size > MAX_PAX:
                    raise ValueError("a pax header that is doubled or too large")
                self._left, self._skip = size, (size + BLOCK - 1) // BLOCK * BLOCK
                self._body = []
                return
            self._member(fields, letter)
        except ValueError as error:
            raise refused(f"member {self.count + 1}: {error}") from None

    def _member(self, fields: tuple[bytes, ...], letter: str) -> None:
        """Look at one member: what it is, and whether it is the next of the manifest."""
        name, mode, uid, gid, size, mtime, _, _, target, _, _, prefix = fields
        path = _text(name)
        if letter not in _KNOWN:
            kind = _KINDS.get(letter, f"of type {letter!r}")
            raise ValueError(f"{path[:80]!r} is {kind}")
        if prefix[0]:
            path = f"{_text(prefix)}/{path}"
        link = _text(target) if letter in (LINK, SYMLINK) else ""
        row = Member(path, letter, _number(mode), _number(uid), _number(gid), _number(size),
                     _number(mtime) * NS, link, {})  # fmt: skip
        row, regions = _apply(row, self._pax)
        self._pax = {}
        self._left = sum(length for _, length in regions)
        self._skip = (self._left + BLOCK - 1) // BLOCK * BLOCK
        if letter == FOLDER and row.path.endswith("/"):
            row = row._replace(path="." if row.path == "./" else row.path[:-1])
        if letter != FILE and row.size:
            raise ValueError(f"{row.path[:80]!r} is no file and has a body")
        self._check(row)
        expected = next(self._wanted, None)
        if expected is None:
            raise ValueError(f"{row.path[:80]!r} is not in the list of members")
        if row != expected._replace(sha256=""):
            raise ValueError(f"{row.path[:80]!r} is not {expected.path[:80]!r} as it was recorded")
        self.count += 1
        if letter == FILE:
            self._file, self._contents = expected, _Contents(row.size, regions)
            if not self._skip:
                self._end_of_file()

    def finish(self) -> None:
        """Say that the stream has ended. Raises NodeError when it is not whole."""
        if self._rest or self._skip or self._body is not None or self._pax:
            raise refused(f"it ends in the middle, after {self.count} members")
        if next(self._wanted, None) is not None:
            raise refused(f"it ends after {self.count} members, and more were recorded")
        if not self._ended:
            raise refused("it has no end")


class Safety:
    """What no member may be, whatever a manifest says: it would land outside of its folder."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._files: dict[str, str] = {}
        self.setuid: list[str] = []

    def __call__(self, row: Member) -> None:
        """Look at the next member. Raises ValueError."""
        path = row.path
        self._inside(path, path)
        if row.type == FOLDER:
            self._folders.add(path)
        elif path == ".":
            raise ValueError("the root is no folder")
        if path != "." and path in self._files:
            raise ValueError(f"{path[:80]!r} stands twice")
        above = path.rpartition("/")[0] or "."
        if path != "." and above not in self._folders:
            raise ValueError(f"{path[:80]!r} does not lie in a folder of the payload")
        if row.type == LINK:
            self._inside(row.link, path)
            if self._files.get(row.link) not in (FILE, SYMLINK):
                raise ValueError(f"{path[:80]!r} shares {row.link[:80]!r}, which is no file of it")
        if row.type == FILE and (row.mode & 0o6000 or "security.capability" in row.xattrs):
            self.setuid.append(path)
        self._files[path] = row.type

    @staticmethod
    def _inside(path: str, what: str) -> None:
        """Raise ValueError for a path that leads out, or could."""
        parts = path.split("/")
        if path != "." and (".." in parts or "." in parts or "" in parts):
            raise ValueError(f"{what[:80]!r} leads out of its folder ({path[:80]!r})")


# A payload read from the disk, hashed and uncompressed.


def forget(fd: int) -> None:
    """Take a file's clean pages out of the page cache: what is read next comes from the disk."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


class PayloadReader:
    """The uncompressed stream of a payload: a thread reads, hashes and hands it to zstd.

    It reads past the page cache. `read` gives the next piece; `finish` gives the sha256 of all
    bytes of the payload.
    """

    def __init__(self, path: str, progress: Progress) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._progress = progress
        self._digest = hashlib.sha256()
        self._error = ""
        self._over = False
        self.said = StderrTail()
        self.zstd = start_compressor(
            ["zstd", "-d", "-q", "-c", "--no-progress"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said.write_fd,
        )  # fmt: skip
        assert self.zstd.stdin and self.zstd.stdout
        enlarge_pipe(self.zstd.stdin)
        enlarge_pipe(self.zstd.stdout)
        self._stream = self.zstd.stdout
        self._thread = threading.Thread(target=self._hand, daemon=True)
        self._thread.start()

    def read(self) -> bytes:
        """Gives the next piece, at most CHUNK bytes; none at the end."""
        return os.read(self._stream.fileno(), CHUNK)

    def _hand(self) -> None:
        """Read, hash and hand on; after zstd has ended the rest is hashed all the same."""
        pipe = self.zstd.stdin
        assert pipe
        done = 0
        try:
            forget(self._fd)
            while True:
                raw = os.read(self._fd, CHUNK)
                done += len(raw)
                if done % FLUSH < CHUNK or not raw:
                    forget(self._fd)
                if not raw or self._over:
                    break
                self._digest.update(raw)
                self._progress.add(len(raw))
                if not pipe.closed:
                    try:
                        pipe.write(raw)
                    except (BrokenPipeError, ValueError):
                        pipe.close()
        except OSError as error:
            self._error = io_reason(error)
        with contextlib.suppress(OSError, ValueError):
            pipe.close()

    def finish(self) -> str:
        """Gives the payload's sha256. Raises NodeError when it cannot be read in whole."""
        self._thread.join()
        if self._error:
            raise NodeError(f"the payload cannot be read: {self._error}", "backup_damaged")
        return self._digest.hexdigest()

    def code(self) -> int:
        """Gives zstd's exit status; its output must be at its end."""
        return self.zstd.wait()

    def close(self) -> str:
        """End everything; gives the last words of zstd."""
        self._over = True
        reap_children([self.zstd])
        self._thread.join()
        os.close(self._fd)
        return self.said.last()
