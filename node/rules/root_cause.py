"""The root cause in a log of vLLM: the first exception of a start, not the ones that follow it.

Each process of vLLM prints its own traceback, the worker first and the API server last; the last
one says only that the others failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# (EngineCore pid=2150) ERROR 06-29 11:22:29 [core.py:1231] …, with parts that versions leave out
_PREFIX = re.compile(
    r"^(?:\((?P<process>[^()]+?(?: pid=|, ip=|=)[^()]*)\) ?)*"
    r"(?:\[rank\d+\]: ?)?(?:(?P<level>ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d "
    r"(?:\[[\w./-]+:\d+\]|[\w.]+:\d+\]) ?)?(?:\[rank\d+\]: ?)?"
)
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_RAISED = re.compile(
    r"^(?:\w+\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|Warning)\w*(?::|$)"
)
# what only says that another process, or the same one earlier, has failed
_FOLLOWS = re.compile(
    r"Engine core initialization failed|EngineDeadError|Worker(?:Proc)? (?:failed|initialization "
    r"failed)|See (?:root cause|stack trace) above|Executor failed|WorkerProc hit an exception"
    r"|cancelled|KeyboardInterrupt|SystemExit"
)
MOST = 300
# how a snapshot marks the line among a unit's errors
ROOT_CAUSE = "root cause: "


class RootCause(NamedTuple):
    """What was raised, and the last frame of vLLM's own code on the way to it (None: none)."""

    text: str
    place: str | None

    def line(self) -> str:
        """Gives one line: what, and where."""
        where = f" ({self.place})" if self.place else ""
        return f"{ROOT_CAUSE}{self.text}{where}"


class _Trace:
    """A traceback that is being read; each process has one of its own."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.own: list[str] = []

    def add(self, file: str, line: str, name: str) -> None:
        """Takes a frame; `vllm/v1/core.py` stands for the path of any installation."""
        at = file.rfind("/vllm/")
        shown = file[at + 1 :] if at >= 0 else file
        (self.own if at >= 0 else self.frames).append(f"{shown}:{line} in {name.strip()}")

    def place(self) -> str | None:
        """Gives vLLM's last frame, else the last of all."""
        rows = self.own or self.frames
        return rows[-1] if rows else None


def find(lines: Iterable[str]) -> RootCause | None:
    """Gives the first exception that does not follow from another one; None where none stands."""
    open_traces: dict[str, _Trace] = {}
    later: RootCause | None = None
    for raw in lines:
        found = _PREFIX.match(raw)
        end = found.end() if found else 0
        process = (found["process"] if found else None) or ""
        text = raw[end:].rstrip()
        if found and found["level"] in ("WARNING", "INFO"):
            continue  # an exception that was caught, such as a module that may be absent
        if "Traceback (most recent call last)" in text:
            open_traces[process] = _Trace()
            continue
        trace = open_traces.get(process)
        if trace is None:
            continue
        frame = _FRAME.match(text)
        if frame:
            trace.add(frame["file"], frame["line"], frame["name"])
            continue
        raised = _RAISED.match(text)
        if raised:
            del open_traces[process]
            cause = RootCause(text.strip()[:MOST], trace.place())
            if not _FOLLOWS.search(text):
                return cause
            later = later or cause
    return later
