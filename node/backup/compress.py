"""GNU tar and zstd as children, with the compressed bytes hashed while they pass."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from node.core.errors import Json, NodeError
from node.core.run import environment, which

CHUNK = 1 << 20
# zstd takes memory for each thread; more than this gains nothing over tar's one
MAX_THREADS = 8
# the payload goes to the disk in pieces of this size while the rest is being made
FLUSH = 64 << 20
# pieces that are compressed before they are hashed
AHEAD = 8
PROGRESS_S = 5.0
_F_SETPIPE_SZ = 1031


def programs() -> None:
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


def start(argv: list[str], **files: Any) -> subprocess.Popen[bytes]:
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
        tar = start(
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
        zstd = start(["zstd", "-1", f"-T{threads}", "--no-progress", "-q", "-c"],
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
