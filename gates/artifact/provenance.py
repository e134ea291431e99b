"""What an artefact holds, decided from what lies in it; and whether given commits are in it.

Fifteen commits were called missing by their dates, and a rebuild of half an hour was planned for
them: build-metadata.yaml in the image said that they were all there (C9). So: evidence or "cannot
tell", and never a timestamp. A committer date is the last rewrite of a force-pushed branch, not the
day on which the code was written or became reachable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from gates.artifact.build import told
from gates.artifact.build_metadata import Evidence
from gates.artifact.modules import missing_files, not_whole
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.observed.artifact import ArtifactAnswer
from schema.recipe.builds import Needed, NeededModule
from schema.recipe.compatibility import within

Verdict = Literal["in", "not in", "cannot tell"]
_NO_CLONE = "no clone to ask was given (--data git=/path/of/a/clone); a date would prove nothing"


@dataclass(frozen=True)
class Answer:
    """About one commit or pull request: is it in, and how do we know."""

    item: str
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        return f"{self.item}: {self.verdict}: {self.why}"


@dataclass(frozen=True)
class Ancestry:
    """What a local clone says; asked through functions, so that this module runs no git.

    `known(commit)` gives the full id, None when the clone has no such object. `holds(a, b)`: is a
    an ancestor of b; None: the clone cannot say (shallow). `merged(pr)` gives the commits whose
    subject ends with `(#pr)`.
    """

    path: str
    known: Callable[[str], str | None]
    holds: Callable[[str, str], bool | None]
    merged: Callable[[str], Sequence[str]]


def decide(wanted: str, evidence: Evidence, clone: Ancestry | None) -> Answer:
    """Whether a commit or pull request (of `commit_or_pr`) is in the artefact, and why."""
    return _pr(wanted, evidence, clone) if wanted[0] == "#" else _commit(wanted, evidence, clone)


def _pr(wanted: str, evidence: Evidence, clone: Ancestry | None) -> Answer:
    where = evidence.prs.get(wanted[1:])
    if where:
        return Answer(wanted, "in", f"{where} names it: the build applied it")
    merges = clone.merged(wanted[1:]) if clone else ()
    for merge in merges:
        answer = _commit(merge, evidence, clone)
        if answer.verdict != "cannot tell":
            why = f"its commit {merge[:12]} on the clone's branches: {answer.why}"
            return Answer(wanted, answer.verdict, why)
    if clone is None:
        why = f"; {_NO_CLONE}"
    elif not merges:
        why = (
            f", and no commit of {clone.path} has it in its subject: not merged, or the clone is "
            "older"
        )
    else:
        why = f"; {_local(evidence, clone)}"
    return Answer(wanted, "cannot tell", f"no list of pull requests in the artefact names it{why}")


def _commit(wanted: str, evidence: Evidence, clone: Ancestry | None) -> Answer:
    for commit, where in evidence.commits.items():
        if commit.startswith(wanted) or wanted.startswith(commit):
            return Answer(wanted, "in", f"{where} is {commit}")
    unknown = partial(Answer, wanted, "cannot tell")
    if clone is None:
        return unknown(f"the artefact's files do not name it; {_NO_CLONE}")
    full = clone.known(wanted)
    if full is None:
        return unknown(
            f"{clone.path} has no such commit, or several that begin so: fetch it, write it whole"
        )
    for commit, where in evidence.commits.items():
        base = clone.known(commit)
        held = clone.holds(full, base) if base else None
        if held:
            return Answer(wanted, "in", f"git: it is an ancestor of {commit[:12]} ({where})")
    own = clone.known(evidence.vllm_commit) if evidence.vllm_commit else None
    if own is None:
        return unknown(_local(evidence, clone))
    if clone.holds(full, own) is None:
        return unknown(f"{clone.path} is a shallow clone: git fetch --unshallow")
    if evidence.prs:
        listed = ", ".join(f"#{number}" for number in evidence.prs)
        return unknown(
            f"git: it is no ancestor of {own[:12]}, but the build applied {listed} on top, which "
            "may have brought it"
        )
    return Answer(
        wanted,
        "not in",
        f"git: it is no ancestor of {own[:12]} (a cherry-pick under another id would not be seen)",
    )


def _local(evidence: Evidence, clone: Ancestry) -> str:
    if not evidence.vllm_commit:
        return "the artefact does not say which commit it was built of"
    return (
        f"{evidence.vllm_commit[:12]}, of which it was built, is not in {clone.path}: a local "
        "merge commit is in no public repository, and dates of force-pushed branches prove nothing"
    )


def findings(
    plan: Plan, node: str, evidence: Evidence, answers: Sequence[ArtifactAnswer],
    modules: Sequence[NeededModule],
) -> list[Violation]:  # fmt: skip
    """What is wrong with the artefact: a torch for the CPU (C1), a module that isn't whole (C2)."""
    found: list[Violation] = []
    if evidence.torch_variant == "cpu" and plan.recipe.expect.needs_nvidia:
        found.append(
            violation(
                "torch-cpu",
                node,
                "a torch for the CPU on a rig of GPUs: the engine's C extension does not load",
                evidence=f"{evidence.library}/torch/version.py: {evidence.torch_version}",
                remedy="take the known-good artefact again; a rebuild needs the extra index of the "
                "CUDA wheels named",
            )
        )
    there = [file.path for answer in answers for file in answer.files]
    for module in modules:
        missing = missing_files(module, there)
        if missing and not _mended(module, evidence, answers):
            found.append(not_whole(module, node, missing, evidence.library or "the artefact"))
    return found


def _mended(what: Needed, evidence: Evidence, answers: Sequence[ArtifactAnswer]) -> bool:
    """Whether the build does not need it: another version, or it has its own way."""
    if within(what.versions, told(evidence.vllm_version)) is False:
        return True
    unless = what.unless
    return unless is not None and any(
        file.count
        for answer in answers
        if answer.path.endswith(f"/{unless.path}") and answer.contains == unless.contains
        for file in answer.files
    )
