"""Where sealed pieces lie: a folder of this machine, or one over sftp. Nothing half has a name."""

from __future__ import annotations

import getpass
import os
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import paramiko

from operations.change.node_call import StepFailed

OPERATOR, SFTP = "operator:", "sftp://"
_PART = ".part"
_CHUNK = 1 << 20
CONNECT_S = 20
T = TypeVar("T")


class Place(Protocol):
    """A folder that holds files, by their paths below it. Every method raises StepFailed."""

    def write(self, name: str, raw: bytes) -> None:
        """Write a file whole, in a folder that is made for it."""

    def read(self, name: str) -> bytes | None:
        """A file's bytes as they lie there, None where there is none."""

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, by name; nothing where there is none."""

    def close(self) -> None:
        """Done with it."""


class Folder:
    """A folder of this machine, the operator's alone."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise StepFailed(f"{path} is not there, or no folder: make it, or mount its disk")

    def write(self, name: str, raw: bytes) -> None:
        """By a name of its own, flushed, then renamed."""
        path = self._path / name
        part = path.with_name(path.name + _PART)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(fd)
                # what is read back comes from the disk
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            part.rename(path)
            _sync(path.parent)
        except OSError as error:
            raise StepFailed(f"{path}: {error.strerror or error}") from None

    def read(self, name: str) -> bytes | None:
        """As Place."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StepFailed(f"{self._path / name}: {error.strerror or error}") from None

    def names(self, folder: str) -> list[str]:
        """As Place."""
        try:
            return sorted(path.name for path in (self._path / folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StepFailed(f"{self._path / folder}: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is open."""


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Sftp:
    """A folder over sftp. The host's key must be known; the login is by the agent or a key."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url, self._path = url, parts.path
        self._client = paramiko.SSHClient()
        self._client.load_system_host_keys()
        self._client.set_missing_host_key_policy(paramiko.RejectPolicy())
        host, port = str(parts.hostname), parts.port or 22
        try:
            self._client.connect(
                host, port, parts.username or getpass.getuser(), timeout=CONNECT_S,
                banner_timeout=CONNECT_S, auth_timeout=CONNECT_S,
            )  # fmt: skip
            self._sftp = self._client.open_sftp()
            self._sftp.stat(self._path)
        except FileNotFoundError:
            self._client.close()
            raise StepFailed(f"{url}: {self._path} is not there: make it") from None
        except (OSError, paramiko.SSHException, EOFError) as error:
            self._client.close()
            known = "" if "known_hosts" not in str(error) else f"; ssh -p {port} {host} once"
            raise StepFailed(f"{url}: {error or type(error).__name__}{known}") from None

    def write(self, name: str, raw: bytes) -> None:
        """By a name of its own, then renamed."""
        path = posixpath.join(self._path, name)

        def work() -> None:
            self._make(posixpath.dirname(path))
            with self._sftp.open(path + _PART, "wb") as file:
                file.set_pipelined(True)
                for at in range(0, len(raw), _CHUNK):
                    file.write(raw[at : at + _CHUNK])
            self._sftp.chmod(path + _PART, 0o600)
            self._sftp.posix_rename(path + _PART, path)

        self._tried(path, work)

    def read(self, name: str) -> bytes | None:
        """As Place."""
        path = posixpath.join(self._path, name)

        def work() -> bytes | None:
            try:
                with self._sftp.open(path, "rb") as file:
                    file.prefetch()
                    return b"".join(iter(lambda: file.read(_CHUNK), b""))
            except FileNotFoundError:
                return None

        return self._tried(path, work)

    def names(self, folder: str) -> list[str]:
        """As Place."""
        path = posixpath.join(self._path, folder)

        def work() -> list[str]:
            try:
                return sorted(self._sftp.listdir(path))
            except FileNotFoundError:
                return []

        return self._tried(path, work)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _make(self, folder: str) -> None:
        for at in range(len(self._path.rstrip("/")) + 1, len(folder) + 1):
            if at == len(folder) or folder[at] == "/":
                try:
                    self._sftp.stat(folder[:at])
                except FileNotFoundError:
                    self._sftp.mkdir(folder[:at], 0o700)

    def _tried(self, path: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, paramiko.SSHException, EOFError) as error:
            raise StepFailed(f"{self._url}: {path}: {error or type(error).__name__}") from None


def opened(place: str) -> Place:
    """The place that `operator:FOLDER` or `sftp://[USER@]HOST[:PORT]/PATH` names. StepFailed."""
    return Sftp(place) if place.startswith(SFTP) else Folder(place.removeprefix(OPERATOR))
