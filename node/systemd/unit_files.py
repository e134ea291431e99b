"""Unit files as systemd reads them: where drop-ins lie, which one wins, what an Exec line runs.

systemd tells only what it has loaded; this tells what a unit would be with other files.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from node.core import proc
from node.core.errors import Json, NodeError
from node.core.systemctl import systemctl
from node.systemd.exec_lines import Command

# what may stand before the program (systemd.service(5), "Command lines")
_PREFIXES = re.compile(r"^[@\-:+!|]*")
FOLDER_SUFFIX = ".d"
_SPECIFIER = re.compile(r"%[^%]|%$")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "\\": "\\", '"': '"', "'": "'"}


class Part(NamedTuple):
    """One file of a unit: its path on this host and its text."""

    path: str
    text: str


class Line(NamedTuple):
    """One effective Exec line: the file that it stands in, and its value."""

    path: str
    value: str


def search_path() -> list[str]:
    """Gives the folders that systemd reads units from, the strongest first. Raises NodeError."""
    found = systemctl("show", "-p", "UnitPath", "--value").split()
    if not found:
        raise NodeError("systemd does not say where it reads units from", "unit_failed")
    return found


def _folders(name: str, search: Sequence[str]) -> Iterator[str]:
    """Gives the drop-in folders of a unit, the strongest first (systemd.unit(5))."""
    stem, dot, kind = name.rpartition(".")
    names = [name]
    at = stem.partition("@")
    if at[1] and at[2]:
        names.append(f"{at[0]}@{dot}{kind}")
    words = at[0].split("-")
    names += [f"{'-'.join(words[:n])}-{dot}{kind}" for n in range(len(words) - 1, 0, -1)]
    for folder in search:
        for each in names:
            yield f"{folder}/{each}.d"
    for folder in search:
        yield f"{folder}/{kind}.d"


def drop_ins(name: str, search: Sequence[str], proposed: dict[str, bytes | None]) -> list[Part]:
    """Gives a unit's drop-ins in the order of reading, as they would be with the proposed files.

    `proposed` maps a path to its bytes, or to None where it is to go. Of equal names the
    strongest folder's counts.
    """
    found: dict[str, Part] = {}
    for folder in _folders(name, search):
        paths = set(glob.glob(glob.escape(folder) + "/*.conf"))
        paths |= {path for path in proposed if os.path.dirname(path) == folder}
        for path in sorted(paths):
            if path in proposed:
                raw = proposed[path]
                if raw is None:
                    continue
                text = raw.decode("utf-8", "replace")
            else:
                text = proc.read_text(path)
            found.setdefault(os.path.basename(path), Part(path, text))
    return [found[name] for name in sorted(found)]


def assignments(text: str) -> Iterator[tuple[str, str, str]]:
    """Gives (section, key, value) of each line, continued lines joined, comments left out."""
    section, held = "", ""
    for raw in text.split("\n"):
        line = raw.strip()
        if line[:1] in ("#", ";"):
            continue
        line = held + line
        if line.endswith("\\"):
            held = line[:-1] + " "
            continue
        held = ""
        if line.startswith("["):
            section = line
        key, equals, value = line.partition("=")
        if equals:
            yield section, key.strip(), value.strip()


def exec_lines(parts: Sequence[Part], step: str) -> list[Line]:
    """Gives the effective lines of an Exec step: an empty one takes away all before it."""
    lines: list[Line] = []
    for part in parts:
        for section, key, value in assignments(part.text):
            if section == "[Service]" and key == step:
                lines = [*lines, Line(part.path, value)] if value else []
    return lines


def override(path: str, text: str) -> Json | None:
    """Gives what a drop-in does to ExecStart, or None when it leaves it alone."""
    values = [
        " ".join(value.split())
        for section, key, value in assignments(text)
        if (section, key) == ("[Service]", "ExecStart")
    ]
    if not values:
        return None
    return {
        "path": path,
        "exec_start": [value for value in values if value],
        "resets": "" in values,
    }


def words(value: str) -> list[str] | None:
    """Gives the words of a command line by systemd's rules, or None when its quotes are open."""
    found: list[str] = []
    word, quote, inside, at = "", "", False, 0
    while at < len(value):
        char = value[at]
        at += 1
        if char == "\\" and at < len(value):
            word += _ESCAPES.get(value[at], "\\" + value[at])
            inside, at = True, at + 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, inside = char, True
        elif char.isspace():
            if inside:
                found.append(word)
            word, inside = "", False
        else:
            word, inside = word + char, True
    if quote:
        return None
    return [*found, word] if inside else found


def commands(parts: Sequence[Part], step: str) -> list[Command]:
    """Gives the effective commands of a step; one whose words only systemd knows is left out.

    Specifiers (%i) and variables (${X}) are not expanded: such a word stays as it stands.
    """
    found: list[Command] = []
    for line in exec_lines(parts, step):
        prefix = _PREFIXES.match(line.value)
        marks = prefix.group() if prefix else ""
        told = words(line.value[len(marks) :])
        if not told or _SPECIFIER.search(told[0].replace("%%", "")):
            continue
        one: list[str] = []
        for word in [*told, ";"]:
            if word != ";":
                one.append(word.replace("%%", "%").replace("$$", "$"))
            elif one:
                argv = one[:1] + one[2:] if "@" in marks else one
                found.append(Command(step, one[0], tuple(argv), "-" in marks))
                one = []
    return found
