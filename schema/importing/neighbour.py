"""Which files are recipes of a neighbour: of eugr's run-recipe.py, or of sparkrun.

Sources: recipes/README.md and run-recipe.py of eugr/spark-vllm-docker, RECIPES.md and
core/recipe.py of spark-arena/sparkrun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from schema.core.errors import SpecError, shown

Launcher = Literal["eugr", "sparkrun"]
WORDS: dict[Launcher, str] = {"eugr": "eugr's run-recipe.py", "sparkrun": "sparkrun"}
# Keys that every recipe of theirs has two of, and none of ours has.
_THEIRS = {"recipe_version", "command", "defaults", "runtime", "metadata", "mods"}
_VLLM = ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm")
_FIRST_WORDS = (
    ("sglang", re.compile(r"sglang\s+serve\b|python3?\s+-m\s+sglang\b")),
    ("llama.cpp", re.compile(r"llama-server\b")),
    ("TensorRT-LLM", re.compile(r"trtllm-serve\b|mpirun\b.*trtllm")),
)


def launcher_of(data: Mapping[str, object]) -> Launcher | None:
    """Whose recipe this is; None for one of ours, or for something else.

    run-recipe.py reads version 1, sparkrun later ones; sparkrun alone knows `runtime`.
    """
    if "vllm_serve" in data or len(_THEIRS & data.keys()) < 2:
        return None
    first = str(data.get("recipe_version", "2")) == "1" and "runtime" not in data
    return "eugr" if first else "sparkrun"


def recognised(data: Mapping[str, object], file: str) -> None:
    """SpecError, with the command that makes a recipe of ours, where `data` is a neighbour's."""
    launcher = launcher_of(data)
    if launcher is not None:
        raise SpecError(
            f"{file}: is a recipe of {WORDS[launcher]}; allowed: one of rigbook's, which "
            f"`python -m schema.importing {file} --write` makes of it"
        )


def section(data: Mapping[str, object], key: str, file: str) -> dict[str, Any]:
    """The map at `key`, an empty one where there is none; SpecError where it is no map."""
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise SpecError(
            f"{file}: {key}: is {shown(value, key == 'env')}; allowed: a map of keys and values"
        )
    return {str(name): one for name, one in value.items()}


def check_engine(data: Mapping[str, object], file: str) -> None:
    """SpecError where the recipe starts another engine than vLLM."""
    runtime, command = str(data.get("runtime") or ""), str(data.get("command") or "").strip()
    engine = next((name for name, words in _FIRST_WORDS if words.match(command)), None)
    if engine is None and runtime not in _VLLM:
        engine = runtime
    if engine is not None:
        raise SpecError(f"{file}: starts {shown(engine)}; allowed: vllm, rigbook runs no other")
