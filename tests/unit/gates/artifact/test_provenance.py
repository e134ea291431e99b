"""What an artefact's files say, and which commits are in it: evidence, or "cannot tell"."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from facts.local.git_clone import CloneError, clone_at
from gates.artifact.build_metadata import Evidence, read
from gates.artifact.provenance import Ancestry, decide, findings
from schema.core.errors import SpecError
from schema.inputs.check import host_data
from schema.inputs.runbook_data import ProvenanceData
from schema.observed.artifact import ArtifactAnswer, ArtifactFile, commit_or_pr, probes
from schema.recipe.builds import NeededModule, Unless
from tests.unit.builders.spark_rig import spark_plan

HOST = {
    "role": "head",
    "lan_address": "192.168.1.11",
    "ssh_user": "milo",
    "rig": "r",
    "recipe": "tiny",
}

LIB = "/usr/local/lib/python3.12/dist-packages"
# As the seed's container had it.
METADATA = """\
build_date: 2026-05-27T21:40:38Z
vllm_version: 0.21.1rc1.dev77+g48cebd4ad.d20260527
vllm_commit: 48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23
flashinfer_commit: 083012d6
gpu_arch: 12.1a
build_args:
  vllm_ref: main
  vllm_prs: "41834"
"""
TORCH = "__version__ = '2.10.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"
VERSION = (
    "__version__ = version = '0.21.1rc1.dev77+g48cebd4ad.d20260527'\n"
    "__commit_id__ = commit_id = 'g48cebd4ad'\n"
)


def answers(**files: str) -> list[ArtifactAnswer]:
    """A node's answers: a file by name (metadata, version, direct, torch) with its text."""
    paths = {
        "metadata": "/workspace/build-metadata.yaml",
        "own": "/build-metadata.yaml",
        "version": f"{LIB}/vllm/_version.py",
        "direct": f"{LIB}/vllm-0.21.1.dist-info/direct_url.json",
        "torch": f"{LIB}/torch/version.py",
    }
    return [
        ArtifactAnswer(
            path=paths[name],
            content=True,
            files=(ArtifactFile(path=paths[name], size=len(text), sha256="0" * 64, count=None,
                                content=text),),
        )
        for name, text in files.items()
    ]  # fmt: skip


SEED = read(answers(metadata=METADATA, version=VERSION, torch=TORCH))


def test_the_seeds_image_says_what_it_is() -> None:
    """C9: two minutes of reading would have killed the recommendation."""
    assert SEED.vllm_commit == "48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23"
    assert SEED.prs == {"41834": "/workspace/build-metadata.yaml: build_args.vllm_prs"}
    assert SEED.torch_variant == "cu130" and SEED.library == LIB
    (said,) = SEED.builds.values()
    assert said["build_args.vllm_ref"] == "main" and SEED.problems == ()


@pytest.mark.parametrize(
    ("wanted", "verdict", "part"),
    [
        ("#41834", "in", "vllm_prs names it: the build applied it"),
        ("48cebd4ad", "in", "vllm_commit is 48cebd4ad65d"),
        ("48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23", "in", "vllm_commit"),
        ("#43733", "cannot tell", "no clone to ask"),
        ("7fb9c0197a31", "cannot tell", "a date would prove nothing"),
    ],
)
def test_without_a_clone_only_lists_count(wanted: str, verdict: str, part: str) -> None:
    answer = decide(wanted, SEED, None)
    assert answer.verdict == verdict and part in answer.why


def test_a_commit_only_in_the_version_counts() -> None:
    found = read(answers(version="__version__ = version = '0.21.1.dev77+cu130.g48cebd4ad'\n"))
    assert found.vllm_commit == "48cebd4ad"
    assert decide("48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23", found, None).verdict == "in"


def test_direct_url_of_an_installation_from_git_names_the_commit() -> None:
    text = '{"url": "https://host/vllm.git", "vcs_info": {"vcs": "git", "commit_id": "' + "a" * 40
    found = read(answers(version=VERSION, direct=text + '"}}'))
    assert found.direct_url == "https://host/vllm.git"
    assert decide("aaaaaaa", found, None).verdict == "in"


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "", "!!python/object:os.system x\n" * 2])
def test_metadata_that_nobody_can_read_is_a_problem_not_absent(text: str) -> None:
    found = read(answers(metadata=text))
    assert found.builds == {"/workspace/build-metadata.yaml": {}} and len(found.problems) == 1


