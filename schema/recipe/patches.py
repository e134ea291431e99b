"""Patches of an installed engine's files, and tools that patch it: a recipe's `file_patches` and
`patch_tools`. (`patches` is about images, which are never patched in place.)
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from node.rules.patterns import SHA256
from schema.core.base import Frozen
from schema.core.strings import absolute_path, argument, env_name, single_line
from schema.core.types import Name
from schema.observed.artifact import relative_path
from schema.recipe.compatibility import Range

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
MAX_DIFF = 128 * 1024


def sha256(value: str) -> str:
    """A sha256 in hex; ValueError otherwise."""
    if not SHA256.match(value):
        raise ValueError("is not a sha256; allowed: 64 lower-case hex digits")
    return value


def target(value: str) -> str:
    """An absolute path, or one below the venv's site-packages; both may hold `*`."""
    return absolute_path(value) if value.startswith("/") else relative_path(value)


def unified_diff(value: str) -> str:
    """A unified diff of one text file; ValueError otherwise. Its headers' names do not matter."""
    if len(value) > MAX_DIFF or _CONTROL.search(value):
        raise ValueError("is too large or holds control characters; allowed: a diff of one file")
    lines = value.splitlines()
    if (
        sum(line.startswith("--- ") and nxt.startswith("+++ ") for line, nxt in pairwise(lines))
        != 1
    ):
        raise ValueError("is not a unified diff of one file; allowed: one --- and one +++ line")
    if not any(_HUNK.match(line) for line in lines):
        raise ValueError("has no hunk; allowed: a unified diff with @@ lines")
    return value


def tool_word(value: str) -> str:
    """A word of a tool's command line; a leading `-` is its author's wish."""
    return single_line(value)


Sha256 = Annotated[str, AfterValidator(sha256)]
Target = Annotated[str, AfterValidator(target)]
Line = Annotated[str, AfterValidator(single_line), Field(min_length=1)]


class FilePatch(Frozen):
    """A patch of one file of an installed engine.

    `path`: the file, absolute or below the venv's site-packages; it must match one file. `diff`
    makes the patched file of the unpatched one. `before` and `after` are the sha256 of the file
    without and with it, a list for several builds; where they are given, only those are known.
    Without them git decides: `git apply --check`, and `--reverse --check`. `contains` stands
    `count` times in the patched file; more often means that it was applied twice. `upstreamed`:
    versions of the engine that have it by themselves.
    """

    id: Name
    path: Target
    reason: Line
    required: bool = True
    diff: Annotated[str, AfterValidator(unified_diff)] | None = None
    before: tuple[Sha256, ...] = ()
    after: tuple[Sha256, ...] = ()
    contains: Line | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    upstreamed: Range | None = None

    @model_validator(mode="after")
    def _can_be_checked(self) -> FilePatch:
        if self.diff is None and not (self.before and self.after):
            raise ValueError(f"{self.id}: cannot be checked; allowed: diff, or before and after")
        if (self.contains is None) != (self.count is None):
            raise ValueError(f"{self.id}: contains and count go together; allowed: both or none")
        if set(self.before) & set(self.after):
            raise ValueError(f"{self.id}: a hash stands in before and in after; allowed: in one")
        return self


class PatchTool(Frozen):
    """A program that patches the engine by itself and ends with `N applied, M skipped, K failed`.

    `{venv}` in `argv` is the venv's folder. `tree`: the folder, absolute or below site-packages,
    whose files it may change: their content is kept before, so that the change can be undone.
    """

    id: Name
    argv: Annotated[
        tuple[Annotated[str, AfterValidator(tool_word)], ...], Field(min_length=1, max_length=50)
    ]
    tree: Target = "vllm"
    env: dict[Annotated[str, AfterValidator(env_name)], Line] = Field(default_factory=dict)
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 600
    reason: Line

    @model_validator(mode="after")
    def _a_program(self) -> PatchTool:
        program = self.argv[0]
        argument(program)
        if not program.startswith(("/", "{venv}/")):
            raise ValueError(
                f"argv[0]: is {program!r}; allowed: /a/program or {{venv}}/bin/program"
            )
        if "*" in self.tree:
            raise ValueError("tree: holds a `*`; allowed: one folder")
        return self
