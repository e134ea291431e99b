"""A rig of four behind a switch: its recipe, made of a recipe for two, and its hosts' data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from schema.desired.plan import Plan
from schema.inputs.load import plan
from tests.unit.builders.spark_rig import ROOT, host

NAMES = ("spark1", "spark2", "spark3", "spark4")


def recipe_over(folder: Path, of: str, nodes: int = 4) -> dict[str, object]:
    """Writes the recipe `many`, like `of` over so many nodes; gives the keys that choose it."""
    data: dict[str, Any] = yaml.safe_load((ROOT / f"catalog/recipes/{of}.yaml").read_text())
    data["multi_node"]["nnodes"] = data["vllm_serve"]["tensor_parallel_size"] = nodes
    folder.mkdir(exist_ok=True)
    (folder / "many.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return {"recipe": "many", "recipes_dir": [str(folder)]}


def four_plan(folder: Path, of: str = "deepseek-v4-flash", **changes: dict[str, object]) -> Plan:
    """The plan of spark1 to spark4; `changes` by the host's name."""
    chosen = recipe_over(folder, of)
    hosts = {
        name: host(number, rank=number - 1, **{**chosen, **changes.get(name, {})})
        for number, name in enumerate(NAMES, 1)
    }
    return plan(hosts, None, ROOT)
