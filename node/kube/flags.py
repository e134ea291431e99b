"""A flag of a container's command line: found, set, and taken away again byte for byte.

The command line is the list `command` + `args`, or the script that it gives to a shell with `-c`.
What cannot be told for sure is refused: a patch must change one value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from node.core.errors import Json
from node.kube.place import PLAIN, Place, refused

FLAG = re.compile(r"^--[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh"))
# a last command of these: the engine is inside a block, or in the background
_BLOCK_ENDS = frozenset(("done", "fi", "esac", "}", "wait"))
_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\\\n)+)
      | (?P<comment>\#[^\n]*)
      | (?P<redirect>\d*(?:&>>|&>|>>|>&|<&|>\||>|<(?!<)))
      | (?P<split>&&|;|\n)
      | (?P<pipe>\|\||\|&|\|)
      | (?P<word>(?:[^\s;&|()<>'"\\`$]|\\.|'[^']*'|"(?:[^"\\`$]|\\.|\$(?!\())*"
                 |\$\([^()`'"\\]*\)|\$(?!\())+)""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    start: int
    end: int
    text: str


class _Line(NamedTuple):
    """A command line: the words' own places; `script`: (kind, index) of a shell's script."""

    rows: list[tuple[str, int, str]]
    script: tuple[str, int] | None


def is_flag(name: str) -> bool:
    """Gives True for the name of a flag, which no variable can have."""
    return bool(FLAG.match(name))


def find(box: Json, name: str) -> Place:
    """Gives where a flag's value stands. Raises NodeError when that is not one place."""
    line = _line(box)
    found = _in_script(box, line, name) if line.script else _in_list(box, line, name)
    seen = sum(len(_named(name).findall(text)) for _, _, text in line.rows)
    if seen != len(found):
        raise _unclear(box, name)
    if len(found) > 1:
        raise refused(f"{name} stands {len(found)} times in container {box['name']}",
                      "leave it in one place")  # fmt: skip
    return found[0] if found else Place("args", -1, None, "")


def edited(box: Json, name: str, value: str | None) -> tuple[str, list[str]]:
    """Gives which list changes and how it then reads; value None takes the flag away.

    A flag that is not there comes last: behind the last element of the list, or the last word of
    the script's last command.
    """
    line = _line(box)
    if line.script is None:
        return _edited_list(box, line, name, value)
    kind, at = line.script
    lines = list(box[kind])
    if value is not None and not PLAIN.match(value):
        raise refused(f"{name}: {value[:60]!r} would need quotes in the shell line that has it")
    lines[at] = _edited_script(box, lines[at], name, value)
    return kind, lines


def of_process(argv: Sequence[str], name: str) -> str | None:
    """Gives what a process's own command line has for a flag; None where it has none."""
    for index, word in enumerate(argv):
        if word.startswith(f"{name}="):
            return word[len(name) + 1 :]
        if word == name and index + 1 < len(argv):
            return argv[index + 1]
    return None


