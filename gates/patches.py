"""File patches: their state and repair."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gates.core import Violation, violation
from schema.compatibility import FilePatch, within

# The known-good content of a file in which a patch, or a part of it, stands twice (C15).

# (diff, content, reverse) -> the new content, or None where git refuses
# (facts.local.git_apply).
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


# The state of a patch in a file: applied, not applied, upstreamed, drifted, doubled.
#
# A mod that matched its own result was run a second time: three empty_cache instead of two, and
# `UnboundLocalError: w13` at the load (C15). So a patch is never "run"; it is a file's content
# that
# is known, and a file in no known state is refused.

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


def judge_file_patch_state(
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


# Findings about the patches of a venv's files: what nobody may write, what is not in force.


def findings(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """What stands in the way of the patches on a node: files that nobody may write.

    What `deploys/patch.py` can mend (not applied, doubled with a known content) is no finding.
    """
    return [
        _finding(node, state)
        for state in states
        if state.state in ("unknown", "drifted") or _stuck(state)
    ]


def told_of_patches(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """What the doctor names: all that is not in force, but optional ones that nobody applied."""
    return [
        _finding(node, state)
        for state in states
        if state.state not in DONE and (state.patch.required or state.state != "not applied")
    ]


def unfinished(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """The required patches that are not in force: what must be empty before an engine starts."""
    return [
        _finding(node, state)
        for state in states
        if state.patch.required and state.state not in DONE
    ]


def _stuck(state: PatchState) -> bool:
    """Whether something is to do and nobody knows what would be right."""
    return state.state in ("not applied", "doubled") and state.wanted is None


def _finding(node: str, state: PatchState) -> Violation:
    patch = state.patch
    summary = f"patch {patch.id} is {state.state}: {patch.reason}"
    evidence = f"{state.path or patch.path}: {state.detail}"
    remedy = "pyinfra INVENTORY deploys/patch.py --dry --diff"
    if state.wanted is None:
        remedy = (
            "bring back the file that the recipe knows (the verified backup, or the wheel again), "
            "or have the recipe say what is right now"
        )
    unknown, drifted = state.state == "unknown", state.state == "drifted"
    doubled = state.state == "doubled"
    return violation(
        "patch-unknown" if unknown else "patch-drifted" if drifted
        else "patch-doubled" if doubled else "patch-missing",
        node,
        summary,
        evidence=evidence,
        remedy=remedy,
        unknown=unknown,
        severity=None if patch.required or unknown else "warn",
    )  # fmt: skip
