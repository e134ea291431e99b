"""provenance on a real folder: what it tells, what it answers of commits, when it fails."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plans.support.patched import make_recipe, make_venv
from tests.plans.support.scenario import HEAD, ROOT, Runs, Scenario, serving

PROVENANCE = "deploys/provenance.py"
MODULE = {"modules": [{"name": "deep_gemm", "files": ["deep_gemm/__init__.py"],
                       "reason": "sparse attention needs it at run time"}]}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Iterator[Runs]:
    """All runs of this module, on one venv on this machine."""
    with tempfile.TemporaryDirectory(prefix="rigbook-provenance-") as text:
        folder = Path(text)
        venv = make_venv(folder)
        (venv / "build-metadata.yaml").write_text("build_args:\n  vllm_prs: '41834'\n")
        recipes = make_recipe(folder)
        make_recipe(folder, "whole", **MODULE)

        def run(*data: str, recipe: str = "patched") -> Scenario:
            words = [word for pair in data for word in ("--data", pair)]
            return Scenario(
                (PROVENANCE, "-y", *words), serving,
                data={"recipe": recipe, "recipes_dir": [str(recipes)], "venv": str(venv)},
            )  # fmt: skip

        yield Runs(
            {
                "plain": run(),
                "commits": run("commits=1234567ab,#41834,abcdef0", f"git={ROOT}"),
                "number": run("commits=41834"),
                "json": run("commits=41834,abcdef0", "json=true"),
                "hostile": run("commits=--all"),
                "no clone": run("commits=abcdef0", f"git={folder}"),
                "module": run(recipe="whole"),
                "gone": run(f"venv={folder}/gone"),
            }
        )


def test_it_reads_and_changes_nothing(ran: Runs) -> None:
    run = ran["plain"]
    assert run.status == 0 and run.changing == (), run.output
    assert {c.what for c in run.commands} == {"artifact"}
    assert f"[{HEAD}] vLLM 0.20.2+g1234567ab, commit 1234567ab" in run.stderr
    assert f"[{HEAD}] torch 2.10.0+cpu (cpu)" in run.stderr
    assert "build_args.vllm_prs: 41834" in run.stderr


def test_commits_are_answered_with_the_reason(ran: Runs) -> None:
    run = ran["commits"]
    assert run.status == 0, run.output
    assert "1234567ab: in: the version 0.20.2+g1234567ab is 1234567ab" in run.stderr
    assert "#41834: in: " in run.stderr and "the build applied it" in run.stderr
    assert "abcdef0: cannot tell: " in run.stderr and "has no such commit" in run.stderr
    assert "no reason for a rebuild yet" in run.stderr


def test_a_number_is_a_pull_request_and_all_in_needs_no_rebuild(ran: Runs) -> None:
    assert "#41834: in: " in ran["number"].stderr
    assert "a rebuild for these would bring nothing" in ran["number"].stderr


def test_json_is_for_machines(ran: Runs) -> None:
    document = json.loads(ran["json"].stdout)
    asked = document[HEAD]["asked"]
    assert [(row["item"], row["verdict"]) for row in asked] == [
        ("#41834", "in"),
        ("abcdef0", "cannot tell"),
    ]
    assert document[HEAD]["vllm_commit"] == "1234567ab" and document[HEAD]["findings"] == []


def test_hostile_commits_are_refused(ran: Runs) -> None:
    ran["hostile"].refused("commits[0]", "is no commit and no pull request")
    assert ran["hostile"].commands == ()


def test_a_folder_without_a_clone_is_one_line(ran: Runs) -> None:
    ran["no clone"].refused("--data git:", "not a git repository")


def test_a_module_that_is_missing_ends_with_1(ran: Runs) -> None:
    ran["module"].refused("module-missing", "the module deep_gemm is not whole")
    assert "not there: deep_gemm/__init__.py" in ran["module"].stderr


def test_an_artefact_that_is_not_there_is_named(ran: Runs) -> None:
    ran["gone"].refused("artifact:", "is not a folder")
