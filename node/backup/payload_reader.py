"""A payload read from the disk, hashed and uncompressed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading

from node.backup import compress
from node.core.errors import NodeError, io_reason


def forget(fd: int) -> None:
    """Take a file's clean pages out of the page cache: what is read next comes from the disk."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


class PayloadReader:
    """The uncompressed stream of a payload: a thread reads, hashes and hands it to zstd.

    It reads past the page cache. `read` gives the next piece; `finish` gives the sha256 of all
    bytes of the payload.
    """

    def __init__(self, path: str, progress: compress.Progress) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._progress = progress
        self._digest = hashlib.sha256()
        self._error = ""
        self._over = False
        self.said = compress.StderrTail()
        self.zstd = compress.start(
            ["zstd", "-d", "-q", "-c", "--no-progress"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said.write_fd,
        )  # fmt: skip
        assert self.zstd.stdin and self.zstd.stdout
        compress.enlarge_pipe(self.zstd.stdin)
        compress.enlarge_pipe(self.zstd.stdout)
        self._stream = self.zstd.stdout
        self._thread = threading.Thread(target=self._hand, daemon=True)
        self._thread.start()

    def read(self) -> bytes:
        """Gives the next piece, at most CHUNK bytes; none at the end."""
        return os.read(self._stream.fileno(), compress.CHUNK)

    def _hand(self) -> None:
        """Read, hash and hand on; after zstd has ended the rest is hashed all the same."""
        pipe = self.zstd.stdin
        assert pipe
        done = 0
        try:
            forget(self._fd)
            while True:
                raw = os.read(self._fd, compress.CHUNK)
                done += len(raw)
                if done % compress.FLUSH < compress.CHUNK or not raw:
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
        compress.reap_children([self.zstd])
        self._thread.join()
        os.close(self._fd)
        return self.said.last()
