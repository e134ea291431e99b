"""patch on a real file: what is shown and written; a doubled one is mended, a strange one not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plans.support.engine_double import Reply
from tests.plans.support.patched import make_recipe, make_venv, target
from tests.plans.support.scenario import HEAD, WORKER, Ran, Runs, Scenario, serving
from tests.unit.builders.mxfp4 import BASE, PATCHED, THREE

PATCH = "deploys/patch.py"
DOCTOR = "deploys/doctor.py"
TOOL = {
    "patch_tools": [
        {"id": "genesis", "argv": ["{venv}/bin/genesis"], "reason": "SM_120 fixes", "tree": "vllm"}
    ]
}
TEXTS = {
    "plain": BASE,
    "done": PATCHED,
    "doubled": THREE,
    "strange": "import os\n",
    "dry": BASE,
    "dry doubled": THREE,
    "tool": PATCHED,
    "refused": BASE,
    "optional": "import os\n",
    "doctor done": PATCHED,
    "doctor doubled": THREE,
    "doctor strange": "import os\n",
}


class World:
    """The folders of each scenario, and its run."""

    def __init__(self, folder: Path) -> None:
        self.venvs = {name: self._venv(folder / name.replace(" ", "-"), name) for name in TEXTS}
        scenarios = {name: self._scenario(name) for name in TEXTS}
        scenarios["nothing to patch"] = Scenario((PATCH, "-y"), serving)
        self.runs = Runs(scenarios)

    def _venv(self, folder: Path, name: str) -> Path:
        folder.mkdir()
        more: dict[str, Any] = dict(TOOL) if name == "tool" else {}
        recipes = make_recipe(folder, **more)
        if name == "optional":
            text = (recipes / "patched.yaml").read_text()
            (recipes / "patched.yaml").write_text(
                text.replace("  count: 2\n", "  count: 2\n  required: false\n")
            )
        return make_venv(folder, TEXTS[name])

    def _scenario(self, name: str) -> Scenario:
        venv = self.venvs[name]
        dry = name.startswith("dry")
        data = {"recipe": "patched", "recipes_dir": [str(venv.parent / "recipes")],
                "venv": str(venv)}  # fmt: skip
        faults = {}
        if name == "refused":
            faults = {f"{HEAD}:apply file": {"error": "No space left on device", "code": "io"}}
        words = (DOCTOR, "-y", "--data", "json=true") if name.startswith("doctor") else None
        state = venv.parent / "state"
        state.mkdir()
        return Scenario(
            words or (PATCH, *(("--dry", "--diff") if dry else ("-y",))), serving, data=data,
            faults=faults, env={"RIGBOOK_STATE": str(state)}, answers=Reply,
        )  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """All runs of this module; both stand-in hosts look at one venv on this machine."""
    with tempfile.TemporaryDirectory(prefix="rigbook-patch-") as folder:
        yield World(Path(folder))


def ran(world: World, name: str) -> Ran:
    """A run by its name."""
    return world.runs[name]


def test_dry_shows_the_diff_and_writes_nothing(world: World) -> None:
    dry = ran(world, "dry")
    assert dry.status == 0 and dry.changing == (), dry.output
    assert target(world.venvs["dry"]).read_text() == BASE
    assert f"[{HEAD}] mxfp4-gpu-cache: not applied:" in dry.stderr
    assert dry.stderr.count("+        torch.cuda.empty_cache()") == 4
    assert "write " in dry.stderr and "mxfp4-gpu-cache is not applied" in dry.stderr


def test_dry_of_a_doubled_file_shows_what_goes(world: World) -> None:
    dry = ran(world, "dry doubled")
    assert "'empty_cache' stands 3 times, 2 are right" in dry.stderr
    assert dry.stderr.count("-        torch.cuda.empty_cache()") == 2
    assert target(world.venvs["dry doubled"]).read_text() == THREE


@pytest.mark.parametrize("name", ["plain", "doubled"])
def test_the_file_becomes_the_known_good_one(world: World, name: str) -> None:
    """C4 and C15: missing or doubled, the same file comes of it; the proof closes the change."""
    run = ran(world, name)
    assert run.status == 0, run.output
    assert target(world.venvs[name]).read_text() == PATCHED
    assert sorted(run.steps[:2]) == ["lab1 apply file", "lab2 apply file"]
    assert run.steps[2:] == ["lab1 close COMMITTED", "lab2 close COMMITTED"]
    assert "1 patches in force" in run.stderr and "at its next start" in run.stderr


def test_the_step_keeps_owner_and_mode_and_refuses_an_edit_in_between(world: World) -> None:
    applied = next(c for c in ran(world, "plain").changing if c.verb == "apply")
    (step,) = applied.request["steps"]
    assert (step["mode"], step["owner"], step["group"]) == ("0644", "root", "root")
    assert len(step["expect_sha256"]) == 64 and step["validate"][-1] == "{tmp}"


def test_a_patched_file_is_left_alone(world: World) -> None:
    """A second run changes nothing: two looks a host, no step."""
    run = ran(world, "done")
    assert run.status == 0 and run.changing == (), run.output
    assert sorted(c.what for c in run.commands) == ["patch look"] * 2 + ["snapshot"] * 2


def test_a_file_in_no_known_state_is_refused(world: World) -> None:
    run = ran(world, "strange")
    run.refused("patch-drifted", "mxfp4-gpu-cache is drifted")
    assert target(world.venvs["strange"]).read_text() == "import os\n"


def test_an_optional_patch_in_no_known_state_is_only_told(world: World) -> None:
    run = ran(world, "optional")
    assert run.status == 0 and run.changing == (), run.output
    assert "warn patch-drifted" in run.stderr


def test_a_tool_runs_once_with_its_counts_told(world: World) -> None:
    run = ran(world, "tool")
    assert run.status == 0, run.output
    assert "genesis: 23 applied, 36 skipped, 0 failed; 1 files changed" in run.stderr
    assert sorted(run.steps[:2]) == ["lab1 patch tool", "lab2 patch tool"]
    assert run.steps[2:] == ["lab1 close COMMITTED", "lab2 close COMMITTED"]
    sent = next(c for c in run.changing if c.verb == "patch tool").request["tool"]
    assert sent["argv"] == ["{venv}/bin/genesis"] and sent["venv"] == str(world.venvs["tool"])


def test_a_node_that_cannot_write_stops_the_rig(world: World) -> None:
    """The other one is undone: a rig is one thing."""
    run = ran(world, "refused")
    assert run.status == 1 and "No space left on device" in run.stderr
    undone = {step.split()[0] for step in run.steps if step.endswith("undo")}
    asked = {step.split()[0] for step in run.steps if step.endswith("apply file")}
    assert undone == asked and HEAD.removeprefix("@fake/") in undone


def test_a_recipe_without_patches_says_so(world: World) -> None:
    ran(world, "nothing to patch").refused("has no file_patches and no patch_tools")


def named(run: Ran) -> list[tuple[str, str, str, str]]:
    """The doctor's findings about patches: code, severity, node, remedy."""
    text = run.stdout[run.stdout.index("[") : run.stdout.rindex("]") + 1]
    rows = [row for row in json.loads(text) if row["code"].startswith("patch-")]
    return [(row["code"], row["severity"], row["node"], row["remedy"]) for row in rows]


def test_the_doctor_names_a_doubled_and_a_drifted_patch_with_the_remedy(world: World) -> None:
    """C15: nobody has to run patch to learn that a file holds it twice."""
    assert named(ran(world, "doctor done")) == []
    doubled = named(ran(world, "doctor doubled"))
    assert [row[:3] for row in doubled] == [
        ("patch-doubled", "block", HEAD), ("patch-doubled", "block", WORKER),
    ]  # fmt: skip
    assert doubled[0][3] == "pyinfra tests/plans/support/inventory.py deploys/patch.py --dry --diff"
    strange = named(ran(world, "doctor strange"))
    assert strange[0][:3] == ("patch-drifted", "block", HEAD)
    assert "bring back the file that the recipe knows" in strange[0][3]
    for name in ("doctor doubled", "doctor strange"):
        assert ran(world, name).status == 1 and ran(world, name).changing == ()
