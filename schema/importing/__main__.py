"""`python -m schema.importing FILE`: a recipe of eugr's or sparkrun's, printed as one of ours.

--write        into catalog/recipes/NAME.yaml, and the build of its mods into templates/image/NAME
--name NAME    another name than the file's
--mods FOLDER  where its mods lie: a checkout of eugr's, or the mods folder of one
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from schema.core.errors import SpecError
from schema.core.strings import plain_name
from schema.importing.mapping import imported
from schema.importing.mods import BuildFile, layered
from schema.importing.reading import read
from schema.importing.result import Imported
from schema.importing.text import text

ROOT = Path(__file__).resolve().parents[2]


def converted(file: Path, name: str, mods: Path | None) -> tuple[Imported, list[BuildFile]]:
    """The recipe in `file` as one of ours called `name`, with the files of its build."""
    try:
        plain_name(name)
    except ValueError as error:
        raise SpecError(f"--name: {name!r} {error}") from None
    data, twice = read(file)
    made = imported(data, file, name)
    made.needs[:0] = [f"{key} stands twice in the file; the last one counts" for key in twice]
    files = layered(made, file, mods)
    made.recipe()
    return made, files


def write(made: Imported, files: list[BuildFile], file: Path, root: Path) -> list[str]:
    """Writes recipe and build; gives the paths below `root`. SpecError where one is there already.

    A neighbour's file that lies where the recipe goes is kept as NAME.yaml.original.
    """
    recipe, build = f"catalog/recipes/{made.name}.yaml", f"templates/image/{made.name}"
    target, kept = root / recipe, root / f"{recipe}.original"
    own = target.exists() and target.samefile(file)
    for path in (kept if own else target, root / build):
        if path.exists():
            raise SpecError(f"{path.relative_to(root)}: is there already; allowed: --name OTHER")
    for part in files:
        path = root / build / part.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if part.source is None:
            path.write_text(part.text)
        else:
            shutil.copy(part.source, path)
    body = text(made, str(kept.relative_to(root) if own else file))
    if own:
        target.rename(kept)
    target.write_text(body)
    return [recipe, *([build] if files else [])]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit status; 1 with one line a problem."""
    parser = argparse.ArgumentParser(prog="python -m schema.importing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--mods", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        made, files = converted(asked.file, asked.name or asked.file.stem, asked.mods)
        if not asked.write:
            print(text(made, str(asked.file)), end="")
            return 0
        written = write(made, files, asked.file, root)
        lines = [f"wrote {path}" for path in written] + [f"needs you: {row}" for row in made.needs]
        print("\n".join(lines))
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
