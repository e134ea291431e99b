"""Findings about the patches of a venv's files: what nobody may write, what is not in force."""

from __future__ import annotations

from collections.abc import Iterable

from gates.artifact.file_patch_state import DONE, PatchState
from gates.core.codes import violation
from gates.core.violation import Violation


def findings(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """What stands in the way of the patches on a node: files that nobody may write.

    What `deploys/patch.py` can mend (not applied, doubled with a known content) is no finding.
    """
    return [
        _finding(node, state)
        for state in states
        if state.state in ("unknown", "drifted") or _stuck(state)
    ]


def told(node: str, states: Iterable[PatchState]) -> list[Violation]:
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
