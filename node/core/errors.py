"""The one error of the program: a clear line, a stable code and a remedy."""

from __future__ import annotations

import errno
import os
import shlex
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
