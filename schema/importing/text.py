"""The text of an imported recipe: what it comes from, what needs a person, and the recipe."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from schema.importing.neighbour import WORDS
from schema.importing.result import Imported

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes values out: the loader takes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text(made: Imported, file: str) -> str:
    """The YAML of catalog/recipes/NAME.yaml."""
    lines = [f"from {file}, a recipe of {WORDS[made.launcher]}, by python -m schema.importing"]
    lines += [f"needs you: {line}" for line in made.needs]
    lines += [f"left out: {line}" for line in made.left]
    body = yaml.dump(made.data, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "\n".join(map(_comment, lines)) + "\n" + body


def _comment(line: str) -> str:
    """A line of text as a comment of 100 characters a line; control characters escaped."""
    plain = line if line.isprintable() else ascii(line)
    return textwrap.fill(
        plain, _WIDTH, initial_indent="# ", subsequent_indent="#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
