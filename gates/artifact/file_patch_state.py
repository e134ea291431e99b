"""The state of a patch in a file: applied, not applied, upstreamed, drifted, doubled.

A mod that matched its own result was run a second time: three empty_cache instead of two, and
`UnboundLocalError: w13` at the load (C15). So a patch is never "run"; it is a file's content that
is known, and a file in no known state is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gates.artifact.file_patch_repair import Differ, is_right, mended, times_in
from schema.recipe.compatibility import within
from schema.recipe.patches import FilePatch

State = Literal["applied", "not applied", "upstreamed", "drifted", "doubled", "unknown"]
DONE = ("applied", "upstreamed")


@dataclass(frozen=True)
class PatchState:
    """A patch in one node's file. `wanted` is the content that makes it applied, None where
    nothing is to do or nobody knows what would be right.
    """

    patch: FilePatch
    state: State
    detail: str
    path: str = ""
    content: bytes = b""
    wanted: bytes | None = None

    @property
    def sha256(self) -> str:
        """Of the file as it is."""
        return hashlib.sha256(self.content).hexdigest()

    def __str__(self) -> str:
        return f"{self.patch.id}: {self.state}: {self.path or self.patch.path}: {self.detail}"


def judge(
    patch: FilePatch, path: str, content: bytes, version: str | None, differ: Differ
) -> PatchState:
    """The state of `patch` in a file's content; `version` is the engine's, None where unknown."""

    def found(state: State, detail: str, wanted: bytes | None = None) -> PatchState:
        return PatchState(patch, state, detail, path, content, wanted)

    digest = hashlib.sha256(content).hexdigest()
    if digest in patch.after:
        return found("applied", f"sha256 {digest[:12]} is the patched file")
    if digest in patch.before:
        return _not_applied(patch, found, content, differ, f"sha256 {digest[:12]}")
    times = times_in(patch, content)
    if times is not None and patch.count is not None and times > patch.count:
        text = f"{patch.contains!r} stands {times} times, {patch.count} are right"
        return found("doubled", text, mended(patch, content, differ))
    if patch.upstreamed and within(patch.upstreamed, version):
        return found("upstreamed", f"version {version} has it by itself ({patch.upstreamed})")
    if patch.diff is None:
        return found(
            "drifted", f"sha256 {digest[:12]} is neither the patched nor the unpatched file"
        )
    without = differ(patch.diff, content, True)
    if without is not None and differ(patch.diff, without, True) is not None:
        return found("doubled", "it can be taken away twice", mended(patch, content, differ))
    if without is None and (again := mended(patch, content, differ)) is not None:
        return found("doubled", "a part of it stands twice in a row", again)
    if patch.before or patch.after:
        holds = "carries the patch" if without is not None else "does not carry the patch"
        text = (
            f"sha256 {digest[:12]} is not known; it {holds}, the rest is not what the recipe knows"
        )
        return found("drifted", text)
    if without is not None:
        if times is not None and times != patch.count:
            return found("drifted", f"{patch.contains!r} stands {times} times, not {patch.count}")
        return found("applied", "git can take it away, once")
    return _not_applied(patch, found, content, differ, "git can apply it")


def _not_applied(
    patch: FilePatch, found: Callable[..., PatchState], content: bytes, differ: Differ, how: str
) -> PatchState:
    """Not applied, with the patched content where the diff gives one that is right."""
    if patch.diff is None:
        return found("not applied", f"{how}; the recipe has no diff to apply")
    after = differ(patch.diff, content, False)
    if after is None:
        return found("drifted", "git can neither apply it nor take it away")
    if not is_right(patch, after):
        return found(
            "drifted", f"{how}, but the outcome is not the patched file that the recipe knows"
        )
    return found("not applied", how, after)