def _named(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")


def _unclear(box: Json, name: str) -> Exception:
    return refused(
        f"the command line of container {box['name']} is written in a way in which {name} is not "
        "read for sure (quoted, in a block, in the background, or more than once)",
        f"write the engine as its last command, with: {name} VALUE",
    )


def _line(box: Json) -> _Line:
    """Gives a container's command line. Raises NodeError where it is the image's own."""
    rows = [(kind, at, str(text)) for kind in ("command", "args")
            for at, text in enumerate(box.get(kind) or [])]  # fmt: skip
    if not rows:
        raise refused(
            f"container {box['name']} has neither command nor args: its command line is its "
            "image's own", "give the whole command line in the chart",
        )  # fmt: skip
    for index, (_, _, text) in enumerate(rows[:-1]):
        before = rows[:index]
        shell = any(os.path.basename(word) in _SHELLS for _, _, word in before)
        if re.match(r"^-[a-zA-Z]*c$", text) and (shell or not before):
            return _Line(rows, rows[index + 1][:2])
    return _Line(rows, None)


def _in_list(box: Json, line: _Line, name: str) -> list[Place]:
    found = []
    for index, (kind, at, text) in enumerate(line.rows):
        if text.startswith(f"{name}="):
            found.append(Place(kind, at, text[len(name) + 1 :], text))
        elif text == name:
            after = line.rows[index + 1] if index + 1 < len(line.rows) else None
            if after is None or after[2].startswith("--"):
                raise refused(f"{name} of container {box['name']} has no value there")
            found.append(Place(after[0], after[1], after[2], after[2]))
    return found


def _edited_list(box: Json, line: _Line, name: str, value: str | None) -> tuple[str, list[str]]:
    place = find(box, name)
    if place.value is None:
        kind = line.rows[-1][0]
        lines = list(box[kind])
        if any(text == "--" for _, _, text in line.rows):
            raise _unclear(box, name)
        return kind, lines if value is None else [*lines, name, value]
    lines = list(box[place.kind])
    joined = place.text.startswith(f"{name}=")
    if value is not None:
        lines[place.at] = f"{name}={value}" if joined else value
    elif joined or place.at > 0:
        del lines[place.at if joined else place.at - 1 : place.at + 1]
    else:
        raise _unclear(box, name)
    return place.kind, lines


def _tokens(box: Json, script: str, name: str) -> list[_Token]:
    """Gives a script's tokens. Raises NodeError for one that is not read for sure."""
    found, at = [], 0
    while at < len(script):
        match = _TOKEN.match(script, at)
        if match is None:
            raise _unclear(box, name)
        found.append(_Token(str(match.lastgroup), at, match.end(), match[0]))
        at = match.end()
    return found


def _spans(box: Json, script: str, name: str) -> list[tuple[int, int, int]]:
    """Gives (start of the flag, start and end of its value) for each of them."""
    words = [row for row in _tokens(box, script, name) if row.kind not in ("blank", "comment")]
    found = []
    for index, row in enumerate(words):
        if row.kind != "word" or row.text.partition("=")[0] != name:
            continue
        if row.text != name:
            found.append((row.start, row.start + len(name) + 1, row.end))
            continue
        after = words[index + 1] if index + 1 < len(words) else row
        if after.kind != "word" or after.text.startswith("--"):
            raise refused(f"{name} of container {box['name']} has no value there")
        found.append((row.start, after.start, after.end))
    if any(not PLAIN.match(script[start:end]) for _, start, end in found):
        raise _unclear(box, name)
    return found


def _in_script(box: Json, line: _Line, name: str) -> list[Place]:
    kind, at = line.script or ("", -1)
    script = str(box[kind][at])
    return [Place(kind, at, script[start:end], script)
            for _, start, end in _spans(box, script, name)]  # fmt: skip


def _edited_script(box: Json, script: str, name: str, value: str | None) -> str:
    """Gives the script with the flag's value replaced, added with one blank, or taken away."""
    find(box, name)
    for start, first, end in _spans(box, script, name):
        if value is not None:
            return script[:first] + value + script[end:]
        if script[end : end + 1] == " ":
            return script[:start] + script[end + 1 :]
        return script[: start - 1] + script[end:]
    if value is None:
        return script
    last = _last_word(box, script, name)
    return f"{script[:last]} {name} {value}{script[last:]}"


def _last_word(box: Json, script: str, name: str) -> int:
    """Gives where the last word of the engine's command ends: the script's last command, the first
    of its pipe, before what it redirects.
    """
    commands: list[list[_Token]] = [[]]
    piped = target = False
    for row in _tokens(box, script, name):
        if row.kind == "split":
            commands.append([])
            piped = target = False
        elif row.kind == "pipe":
            piped = True
        elif row.kind == "redirect":
            target = True
        elif row.kind == "word":
            if not piped and not target:
                commands[-1].append(row)
            target = False
    words = [row for row in commands if row][-1:]
    texts = [row.text for row in words[0]] if words else []
    if not texts or texts[0] in _BLOCK_ENDS or "--" in texts:
        raise _unclear(box, name)
    return words[0][-1].end