def test_an_image_on_another_says_both_and_each_with_its_place() -> None:
    """It may have two of them: its base's and its own."""
    own = 'built_by: somebody\nbuild_args:\n  vllm_prs: "43733"\n'
    found = read(answers(metadata=METADATA, own=own, version=VERSION))
    assert found.vllm_commit == "48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23"
    assert found.prs == {
        "41834": "/workspace/build-metadata.yaml: build_args.vllm_prs",
        "43733": "/build-metadata.yaml: build_args.vllm_prs",
    }
    assert found.builds["/build-metadata.yaml"]["built_by"] == "somebody"


def test_a_direct_url_that_pip_did_not_write_is_a_problem() -> None:
    assert read(answers(direct="[1]")).problems == ("direct_url.json is not what pip writes",)


def git(folder: Path, *args: str) -> str:
    """The output of a git command with a fixed author."""
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *args], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, subject: str, date: str = "2026-05-27T16:57:00Z") -> str:
    """An empty commit; its date is the author's claim."""
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", *who, "-C", str(folder), "commit", "--allow-empty", "-qm", subject],
        check=True, env={"PATH": "/usr/bin:/bin", "GIT_COMMITTER_DATE": date,
                         "GIT_AUTHOR_DATE": date, "HOME": str(folder)},
    )  # fmt: skip
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """main: base, fix (#43000), build, late (#43733); a branch `pr` with the code of #41834."""
    folder = tmp_path_factory.mktemp("clone")
    git(folder, "init", "-q", "-b", "main")
    found = {"path": str(folder), "base": commit(folder, "base")}
    found["fix"] = commit(folder, "[Bugfix] fix (#43000)")
    found["build"] = commit(folder, "build")
    # Older by its date than everything before it: a rewritten branch looks like that.
    found["late"] = commit(folder, "[DFlash] lookahead slots (#43733)", "2020-01-01T00:00:00Z")
    git(folder, "checkout", "-q", "-b", "pr", found["base"])
    found["pr"] = commit(folder, "sparse attention for SM120")
    return found


def ancestry(path: str) -> Ancestry:
    """The functions of a real clone."""
    clone = clone_at(path)
    return Ancestry(path, clone.known, clone.holds, clone.merged)


def built_of(commit_id: str, prs: str = "") -> Evidence:
    """An artefact whose metadata names a commit."""
    return read(answers(metadata=f"vllm_commit: {commit_id}\nbuild_args:\n  vllm_prs: '{prs}'\n"))


def test_git_decides_by_ancestry_never_by_date(repo: dict[str, str]) -> None:
    clone, build = ancestry(repo["path"]), built_of(repo["build"])
    assert decide(repo["fix"], build, clone).verdict == "in"
    assert decide(repo["fix"][:8], build, clone).verdict == "in"
    late = decide(repo["late"], build, clone)
    assert late.verdict == "not in" and "no ancestor" in late.why
    assert decide("#43000", build, clone).verdict == "in"
    assert decide("#43733", build, clone).verdict == "not in"


def test_a_local_merge_commit_is_in_no_public_repository(repo: dict[str, str]) -> None:
    """The seed's 48cebd4ad: git cannot say what a commit that it does not have holds."""
    clone = ancestry(repo["path"])
    for wanted in (repo["fix"], repo["pr"], "#43733"):
        answer = decide(wanted, SEED, clone)
        assert answer.verdict == "cannot tell"
        assert "a local merge commit is in no public repository" in answer.why
    assert decide("#41834", SEED, clone).verdict == "in"


def test_pull_requests_on_top_may_have_brought_a_commit(repo: dict[str, str]) -> None:
    answer = decide(repo["pr"], built_of(repo["build"], "41834"), ancestry(repo["path"]))
    assert answer.verdict == "cannot tell" and "#41834 on top" in answer.why
    assert decide(repo["pr"], built_of(repo["build"]), ancestry(repo["path"])).verdict == "not in"


def test_what_the_clone_does_not_have_cannot_be_told(repo: dict[str, str]) -> None:
    clone, build = ancestry(repo["path"]), built_of(repo["build"])
    for wanted in ("f" * 40, "#99999"):
        assert decide(wanted, build, clone).verdict == "cannot tell"
    unsaid = decide(repo["fix"], read(answers(metadata="gpu_arch: 12.1a\n")), clone)
    assert unsaid.verdict == "cannot tell" and "does not say which commit" in unsaid.why


def test_a_shallow_clone_cannot_say_no(repo: dict[str, str], tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "2", "--branch", "main", f"file://{repo['path']}", "s")
    clone = clone_at(str(tmp_path / "s"))
    assert clone.shallow and clone.holds(repo["late"], repo["build"]) is None
    answer = decide(repo["late"], built_of(repo["build"]), ancestry(str(tmp_path / "s")))
    assert answer.verdict == "cannot tell" and "shallow" in answer.why


