"""The text of a module as it travels to a host."""

from __future__ import annotations

import re

_DOCSTRING = re.compile(r'^( *)"""(?:[^"]|"(?!""))*"""$', re.MULTILINE)


def bare(source: str) -> str:
    """Gives a module's source without its docstrings, each line with the number it had."""

    def empty(found: re.Match[str]) -> str:
        return found[1] + '""' + "\n" * found[0].count("\n")

    return _DOCSTRING.sub(empty, source)
