"""What a systemd unit starts, and which of the files that it names are not there.

Exit status 127 or 203 is a missing file, never an application's crash: the file may be missing on
the host or, behind `docker exec`, inside the container (the third seed's ghost script).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from node.core.errors import CannotRead, Json, NodeError
from node.docker import filesystem

STEPS = ("ExecStartPre", "ExecStart", "ExecStartPost")
_INTERPRETERS = re.compile(r"^(?:ba|da|z|k)?sh$|^python[0-9.]*$|^env$")
# options of `docker exec` that take a value in the next word
_EXEC_VALUES = {"-e", "--env", "-u", "--user", "-w", "--workdir", "--env-file", "--detach-keys"}


class Command(NamedTuple):
    """One command of a unit: its step, the program's path, its words, `-` before it."""

    step: str
    path: str
    words: tuple[str, ...]
    may_fail: bool


def commands(step: str, values: Iterable[str]) -> list[Command]:
    """Gives the commands of an Exec property's values, as `systemctl show` prints them.

    systemd prints argv joined by blanks, so an argument that holds a blank comes apart.
    """
    found: list[Command] = []
    for value in values:
        if "argv[]=" in value:
            path = value.partition("path=")[2].partition(" ;")[0].strip()
            words = value.partition("argv[]=")[2].partition(" ; ignore_errors=")[0]
            may_fail = "; ignore_errors=yes" in value
            found.append(Command(step, path, tuple(words.split()), may_fail))
    return found


def script(words: Sequence[str]) -> str | None:
    """Gives the absolute path of the file that an interpreter's command line runs, or None."""
    if not words or not _INTERPRETERS.match(os.path.basename(words[0])):
        return None
    for word in words[1:]:
        if word == "-c" or word == "-m":
            return None
        if word.startswith("/"):
            # `env /usr/bin/x` runs x, `bash /x.sh` reads it: both must be there
            return word
        if not word.startswith("-") and "=" not in word:
            return None
    return None


def inner(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Gives (container, command line) of a `docker exec`, or None for anything else."""
    if len(words) < 3 or os.path.basename(words[0]) != "docker" or words[1] != "exec":
        return None
    rest = list(words[2:])
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in _EXEC_VALUES else rest[1:]
    return (rest[0], tuple(rest[1:])) if len(rest) > 1 else None


def ghosts(found: Sequence[Command]) -> list[Json]:
    """Gives the files that these commands name and that are not there.

    What cannot be told (docker silent, no such container) is not called missing. A
    command that may fail (`-` before it) stops no start.
    """
    missing: list[Json] = []
    for command in found:
        if command.may_fail:
            continue
        for path in filter(None, (command.path, script(command.words))):
            if path.startswith("/") and not os.path.exists(path):
                missing.append({"step": command.step, "path": path, "container": None})
        inside = inner(command.words)
        if inside:
            name, words = inside
            paths = [path for path in (words[0], script(words)) if path and path.startswith("/")]
            for path in paths:
                if _inside(name, path) is False:
                    missing.append({"step": command.step, "path": path, "container": name})
    return missing


def _inside(name: str, path: str) -> bool | None:
    """Gives whether a container has the file; None when that cannot be told."""
    try:
        return filesystem.stat_mode(filesystem.container(name), path) is not None
    except (CannotRead, NodeError, OSError):
        return None