def test_a_folder_without_a_clone_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CloneError, match="not a git repository"):
        clone_at(str(tmp_path))
    with pytest.raises(CloneError, match="is not a folder"):
        clone_at(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("#41834", "#41834"),
        ("41834", "#41834"),
        ("48CEBD4AD", "48cebd4ad"),
        (" abcdef1 ", "abcdef1"),
    ],
)
def test_items_are_commits_or_pull_requests(text: str, item: str) -> None:
    assert commit_or_pr(text) == item


@pytest.mark.parametrize("text", ["", "#", "main", "--all", "$(touch x)", "abc", "a" * 41, "#1\n2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no commit and no pull request"):
        commit_or_pr(text)


DEEPGEMM = NeededModule(
    name="deep_gemm",
    files=("deep_gemm/__init__.py", "deep_gemm/include/cutlass/cutlass.h"),
    reason="sparse attention needs it at run time",
)


def there(*names: str) -> list[ArtifactAnswer]:
    """The answers to the probes of DEEPGEMM where these files exist, in LIB."""
    rows = []
    for probe in probes((LIB,), (DEEPGEMM,), ()):
        name = probe.path.removeprefix(f"{LIB}/")
        file = ArtifactFile(path=probe.path, size=1, sha256="0" * 64, count=None, content=None)
        rows.append(ArtifactAnswer(**probe.to_json(), files=(file,) if name in names else ()))
    return rows


def test_a_module_without_its_submodule_is_not_whole() -> None:
    """C2: cloned without --recursive the package imports, and its JIT has no CUTLASS headers."""
    plan = spark_plan()

    def missing(*names: str) -> list[str]:
        found = findings(plan, "n", SEED, there(*names), (DEEPGEMM,))
        assert all(v.code == "module-missing" for v in found)
        return [v.evidence for v in found]

    assert missing(*DEEPGEMM.files) == []
    assert missing("deep_gemm/__init__.py") == [
        f"not in {SEED.library}: deep_gemm/include/cutlass/cutlass.h"
    ]
    assert "deep_gemm/__init__.py" in missing()[0]


def test_a_module_that_the_build_does_not_need_may_be_missing() -> None:
    """The version says so, or a file of the build's own way; 0.1.devN says nothing."""
    plan, own = spark_plan(), Unless(path="vllm/own.py", contains="def ")
    module = DEEPGEMM.model_copy(update={"versions": "<0.24", "unless": own})
    later = read(answers(version=VERSION.replace("0.21.1", "0.24.0"), torch=TORCH))
    clone = read(answers(version=VERSION.replace("0.21.1rc1.dev77", "0.1.dev16960"), torch=TORCH))
    assert later.vllm_version.startswith("0.24.0")
    assert clone.vllm_version.startswith("0.1.dev16960+g")
    file = ArtifactFile(path=f"{LIB}/vllm/own.py", size=1, sha256=None, count=3, content=None)
    its = ArtifactAnswer(path=f"{LIB}/vllm/own.py", contains="def ", files=(file,))
    for evidence, more, count in ((SEED, [], 1), (later, [], 0), (clone, [], 1), (clone, [its], 0)):
        assert len(findings(plan, "n", evidence, [*there(), *more], (module,))) == count


def test_a_torch_for_the_cpu_on_a_rig_of_gpus_is_a_finding() -> None:
    """C1."""
    cpu = read(answers(version=VERSION, torch="__version__ = '2.10.0+cpu'\ncuda = None\n"))
    plain = read(answers(version=VERSION, torch="__version__ = '2.10.0'\ncuda: str = None\n"))
    for found in (cpu, plain):
        (wrong,) = findings(spark_plan(), "n", found, [], ())
        assert wrong.code == "torch-cpu" and wrong.severity == "block"
    tiny = spark_plan(recipe="tiny", profile="balanced")
    assert findings(tiny, "n", cpu, [], ()) == []
    assert findings(spark_plan(), "n", SEED, [], ()) == []


@pytest.mark.parametrize(
    ("value", "commits"),
    [(41834, ("#41834",)), ("41834,48cebd4ad", ("#41834", "48cebd4ad")), ([41834], ("#41834",))],
)
def test_commits_of_data_are_texts_whatever_pyinfra_makes_of_them(
    value: object, commits: tuple[str, ...]
) -> None:
    """`--data commits=41834` arrives as a number."""
    assert host_data("h", {**HOST, "commits": value}, {}, ProvenanceData).commits == commits


def test_a_commit_that_reads_as_a_number_is_refused_with_the_way_to_write_it() -> None:
    """1234e56 arrives as 1.234e+59: its digits are gone."""
    with pytest.raises(SpecError, match="was read as a number; allowed: a list"):
        host_data("h", {**HOST, "commits": 1234e56}, {}, ProvenanceData)
