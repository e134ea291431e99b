"""What an artefact holds, decided from what lies in it; and whether given commits are in it.

Fifteen commits were called missing by their dates, and a rebuild of half an hour was planned for
them: build-metadata.yaml in the image said that they were all there (C9). So: evidence or "cannot
tell", and never a timestamp. A committer date is the last rewrite of a force-pushed branch, not the
day on which the code was written or became reachable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

Verdict = Literal["in", "cannot tell"]
_NO_DATE = "a date would prove nothing"


@dataclass(frozen=True)
class Answer:
    """About one commit or pull request: is it in, and how do we know."""

    item: str
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        return f"{self.item}: {self.verdict}: {self.why}"


def decide(wanted: str, evidence: Evidence) -> Answer:
    """Whether a commit or pull request (of `commit_or_pr`) is in the artefact, and why."""
    if wanted[0] == "#":
        where = evidence.prs.get(wanted[1:])
        if where:
            return Answer(wanted, "in", f"{where} names it: the build applied it")
        return Answer(wanted, "cannot tell", f"no list of pull requests in it names it; {_NO_DATE}")
    for commit, where in evidence.commits.items():
        if commit.startswith(wanted) or wanted.startswith(commit):
            return Answer(wanted, "in", f"{where} is {commit}")
    return Answer(wanted, "cannot tell", f"the artefact's files do not name it; {_NO_DATE}")


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
