"""Data of a two-node rig as pyinfra would merge it, and recipes to break, for the unit tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from schema.desired.plan import Plan
from schema.inputs.load import plan

ROOT = Path(__file__).resolve().parents[3]


def host(number: int, **changes: object) -> dict[str, object]:
    """Host `number`'s merged data (1 is the head); a change to `...` leaves the key out."""
    data: dict[str, object] = {
        "ssh_hostname": f"192.168.1.1{number}",
        "role": "head" if number == 1 else "worker",
        "lan_address": f"192.168.1.1{number}",
        "fabric_address": f"10.0.0.{number}",
        "fabric_device": "bond0",
        "ssh_user": "milo",
        "rig": "spark",
        "recipe": "deepseek-v4-flash",
        **changes,
    }
    return {key: value for key, value in data.items() if value is not ...}


def spark_plan(root: Path = ROOT, **changes: object) -> Plan:
    """The plan of spark1 and spark2, with the same changes on both."""
    return plan({"spark1": host(1, **changes), "spark2": host(2, **changes)}, None, root)


def tiny() -> dict[str, Any]:
    """The tiny recipe as plain data, to be changed by a test."""
    data: dict[str, Any] = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    return copy.deepcopy(data)


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The tiny recipe with the value at `path` replaced."""
    data = tiny()
    inner: Any = data
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return data


def project(folder: Path, text: str | dict[str, Any], name: str = "broken") -> Path:
    """A project's root below `folder` whose only recipe is `text` (or plain data)."""
    recipes = folder / "catalog" / "recipes"
    recipes.mkdir(parents=True)
    body = text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False)
    (recipes / f"{name}.yaml").write_text(body)
    return folder
