"""Findings about the patches of a venv's files: what nobody may write, what is not in force."""

from __future__ import annotations

from collections.abc import Iterable

from gates.artifact.file_patch_state import DONE, PatchState
from gates.core.codes import Severity, violation
from gates.core.violation import Violation


def findings(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """What stands in the way of the patches on a node: files that nobody may write.

    What `deploys/patch.py` can mend (not applied, doubled with a known content) is no finding.
    """
    found = []
    for state in states:
        if state.state in ("unknown", "drifted") or _stuck(state):
            found.append(_finding(node, state))
    return found


def told(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """What the doctor names: all that is not in force, but optional ones that nobody applied."""
    return [
        _finding(node, state)
        for state in states
        if state.state not in DONE and (state.patch.required or state.state != "not applied")
    ]


def unfinished(node: str, states: Iterable[PatchState]) -> list[Violation]:
    """The required patches that are not in force: what must be empty before an engine starts."""
    found = []
    for state in states:
        if state.patch.required and state.state not in DONE:
            found.append(_finding(node, state))
    return found


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
    if state.state == "unknown":
        return violation(
            "patch-unknown", node, summary, evidence=evidence, remedy=remedy, unknown=True
        )
    weight: Severity | None = None if patch.required else "warn"
    if state.state == "drifted":
        return violation(
            "patch-drifted", node, summary, evidence=evidence, remedy=remedy, severity=weight
        )
    if state.state == "doubled":
        return violation(
            "patch-doubled", node, summary, evidence=evidence, remedy=remedy, severity=weight
        )
    return violation(
        "patch-missing", node, summary, evidence=evidence, remedy=remedy, severity=weight
    )
