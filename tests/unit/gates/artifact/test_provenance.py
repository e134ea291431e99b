"""What an artefact's files say, and which commits are in it: evidence, or "cannot tell"."""

from __future__ import annotations

import pytest

from gates.provenance import decide, findings, read_build_metadata
from schema.artifact import ArtifactAnswer, ArtifactFile, commit_or_pr, probes
from schema.compatibility import NeededModule, Unless
from schema.core import SpecError
from schema.keys import ProvenanceData
from schema.load import host_data
from tests.unit.builders.rigs import spark_plan

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


SEED = read_build_metadata(answers(metadata=METADATA, version=VERSION, torch=TORCH))


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
        ("#43733", "cannot tell", "no list of pull requests in it names it"),
        ("7fb9c0197a31", "cannot tell", "a date would prove nothing"),
    ],
)
def test_only_what_the_artefact_names_counts(wanted: str, verdict: str, part: str) -> None:
    answer = decide(wanted, SEED)
    assert answer.verdict == verdict and part in answer.why


def test_a_commit_only_in_the_version_counts() -> None:
    found = read_build_metadata(
        answers(version="__version__ = version = '0.21.1.dev77+cu130.g48cebd4ad'\n")
    )
    assert found.vllm_commit == "48cebd4ad"
    assert decide("48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23", found).verdict == "in"


def test_direct_url_of_an_installation_from_git_names_the_commit() -> None:
    text = '{"url": "https://host/vllm.git", "vcs_info": {"vcs": "git", "commit_id": "' + "a" * 40
    found = read_build_metadata(answers(version=VERSION, direct=text + '"}}'))
    assert found.direct_url == "https://host/vllm.git"
    assert decide("aaaaaaa", found).verdict == "in"


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "", "!!python/object:os.system x\n" * 2])
def test_metadata_that_nobody_can_read_is_a_problem_not_absent(text: str) -> None:
    found = read_build_metadata(answers(metadata=text))
    assert found.builds == {"/workspace/build-metadata.yaml": {}} and len(found.problems) == 1


def test_an_image_on_another_says_both_and_each_with_its_place() -> None:
    """It may have two of them: its base's and its own."""
    own = 'built_by: somebody\nbuild_args:\n  vllm_prs: "43733"\n'
    found = read_build_metadata(answers(metadata=METADATA, own=own, version=VERSION))
    assert found.vllm_commit == "48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23"
    assert found.prs == {
        "41834": "/workspace/build-metadata.yaml: build_args.vllm_prs",
        "43733": "/build-metadata.yaml: build_args.vllm_prs",
    }
    assert found.builds["/build-metadata.yaml"]["built_by"] == "somebody"


def test_a_direct_url_that_pip_did_not_write_is_a_problem() -> None:
    assert read_build_metadata(answers(direct="[1]")).problems == (
        "direct_url.json is not what pip writes",
    )


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
    later = read_build_metadata(answers(version=VERSION.replace("0.21.1", "0.24.0"), torch=TORCH))
    clone = read_build_metadata(
        answers(version=VERSION.replace("0.21.1rc1.dev77", "0.1.dev16960"), torch=TORCH)
    )
    assert later.vllm_version.startswith("0.24.0")
    assert clone.vllm_version.startswith("0.1.dev16960+g")
    file = ArtifactFile(path=f"{LIB}/vllm/own.py", size=1, sha256=None, count=3, content=None)
    its = ArtifactAnswer(path=f"{LIB}/vllm/own.py", contains="def ", files=(file,))
    for evidence, more, count in ((SEED, [], 1), (later, [], 0), (clone, [], 1), (clone, [its], 0)):
        assert len(findings(plan, "n", evidence, [*there(), *more], (module,))) == count


def test_a_torch_for_the_cpu_on_a_rig_of_gpus_is_a_finding() -> None:
    """C1."""
    cpu = read_build_metadata(
        answers(version=VERSION, torch="__version__ = '2.10.0+cpu'\ncuda = None\n")
    )
    plain = read_build_metadata(
        answers(version=VERSION, torch="__version__ = '2.10.0'\ncuda: str = None\n")
    )
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
