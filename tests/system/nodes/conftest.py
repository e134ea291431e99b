"""A rig of four hosts on one switch, with the real vLLM, tensor parallel 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.system.rehearsal import ROOT, Done, Lab, rehearsal

NODES = 4
TINY = ROOT / "catalog" / "recipes" / "tiny.yaml"


@dataclass(frozen=True)
class Four:
    """The lab's four hosts, and the folder of the recipe that is served on them."""

    lab: Lab
    recipes: Path

    def pyinfra(self, deploy: str, *arguments: str) -> Done:
        """A runbook for the rig of four."""
        chosen = ("--data", "recipe=four", "--data", f"recipes_dir={self.recipes}")
        return self.lab.pyinfra(deploy, *chosen, *arguments)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    """Four hosts, each with the engine's image; the pair's recipe for four ranks."""
    recipe = yaml.safe_load(TINY.read_text())
    # no pipeline: the CPU build of vLLM 0.32.0 dies in its first pipelined step
    recipe["vllm_serve"]["tensor_parallel_size"] = NODES
    recipe["multi_node"]["nnodes"] = NODES
    # four starts on the cores of one machine
    recipe["expect"]["start_budget_s"] = 900
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "four.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    with rehearsal("--hosts", str(NODES)) as lab:
        yield Four(lab, folder)


@pytest.fixture(scope="session")
def serving(four: Four) -> Four:
    """The rig of four after its first `serve`."""
    done = four.pyinfra("serve")
    assert done.rc == 0, done.text
    return four
