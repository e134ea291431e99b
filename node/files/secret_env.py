"""The engine's secrets as an environment file: rendered on this host, compared here, read here.

A value never leaves the host, and neither does a digest of one: the file's first line is random, so
its sha256 (in the journal, in a snapshot) says nothing of what stands in it. No error quotes one.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import Json, NodeError
from node.rules.env_text import environment_text, environment_value
from node.rules.secret import MAX_VALUE, unfit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEAD = "# Managed by rigbook, for root alone. This keeps its checksum from telling a value: "
_KEYS = ("name", "value", "node_file")


class Row(NamedTuple):
    """A secret: its variable and its value."""

    name: str
    value: str


def parse(value: Any, where: str) -> list[Row]:
    """Gives the secrets of a request; those of a file of this host are read. Raises NodeError."""
    rows = [_row(row, f"{where}[{n}]") for n, row in enumerate(validate.array(value, where, 100))]
    if len({row.name for row in rows}) != len(rows):
        raise validate.bad(f"{where}: a name stands twice")
    return rows


def _row(value: Any, where: str) -> Row:
    row = validate.keys(value, where, _KEYS, ("name",))
    name = row["name"]
    if not isinstance(name, str) or not _NAME.match(name):
        raise validate.bad(f"{where}.name is not a variable's name")
    if ("value" in row) == ("node_file" in row):
        raise validate.bad(f"{where}: give 'value' or 'node_file', one of them")
    if "node_file" in row:
        return Row(name, of_file(name, validate.path(row["node_file"], f"{where}.node_file")))
    if not isinstance(row["value"], str):
        raise validate.bad(f"{where}.value is not text")
    return Row(name, _fit(name, row["value"], "the value that was sent"))


def _fit(name: str, value: str, what: str) -> str:
    wrong = unfit(name, value)
    if wrong:
        raise NodeError(f"{name}: {what} {wrong}", "secret_unusable", "write it anew, as one line")
    return value


def of_file(name: str, path: str) -> str:
    """Gives the secret `name`, the one line of a file of this host. Raises NodeError
    (`secret_unusable`).
    """

    def unusable(why: str, remedy: str) -> NodeError:
        return NodeError(f"{name}: {path} {why}", "secret_unusable", remedy)

    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            info = os.fstat(file.fileno())
            raw = file.read(MAX_VALUE + 3) if stat.S_ISREG(info.st_mode) else b""
    except OSError as error:
        raise unusable(f"cannot be read: {error.strerror}", f"put the secret into {path}") from None
    if not stat.S_ISREG(info.st_mode):
        raise unusable("is no plain file", "name the file itself")
    if info.st_mode & stat.S_IRWXO:
        raise unusable("is open to every user", f"chmod o= {shlex.quote(path)}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise unusable("is not UTF-8 text", "write it anew, as one line") from None
    return _fit(name, text.removesuffix("\n").removesuffix("\r"), path)


def _lines(rows: list[Row], quoted: bool) -> list[str]:
    written = environment_value if quoted else str
    return [f"{name}={written(value)}" for name, value in rows]


def _former(path: str) -> str:
    """Gives the text of the file as it is; nothing where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        return ""


def _pairs(text: str) -> dict[str, str]:
    """Gives the lines of an environment file by name, values as they are written."""
    rows = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, equals, value in rows if equals}


def render(path: str, rows: list[Row], quoted: bool) -> bytes:
    """Gives the file's bytes; those that lie there where they hold the same. `quoted`: for
    systemd, else raw, for docker."""
    former, lines = _former(path), _lines(rows, quoted)
    if former.startswith(_HEAD) and former.splitlines()[1:] == lines:
        return former.encode("utf-8")
    head = _HEAD + secrets.token_hex(16)
    return ("\n".join([head, *lines]) + "\n").encode("utf-8")


def look(request: Any) -> Json:
    """`secrets look`: how what is wanted differs from what lies there, by name; reads only."""
    wanted = ("path", "secrets", "quoted")
    body = validate.keys(request, "request", wanted, wanted)
    former = _pairs(_former(validate.path(body["path"], "path")))
    lines = _lines(parse(body["secrets"], "secrets"), validate.boolean(body["quoted"], "quoted"))
    now = _pairs("\n".join(lines))
    states = {
        name: "unchanged" if former.get(name) == value else "changed" if name in former else "new"
        for name, value in now.items()
    }
    return {"states": {**states, **{name: "removed" for name in former if name not in now}}}


def value_of(path: str, name: str, quoted: bool) -> str | None:
    """Gives the secret of that name in the file; None where there is none that we may read."""
    try:
        value = _pairs(_former(path)).get(name)
    except PermissionError:
        return None
    return environment_text(value) if value is not None and quoted else value


def values_of(path: str, quoted: bool) -> list[str]:
    """Gives the values of all secrets in the file; none where there is none that we may read."""
    try:
        values = _pairs(_former(path)).values()
    except PermissionError:
        return []
    return [environment_text(value) if quoted else value for value in values]
