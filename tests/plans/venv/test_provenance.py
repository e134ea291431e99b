"""provenance on a real folder: what it tells, what it answers of commits, when it fails."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.plans.support.scenario import (
    HEAD,
    Ends,
    Runs,
    Scenario,
    data,
    each_row,
    make_recipe,
    make_venv,
    quiet,
    refused,
    serving,
)

MODULE = {"modules": [{"name": "deep_gemm", "files": ["deep_gemm/__init__.py"],
                       "reason": "sparse attention needs it at run time"}]}  # fmt: skip


# One venv on this machine for all runs.
MADE = tempfile.TemporaryDirectory(prefix="rigbook-provenance-")
FOLDER = Path(MADE.name)
VENV = make_venv(FOLDER)
(VENV / "build-metadata.yaml").write_text("build_args:\n  vllm_prs: '41834'\n")
RECIPES = make_recipe(FOLDER)
make_recipe(FOLDER, "whole", **MODULE)


def run(*pairs: str, recipe: str = "patched") -> Scenario:
    """A run of provenance."""
    rig = {"recipe": recipe, "recipes_dir": [str(RECIPES)], "venv": str(VENV)}
    return Scenario(("deploys/provenance.py", "-y", *data(*pairs)), serving, data=rig)


TABLE = {
    "plain": (run(), quiet(
        f"[{HEAD}] vLLM 0.20.2+g1234567ab, commit 1234567ab",
        f"[{HEAD}] torch 2.10.0+cpu (cpu)", "build_args.vllm_prs: 41834",
        asks=["artifact", "artifact"])),
    "commits": (run("commits=1234567ab,#41834,abcdef0"), quiet(
        "1234567ab: in: the version 0.20.2+g1234567ab is 1234567ab",
        "#41834: in: ", "the build applied it",
        "abcdef0: cannot tell: ", "a date would prove nothing", "no reason for a rebuild yet")),
    # a number is a pull request, and all in needs no rebuild
    "number": (run("commits=41834"), quiet(
        "#41834: in: ", "a rebuild for these would bring nothing")),
    "json": (run("commits=41834,abcdef0", "json=true"), quiet()),
    "hostile": (
        run("commits=--all"),
        Ends(None, last=("commits[0]", "is no commit and no pull request"), asks=[])),
    "git": (run("commits=abcdef0", f"git={FOLDER}"), refused(
        "git: no clone is asked any more; git merge-base --is-ancestor says it")),
    "module": (run(recipe="whole"), refused(
        "module-missing", "the module deep_gemm is not whole",
        says=(": deep_gemm/__init__.py",))),
    "gone": (run(f"venv={FOLDER}/gone"), refused("artifact:", "is not a folder")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_json_is_for_machines(ran: Runs) -> None:
    document = json.loads(ran["json"].stdout)
    asked = document[HEAD]["asked"]
    assert [(row["item"], row["verdict"]) for row in asked] == [
        ("#41834", "in"),
        ("abcdef0", "cannot tell"),
    ]
    assert document[HEAD]["vllm_commit"] == "1234567ab" and document[HEAD]["findings"] == []
