"""The program that units name, drop-ins, an installed unit read."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from schema.core import Frozen, HiddenValueError, env_name, single_line, systemd_argument

# The program on a node by its version, as the units that rigbook writes name it.
#
# A unit names the versioned file, so that a run of another checkout does not change what the next
# boot starts. /usr/local/bin/rignode leads to the newest one and is for people.

NODE = Path(__file__).resolve().parents[1] / "node"
PROGRAM_LIBRARY = "/usr/local/lib/rigbook"
PROGRAM_LINK = "/usr/local/bin/rignode"
# units of rigbook 1 named the link
_NAMED = re.compile(
    rf"{re.escape(PROGRAM_LINK)}|{re.escape(PROGRAM_LIBRARY)}/rignode-[0-9a-f]{{12}}\.pyz"
)


@functools.cache
def program_files() -> dict[str, Path]:
    """The program's files, `node/...` to where each stands, sorted."""
    found = {f"node/{p.relative_to(NODE).as_posix()}": p for p in NODE.rglob("*.py")}
    return {name: found[name] for name in sorted(found)}


@functools.cache
def program_file(name: str) -> bytes:
    """The bytes of one of `paths`."""
    return program_files()[name].read_bytes()


def whole_program() -> dict[str, bytes]:
    """All files of the program, `node/...` to bytes, sorted."""
    return {name: program_file(name) for name in program_files()}


