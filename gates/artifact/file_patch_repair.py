"""The known-good content of a file in which a patch, or a part of it, stands twice (C15)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from schema.recipe.patches import FilePatch

# (diff, content, reverse) -> the new content, or None where git refuses
# (facts.local.git_apply.apply).
Differ = Callable[[str, bytes, bool], bytes | None]


def times_in(patch: FilePatch, content: bytes) -> int | None:
    """How often the text that the patch puts in stands there; None where the recipe names none."""
    return None if patch.contains is None else content.count(patch.contains.encode())


def is_right(patch: FilePatch, after: bytes) -> bool:
    """Whether a content is the patched file, as far as the recipe says."""
    if patch.after and hashlib.sha256(after).hexdigest() not in patch.after:
        return False
    return patch.contains is None or times_in(patch, after) == patch.count


def mended(patch: FilePatch, content: bytes, differ: Differ) -> bytes | None:
    """The file with the patch once, made of one that has parts of it several times in a row.

    None unless the outcome is proven: its sha256 is in `after`; or git can take the patch away
    exactly once, what is left is in `before` where that is given, and `count` is right.
    """
    if patch.diff is None:
        return None
    candidate = content
    for block in added_blocks(patch.diff):
        # By whole lines: a block that begins in mid-line is another text.
        while b"\n" + block + block in b"\n" + candidate:
            candidate = (b"\n" + candidate).replace(b"\n" + block + block, b"\n" + block)[1:]
    if candidate == content or not is_right(patch, candidate):
        return None
    if patch.after:
        return candidate
    once = differ(patch.diff, candidate, True)
    if once is None or differ(patch.diff, once, True) is not None:
        return None
    known = not patch.before or hashlib.sha256(once).hexdigest() in patch.before
    return candidate if known else None


def added_blocks(diff: str) -> list[bytes]:
    """The runs of added lines of a unified diff, each as the bytes that stand in the file."""
    blocks: list[list[str]] = [[]]
    inside = False
    for line in diff.splitlines():
        inside = inside or line.startswith("@@")
        if inside and line.startswith("+"):
            blocks[-1].append(line[1:] + "\n")
        elif blocks[-1]:
            blocks.append([])
    return ["".join(block).encode() for block in blocks if block]
