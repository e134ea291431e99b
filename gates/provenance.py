"""What an artefact holds, decided from what lies in it; and whether given commits are in it.

Fifteen commits were called missing by their dates, and a rebuild of half an hour was planned for
them: build-metadata.yaml in the image said that they were all there (C9). So: evidence or "cannot
tell", and never a timestamp. A committer date is the last rewrite of a force-pushed branch, not the
day on which the code was written or became reachable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gates.artifact import missing_files, not_whole, told
from gates.core import Violation, violation
from schema.artifact import ArtifactAnswer, metadata_of
from schema.compatibility import Needed, NeededModule, within
from schema.plan import Plan

# What the files of an artefact say of it: versions, commits, pull requests, torch's variant.

_COMMIT = re.compile(r"[0-9a-f]{7,40}\Z")
_IN_VERSION = re.compile(r"\+(?:[a-z0-9.]*\.)?g([0-9a-f]{7,40})")
_LINE = r"""^{name}\b[^=\n]*=\s*(?:[A-Za-z_]+\s*=\s*)?['"]([^'"\n]*)['"]"""


@dataclass(frozen=True)
class Evidence:
    """What the files of one artefact say. Empty texts: the file is not there or does not say.

    `builds` is each build-metadata.yaml by its path: an image on another may have two.
    `commits` are commits of vLLM that it is known to hold, each with where that stands; `prs`
    likewise. `library` is the folder of its packages.
    """

    builds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    library: str = ""
    vllm_version: str = ""
    vllm_commit: str = ""
    direct_url: str = ""
    torch_version: str = ""
    torch_cuda: str | None = None
    commits: Mapping[str, str] = field(default_factory=dict)
    prs: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def torch_variant(self) -> str:
        """`cpu`, `cu130` …; empty when torch is not there or does not say."""
        named = re.search(r"\+((?:cpu|cu|rocm|xpu)[0-9.]*)", self.torch_version)
        if named:
            return named[1]
        if self.torch_cuda is None:
            return ""
        return f"cu{self.torch_cuda.replace('.', '')}" if self.torch_cuda else "cpu"


def _named(text: str, name: str) -> str:
    found = re.search(_LINE.replace("{name}", name), text, re.M)
    return found[1] if found else ""


def read_build_metadata(answers: Sequence[ArtifactAnswer]) -> Evidence:
    """The evidence in a node's answers; a file that nobody understands is a problem, not absent."""
    texts = {f.path: f.content for answer in answers for f in answer.files if f.content is not None}
    problems: list[str] = []
    builds: dict[str, dict[str, str]] = {}
    for path in (path for path in texts if path.endswith("/build-metadata.yaml")):
        builds[path] = {}
        try:
            builds[path] = metadata_of(str(texts[path]))
        except ValueError as error:
            problems.append(f"{path} {error}")
    version_path = next((path for path in texts if path.endswith("/vllm/_version.py")), "")
    library = version_path.removesuffix("/vllm/_version.py")
    own = str(texts.get(version_path, ""))
    torch = str(texts.get(f"{library}/torch/version.py", ""))
    if not torch:
        torch = next((str(t) for p, t in texts.items() if p.endswith("/torch/version.py")), "")
    direct = next((str(t) for p, t in texts.items() if p.endswith("/direct_url.json")), "")
    version = _named(own, "__version__") or _first(builds, "vllm_version")
    cuda = re.search(r"^cuda\b[^=\n]*=\s*(?:['\"]([0-9.]*)['\"]|None)", torch, re.M)
    url, url_commit = _direct(direct, problems)
    commits = _commits(builds, version, own, url_commit)
    return Evidence(
        builds,
        library,
        version,
        _own_commit(builds, commits),
        url,
        _named(torch, "__version__"),
        None if cuda is None else cuda[1] or "",
        commits,
        _prs(builds),
        tuple(problems),
    )


def _first(builds: Mapping[str, Mapping[str, str]], key: str) -> str:
    """What the first metadata that has the key says, or an empty text."""
    return next((said[key] for said in builds.values() if key in said), "")


def _direct(text: str, problems: list[str]) -> tuple[str, str]:
    """pip's direct_url.json: the URL, and the commit where it was installed from git."""
    if not text:
        return "", ""
    try:
        data = json.loads(text)
        return str(data.get("url", "")), str((data.get("vcs_info") or {}).get("commit_id", ""))
    except (ValueError, AttributeError):
        problems.append("direct_url.json is not what pip writes")
        return "", ""


def _commits(
    builds: Mapping[str, Mapping[str, str]], version: str, own: str, url_commit: str
) -> dict[str, str]:
    """Commits of vLLM that the artefact names, with where; the commit it was built of first."""
    found: dict[str, str] = {}

    def take(text: str, where: str) -> None:
        word = text.strip().lower().removeprefix("g")
        if _COMMIT.match(word) and not word.isdigit():
            found.setdefault(word, where)

    for path, said in builds.items():
        take(said.get("vllm_commit", ""), f"{path}: vllm_commit")
    take(url_commit, "direct_url.json: vcs_info.commit_id")
    in_version = _IN_VERSION.search(version)
    if in_version:
        take(in_version[1], f"the version {version}")
    take(_named(own, "__commit_id__"), "vllm/_version.py: __commit_id__")
    for path, said in builds.items():
        for key, value in said.items():
            if "vllm" in key or "commits" in key:
                for word in re.split(r"[\s,]+", value):
                    take(word, f"{path}: {key}")
    return found


def _own_commit(builds: Mapping[str, Mapping[str, str]], commits: Mapping[str, str]) -> str:
    named = _first(builds, "vllm_commit").strip().lower()
    return named if _COMMIT.match(named) else next(iter(commits), "")


def _prs(builds: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Pull requests that the builder says it applied: keys that end in `prs` or `pr`."""
    found: dict[str, str] = {}
    for path, said in builds.items():
        for key, value in said.items():
            last = key.rpartition(".")[2]
            if last.endswith(("prs", "_pr")) and "flashinfer" not in last:
                for word in re.findall(r"[0-9]+", value):
                    found.setdefault(word, f"{path}: {key}")
    return found


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