@functools.cache
def program_version() -> str:
    """The first 12 hex digits of the sha256 over the program's files."""
    digest = hashlib.sha256()
    for name, source in whole_program().items():
        digest.update(f"{name}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()[:12]


def program_path() -> str:
    """The path of this checkout's program on a node."""
    return f"{PROGRAM_LIBRARY}/rignode-{program_version()}.pyz"


def programs_in(text: str) -> list[str]:
    """The programs that a unit's text names, each once."""
    return list(dict.fromkeys(_NAMED.findall(text)))


def unversioned(text: str) -> str:
    """A unit's text with the link in place of the versions that it names."""
    return _NAMED.sub(PROGRAM_LINK, text)


def same_but_program(one: str, other: str) -> bool:
    """Whether two texts of a unit differ in nothing but the version of the program they name."""
    return unversioned(one) == unversioned(other)


# What the launch files on a node say, read from their texts.


@dataclass(frozen=True)
class InstalledEndpoint:
    """Where an engine answers and what is expected of it."""

    url: str
    model: str
    reasoning: bool
    chat_template_kwargs: tuple[tuple[str, Any], ...]


def endpoint_in(document: str) -> InstalledEndpoint | None:
    """The endpoint of a node.json; None for a text without one, such as a worker's."""
    try:
        said = json.loads(document)["endpoint"]
        return InstalledEndpoint(
            str(said["url"]),
            str(said["model"]),
            bool(said["reasoning"]),
            tuple(said["chat_template_kwargs"].items()),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Membership:
    """The rig that a node was set up for, and the fabric addresses of its peers."""

    rig: str
    peers: tuple[str, ...]


def membership_in(document: str) -> Membership | None:
    """The rig that a node.json names; None for a text that names none."""
    try:
        said = json.loads(document)
        return Membership(str(said["rig"]), tuple(str(peer) for peer in said["peers"]))
    except (ValueError, KeyError, TypeError):
        return None


def argv_in(script: str) -> tuple[str, ...]:
    """The command line that a launch script runs, in the words of bash; () when not known."""
    lines = script.replace("\\\n", " ").splitlines()
    last = next((line for line in reversed(lines) if "serve" in line.split()), "")
    try:
        words = shlex.split(last, comments=True)
    except ValueError:
        return ()
    return tuple(words[1:] if words[:1] == ["exec"] else words)


# A drop-in of a systemd unit: a small set of directives, each with its type, and its text.
#
# No free text: what stands in the file follows from checked values alone.

FOLDER = "/etc/systemd/system"
DROP_IN_NAME = "50-rigbook-exec"
HEADER = "# Written by rigbook (deploys/unit.py); --data remove=true takes it away.\n"
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@-]{0,200}\.service\Z")
# Nothing that systemd reads as a prefix, a specifier or a variable.
_PROGRAM = re.compile(r"/[A-Za-z0-9_./+@:,=~-]+\Z")
_ORDERED = re.compile(r"[0-9]{2}-[A-Za-z0-9._@+-]+\Z")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|AUTH", re.I)
_SECRET_FLAG = re.compile(r"--(?:[\w-]+-)?(?:api-key|token|secret|password)(?:=|\Z)")
_A_SECRET = HiddenValueError(
    "looks like a secret, and everybody may read a drop-in; allowed: an EnvironmentFile= of "
    "root's in the unit"
)
Restart = Literal[
    "no", "always", "on-success", "on-failure", "on-abnormal", "on-abort", "on-watchdog"
]


def unit_name(value: str) -> str:
    """The name of a service unit, with its suffix; no template."""
    if not _UNIT.match(value) or "@." in value:
        raise ValueError("is not a service's name; allowed: such as vllm-ds4-head.service")
    return value


def listed_argv(value: object) -> object:
    """A command line as its words: text is split at blanks as a shell does, nothing expanded."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    single_line(value)
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise ValueError(
            "has an open quote; allowed: words, quoted where they hold blanks"
        ) from None


def command(value: tuple[str, ...]) -> tuple[str, ...]:
    """A command line of a unit: an absolute program, then its arguments."""
    if not value:
        raise ValueError("is empty; allowed: /path/of/program and its arguments")
    if not _PROGRAM.match(value[0]) or ".." in value[0].split("/") or value[0].endswith("/"):
        raise ValueError(
            f"{value[0][:60]!r} is no program; allowed: an absolute path of letters, digits and "
            "_ . / + @ : , = ~ -, without `..`"
        )
    for word in value:
        single_line(word)
        if word == ";":
            raise ValueError("holds a single `;`, which systemd reads as the end of a command")
        if _SECRET_FLAG.match(word):
            raise _A_SECRET
    return value


def assignment(value: str) -> str:
    """`NAME=VALUE`, one line; not a secret, because everybody may read a unit's files."""
    name, equals, _ = single_line(value).partition("=")
    if not equals:
        raise ValueError("is no assignment; allowed: NAME=VALUE")
    env_name(name)
    if _SECRET.search(name):
        raise _A_SECRET
    return value


UnitName = Annotated[str, AfterValidator(unit_name)]
Argv = Annotated[tuple[str, ...], AfterValidator(command)]
Assignment = Annotated[str, AfterValidator(assignment)]


class DropIn(Frozen):
    """What a drop-in sets; None and () leave the unit's own value.

    `exec_start` replaces the unit's ExecStart=. `restart_sec` is in seconds.
    """

    exec_start: Argv | None = None
    restart: Restart | None = None
    restart_sec: int | None = None
    environment: tuple[Assignment, ...] = ()

    @property
    def empty(self) -> bool:
        """True when it sets nothing."""
        return self == DropIn()

    def text(self) -> str:
        """The file's text; an ExecStart= stands behind the empty one that resets it."""
        service: list[str] = []
        if self.exec_start is not None:
            service += ["ExecStart=", f"ExecStart={' '.join(map(_word, self.exec_start))}"]
        if self.restart is not None:
            service.append(f"Restart={self.restart}")
        if self.restart_sec is not None:
            service.append(f"RestartSec={self.restart_sec}")
        service += [f"Environment={_environment(item)}" for item in self.environment]
        return HEADER + "".join(f"{line}\n" for line in ("", "[Service]", *service) if service)


def _word(value: str) -> str:
    return systemd_argument(value) if value else '""'


def _environment(value: str) -> str:
    # No variables here, so `$` stays; `%` would be a specifier (systemd.exec(5)).
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def ordered(name: str) -> bool:
    """True for a name that says where a drop-in stands among others: two digits, then `-`."""
    return bool(_ORDERED.match(name))


def drop_in_path(unit: str, name: str) -> str:
    """Where an administrator's drop-in of a unit lies."""
    return f"{FOLDER}/{unit}.d/{name}.conf"
