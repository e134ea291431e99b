"""patch on a real file: what is shown and written; a doubled one is mended, a strange one not."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ran,
    Runs,
    Scenario,
    data,
    done,
    each_row,
    failed,
    make_recipe,
    make_venv,
    quiet,
    refused,
    serving,
    target,
)
from tests.unit.builders.mxfp4 import BASE, PATCHED, THREE

MADE = tempfile.TemporaryDirectory(prefix="rigbook-patch-")
STRANGE = "import os\n"
TOOL = {"id": "genesis", "argv": ["{venv}/bin/genesis"], "reason": "SM_120 fixes", "tree": "vllm",
        "env": {"GENESIS_P82_THRESHOLD_SINGLE": "0.3"}}  # fmt: skip
GENESIS = {"GENESIS_ENABLE_P82": "1", "GENESIS_PREALLOC_TOKEN_BUDGET": "4096"}
NO_SPACE = {f"{HEAD}:apply file": {"error": "No space left on device", "code": "io"}}
DRY, DOCTOR = ("patch", "--dry", "--diff"), ("doctor", "-y", *data("json=true"))


def venv_of(name: str) -> Path:
    """The venv of a scenario: both stand-in hosts look at it, on this machine."""
    return Path(MADE.name, name.replace(" ", "-"), "venv")


def on(
    name: str, text: str, words: tuple[str, ...] = ("patch", "-y"), optional: bool = False,
    recipe: dict[str, Any] | None = None, **more: Any,
) -> Scenario:  # fmt: skip
    """A run whose venv has `text` in the file that the recipe patches."""
    folder = venv_of(name).parent
    (folder / "state").mkdir(parents=True)
    recipes = make_recipe(folder, **(recipe or {}))
    if optional:
        file = recipes / "patched.yaml"
        file.write_text(file.read_text().replace("  count: 2\n", "  count: 2\n  required: false\n"))
    rig = {
        "recipe": "patched",
        "recipes_dir": [str(recipes)],
        "venv": str(make_venv(folder, text)),
    }
    deploy, *flags = words
    env = {"RIGBOOK_STATE": str(folder / "state")}
    return Scenario((f"deploys/{deploy}.py", *flags), data=rig, env=env, answers=Reply, **more)


def both(what: str) -> list[Any]:
    """It is done on both, then blessed by the proof."""
    return [{f"lab1 {what}", f"lab2 {what}"}, "lab1 close COMMITTED", "lab2 close COMMITTED"]


APPLIED = done("1 patches in force", "at its next start", steps=both("apply file"))
TABLE = {
    # C4 and C15: missing or doubled, the same file comes of it
    "plain": (on("plain", BASE), APPLIED),
    "doubled": (on("doubled", THREE), APPLIED),
    # a second run changes nothing: two looks a host
    "done": (on("done", PATCHED), quiet(asks=["patch look"] * 2 + ["snapshot"] * 2)),
    "strange": (on("strange", STRANGE), refused("patch-drifted", "mxfp4-gpu-cache is drifted")),
    "dry": (on("dry", BASE, DRY), quiet(
        f"[{HEAD}] mxfp4-gpu-cache: not applied:", "write ", "mxfp4-gpu-cache is not applied")),
    "dry doubled": (on("dry doubled", THREE, DRY), done(
        "'empty_cache' stands 3 times, 2 are right")),
    "tool": (on("tool", PATCHED, recipe={"patch_tools": [TOOL], "env": GENESIS}), done(
        "genesis: 23 applied, 36 skipped, 0 failed; 1 files changed", steps=both("patch tool"))),
    "refused": (on("refused", BASE, faults=NO_SPACE), failed("No space left on device")),
    # in no known state, and only told
    "optional": (on("optional", STRANGE, optional=True), quiet("warn patch-drifted")),
    "nothing to patch": (Scenario(("deploys/patch.py", "-y"), serving), refused(
        "has no file_patches and no patch_tools")),
    "doctor done": (on("doctor done", PATCHED, DOCTOR), quiet()),
    "doctor doubled": (on("doctor doubled", THREE, DOCTOR), failed(steps=[])),
    "doctor strange": (on("doctor strange", STRANGE, DOCTOR), failed(steps=[])),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize(
    ("name", "sign", "text"), [("dry", "+", BASE), ("dry doubled", "-", THREE)]
)
def test_dry_shows_the_diff_and_writes_nothing(ran: Runs, name: str, sign: str, text: str) -> None:
    shown = ran[name].stderr.count(f"{sign}        torch.cuda.empty_cache()")
    assert shown == (4 if sign == "+" else 2)
    assert target(venv_of(name)).read_text() == text


@pytest.mark.parametrize("name", ["plain", "doubled"])
def test_the_file_becomes_the_known_good_one(ran: Runs, name: str) -> None:
    assert ran[name].status == 0 and target(venv_of(name)).read_text() == PATCHED


def test_a_file_in_no_known_state_stays(ran: Runs) -> None:
    assert ran["strange"].status and target(venv_of("strange")).read_text() == STRANGE


def test_the_step_keeps_owner_and_mode_and_refuses_an_edit_in_between(ran: Runs) -> None:
    applied = next(c for c in ran["plain"].changing if c.verb == "apply")
    (step,) = applied.request["steps"]
    assert (step["mode"], step["owner"], step["group"]) == ("0644", "root", "root")
    assert len(step["expect_sha256"]) == 64 and step["validate"][-1] == "{tmp}"


def test_a_tool_is_run_in_the_venv(ran: Runs) -> None:
    sent = next(c for c in ran["tool"].changing if c.verb == "patch tool").request["tool"]
    assert sent["argv"] == ["{venv}/bin/genesis"] and sent["venv"] == str(venv_of("tool"))
    assert sent["env"] == {**GENESIS, "GENESIS_P82_THRESHOLD_SINGLE": "0.3"}


def test_a_node_that_cannot_write_stops_the_rig(ran: Runs) -> None:
    """The other one is undone: a rig is one thing."""
    run = ran["refused"]
    undone = {step.split()[0] for step in run.steps if step.endswith("undo")}
    asked = {step.split()[0] for step in run.steps if step.endswith("apply file")}
    assert undone == asked and HEAD.removeprefix("@fake/") in undone


def named(run: Ran) -> list[tuple[str, str, str, str]]:
    """The doctor's findings about patches: code, severity, node, remedy."""
    text = run.stdout[run.stdout.index("[") : run.stdout.rindex("]") + 1]
    rows = [row for row in json.loads(text) if row["code"].startswith("patch-")]
    return [(row["code"], row["severity"], row["node"], row["remedy"]) for row in rows]


def test_the_doctor_names_a_doubled_and_a_drifted_patch_with_the_remedy(ran: Runs) -> None:
    """C15: nobody has to run patch to learn that a file holds it twice."""
    assert named(ran["doctor done"]) == []
    doubled = named(ran["doctor doubled"])
    assert [row[:3] for row in doubled] == [
        ("patch-doubled", "block", HEAD), ("patch-doubled", "block", WORKER),
    ]  # fmt: skip
    assert doubled[0][3] == "pyinfra tests/plans/support/inventory.py deploys/patch.py --dry --diff"
    strange = named(ran["doctor strange"])
    assert strange[0][:3] == ("patch-drifted", "block", HEAD)
    assert "bring back the file that the recipe knows" in strange[0][3]
