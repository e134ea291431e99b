"""Quoting for the two places where an argument becomes text: bash and systemd's Exec lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

# Everything else gets double quotes: blanks, quotes, `;` (a separator), `\`, non-ASCII.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./~%$-]+\Z")


def systemd_argument(value: str) -> str:
    """One argument of an Exec line, so that systemd passes exactly `value`.

    `%` and `$` are doubled, or systemd would expand specifiers and variables (systemd.service(5),
    "Command lines"). ValueError for a newline: a unit file has no line for it.
    """
    if "\n" in value or "\0" in value:
        raise ValueError("holds a newline or NUL, which no unit file can carry")
    escaped = value.replace("%", "%%").replace("$", "$$")
    if _PLAIN.match(escaped):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def systemd_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Groups of arguments as the lines of one Exec command."""
    return [" ".join(systemd_argument(argument) for argument in group) for group in groups]


def shell_lines(argv: Sequence[str]) -> list[str]:
    """A command line as lines for bash: the command first, then one flag with its values each."""
    groups: list[list[str]] = [[]]
    for argument in argv:
        if argument.startswith("--"):
            groups.append([])
        groups[-1].append(shlex.quote(argument))
    return [" ".join(group) for group in groups]
