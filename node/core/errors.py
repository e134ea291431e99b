"""The one error of the program: a clear line, a stable code and a remedy."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


class NodeError(Exception):
    """A refusal or failure that a person can act on.

    Takes one line of text, a stable code for programs, the remedy (may be empty) and the exit
    status: 1, or 2 for bad usage.
    """

    def __init__(self, message: str, code: str, remedy: str = "", exit_status: int = 1) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code
        self.remedy = remedy
        self.exit_status = exit_status
        # told to a person as text, not as JSON
        self.spoken = False

    def as_json(self) -> Json:
        """Gives the error as the protocol's answer object."""
        return {"ok": False, "error": str(self), "code": self.code, "remedy": self.remedy}


class OtherProgram(NodeError):
    """A change that only the program at `program` (a path, or None) understands."""

    def __init__(self, message: str, code: str, remedy: str, program: str | None) -> None:
        super().__init__(message, code, remedy)
        self.program = program


class CannotRead(Exception):
    """A section of the snapshot that cannot be read; the text is the reason."""


def io_reason(error: OSError) -> str:
    """Gives an OSError as `path: reason`, without Python's own decoration."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


_FULL = "df -h {folder}; df -i {folder}"
# what shows why the kernel refuses to write
_LOOKS = {
    errno.EPERM: "lsattr -d {folder} {path}",
    errno.EROFS: "findmnt -T {folder}",
    errno.EBUSY: "findmnt -T {path}",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
}


def io_remedy(error: BaseException) -> str:
    """Gives the command that shows why a path cannot be written, or ""."""
    path = str(getattr(error, "filename", None) or "")
    look = _LOOKS.get(getattr(error, "errno", None) or 0)
    if look is None or not path.startswith("/"):
        return ""
    return look.format(path=shlex.quote(path), folder=shlex.quote(os.path.dirname(path)))


def failure(error: BaseException) -> Json:
    """Gives what the program answers for an exception: the protocol's object."""
    if isinstance(error, NodeError):
        return error.as_json()
    if isinstance(error, CannotRead):
        return NodeError(str(error), "io").as_json()
    if isinstance(error, OSError):
        return NodeError(io_reason(error), "io", io_remedy(error)).as_json()
    text = f"a fault of rignode itself: {type(error).__name__}: {error}"
    return NodeError(text, "internal").as_json()


def guarded(part: Callable[[], Any]) -> Any:
    """Gives what is read, or why it cannot be: one part of a snapshot never spoils the others."""
    try:
        return part()
    except (CannotRead, NodeError) as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"unreadable": io_reason(error)}
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


# One line to the journal, with the priority that journald reads in front (sd-daemon(3)).

INFO, NOTICE, WARNING, ERROR = 6, 5, 4, 3


def log(text: str, priority: int = INFO) -> None:
    """Print one line; under systemd with its priority, so that LogLevelMax= can sift it."""
    line = " ".join(text.split())
    prefix = f"<{priority}>" if os.environ.get("JOURNAL_STREAM") else ""
    sys.stdout.write(f"{prefix}{line}\n")
    sys.stdout.flush()


# Signals that ask the program to end: the step under way is finished, the next is not begun.

_caught: list[int] = []


def on_signal(number: int, _frame: object) -> None:
    """Remember a signal."""
    _caught.append(number)


def catch_signals() -> None:
    """Make SIGTERM, SIGHUP and SIGINT wait for the end of a step."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, on_signal)


def interrupted() -> str:
    """Gives the name of the signal that asked to end, or ""."""
    return signal.Signals(_caught[0]).name if _caught else ""


# Where the versions of the program lie, which one the console runs, and which one this is.

LINK = "/usr/local/bin/rignode"
LIBRARY = "/usr/local/lib/rigbook"
NAME = re.compile(r"rignode-[0-9a-f]{12}\.pyz")


def own_path() -> str | None:
    """Gives the zipapp that this is, by its path; where it was sent and runs from memory, the path
    that it would have. None when it is no zipapp."""
    archive = globals().get("__file__", "").rpartition("/node/")[0]
    if archive.startswith("/proc/self/fd/"):
        found = NAME.search(os.readlink(archive))
        return os.path.join(LIBRARY, found[0]) if found else None
    return archive if NAME.fullmatch(os.path.basename(archive)) else None


def installed_version() -> str | None:
    """Gives the version that the console's `rignode` link points to, or None."""
    try:
        name = os.path.basename(os.readlink(LINK))
    except OSError:
        return None
    return name[len("rignode-") : -len(".pyz")] if NAME.fullmatch(name) else None
