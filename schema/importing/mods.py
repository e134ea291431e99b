"""A neighbour's mods as a layered build: folders with a run.sh that changes the image.

Their launchers copy such a folder into the running container and run it there before each start
(apply_mod_to_container of eugr's launch-cluster.sh, core/mods.py of sparkrun). With us it runs
once, when the image is built: schema.render.image_build, `image.py --data build=true`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schema.core.errors import SpecError
from schema.core.strings import plain_name
from schema.importing.result import Imported

# What outlives run.sh would be gone in the image.
_STAYS = re.compile(r"\b(?:nohup|setsid)\b|(?<!&)&[ \t]*$", re.MULTILINE)
_HEAD = """\
# Made by `python -m schema.importing`: each mod's run.sh, in the folder that the engine starts in.
ARG BASE
FROM ${BASE}
COPY mods/ /workspace/mods/
"""
_STEP = (
    "RUN export WORKSPACE_DIR=$PWD && cd /workspace/mods/{name} && chmod +x run.sh && ./run.sh\n"
)
_TAIL = "COPY build-metadata.yaml /build-metadata.yaml\n"


@dataclass(frozen=True)
class BuildFile:
    """A file of the build's folder: where it goes, and a text or the file that it is a copy of."""

    path: str
    source: Path | None = None
    text: str = ""


def layered(made: Imported, file: Path, more: Path | None) -> list[BuildFile]:
    """The files of templates/image/NAME for the mods that can be built; `made` gets the build.

    Mods are looked for in `more` (a checkout of eugr's, or its mods folder) and in the folders
    above `file`. Those that are not there, and those that start something beside the engine, are
    named in `made.needs`.
    """
    places = _places(file, more)
    built: dict[str, Path] = {}
    for mod in made.mods:
        name = mod.rstrip("/").rpartition("/")[2]
        folder = _folder(name, places)
        if folder is None:
            made.needs.append(
                f"{mod}: its folder is not here; `--mods FOLDER` takes eugr's checkout"
            )
        elif _STAYS.search((folder / "run.sh").read_text(errors="replace")):
            made.needs.append(f"{mod}: starts something beside the engine, which no image can hold")
        else:
            built[name] = folder
    if not built:
        return []
    container, image = made.data["container"], f"rigbook/{_repository(made.name)}:mods"
    container |= {"image": image, "build": {"template": made.name, "base": container["image"]}}
    made.needs.append(
        f"pyinfra INVENTORY deploys/image.py -y --data build=true: makes {image} with "
        f"{', '.join(built)}; read each run.sh first, it runs as root, without a GPU"
    )
    steps = "".join(_STEP.replace("{name}", name) for name in built)
    files = [BuildFile("Dockerfile", text=_HEAD + steps + _TAIL)]
    for name, folder in built.items():
        files += _copies(name, folder)
    return files


def _places(file: Path, more: Path | None) -> list[Path]:
    """The folders in which a mod's folder may lie."""
    above = file.resolve().parents
    return [*([more, more / "mods"] if more else []), *(folder / "mods" for folder in above)]


def _folder(name: str, places: Sequence[Path]) -> Path | None:
    """The mod's folder; None where there is none with a run.sh."""
    try:
        plain_name(name)
    except ValueError:
        return None
    return next((p / name for p in places if (p / name / "run.sh").is_file()), None)


def _copies(name: str, folder: Path) -> list[BuildFile]:
    """The mod's files. SpecError: a link, which a build's context does not take."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise SpecError(f"{path}: is a link; allowed: plain files in a mod")
        if path.is_file():
            found.append(BuildFile(f"mods/{name}/{path.relative_to(folder).as_posix()}", path))
    return found


def _repository(name: str) -> str:
    """The recipe's name as docker takes a repository's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
