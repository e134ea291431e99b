"""A venv as far as its files go, and recipes that patch it, for the plan tests."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.plans.support.scenario import ROOT
from tests.unit.builders.mxfp4 import BASE, PATH, diff


def make_venv(folder: Path, text: str = BASE) -> Path:
    """A venv with the file that the patch is about."""
    venv = folder / "venv"
    library = venv / "lib/python3.11/site-packages"
    target = library / PATH
    target.parent.mkdir(parents=True)
    target.write_text(text)
    (library / "vllm/_version.py").write_text("__version__ = version = '0.20.2+g1234567ab'\n")
    (library / "torch").mkdir()
    (library / "torch/version.py").write_text("__version__ = '2.10.0+cpu'\ncuda = None\n")
    info = library / "vllm-0.20.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.20.2\n\nText\n")
    (venv / "bin").mkdir()
    return venv


def target(venv: Path) -> Path:
    """The file that the patch is about."""
    return venv / "lib/python3.11/site-packages" / PATH


def make_recipe(folder: Path, name: str = "patched", **more: object) -> Path:
    """A recipe like tiny with the seed's patch; gives its folder, for `recipes_dir`."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    recipe["file_patches"] = [
        {
            "id": "mxfp4-gpu-cache",
            "path": PATH,
            "diff": diff(),
            "contains": "empty_cache",
            "count": 2,
            "reason": "without it the firmware hangs",
        }
    ]
    recipes = folder / "recipes"
    recipes.mkdir(exist_ok=True)
    (recipes / f"{name}.yaml").write_text(yaml.safe_dump({**recipe, **more}, sort_keys=False))
    return recipes
