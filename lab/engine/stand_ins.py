"""An image of the recipe's name: the small engine, with stand-ins of files that the recipe names.

A patch or a module of a recipe is told by files of its image. The small engine does not import
them; they lie where the recipe looks, so that their incidents can be dealt.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.settings import ENGINE_IMAGE

SCRIPT = Path(__file__).parents[1] / "files" / "add_layer.py"
PYTHON = "python3.12"
LIBRARY = f"/usr/local/lib/{PYTHON}/dist-packages"
SAYS = "# TWIN stand-in of a file of the rig's image\n"


def place(path: str) -> str | None:
    """The file of a patch's path; None for a pattern that leads to no one file."""
    there = path.replace("python3*", PYTHON)
    return None if "*" in there else there


def files(recipe: Mapping[str, Any], times: Mapping[str, int] | None = None) -> dict[str, str]:
    """Path → text of the recipe's patches and modules.

    `times`: by a patch's id, how often its text stands there, in place of as often as it should.
    """
    rows: Sequence[Mapping[str, Any]] = recipe.get("patches", ())
    found = {}
    for row in rows:
        count = (times or {}).get(str(row["id"]), int(row["count"]))
        found[str(place(str(row["path"])))] = SAYS + f"{row['contains']}\n" * count
    for module in recipe.get("modules", ()):
        found |= {f"{LIBRARY}/{name}": SAYS for name in module["files"]}
    return found


def command(image: str, texts: Mapping[str, str]) -> str:
    """The shell command of root's that gives a host the image of this name; `texts` by path."""
    if not texts:
        return f"docker tag {ENGINE_IMAGE} {shlex.quote(image)}"
    tagged = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
    words = [ENGINE_IMAGE, tagged, json.dumps(dict(texts), sort_keys=True)]
    return f"python3 -c {shlex.quote(SCRIPT.read_text())} {shlex.join(words)}"
