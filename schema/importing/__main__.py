"""`python -m schema.importing FILE`: a recipe of eugr's or sparkrun's, printed as one of ours.

--write        into catalog/recipes/NAME.yaml
--name NAME    another name than the file's
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from schema.core.errors import SpecError
from schema.core.strings import plain_name
from schema.importing.mapping import imported
from schema.importing.reading import read
from schema.importing.result import Imported
from schema.importing.text import text

ROOT = Path(__file__).resolve().parents[2]


def converted(file: Path, name: str) -> Imported:
    """The recipe in `file` as one of ours called `name`."""
    try:
        plain_name(name)
    except ValueError as error:
        raise SpecError(f"--name: {name!r} {error}") from None
    data, twice = read(file)
    made = imported(data, file, name)
    made.needs[:0] = [f"{key} stands twice in the file; the last one counts" for key in twice]
    return made


def write(made: Imported, file: Path, root: Path) -> str:
    """Writes the recipe; gives its path below `root`. SpecError where one is there already.

    A neighbour's file that lies where the recipe goes is kept as NAME.yaml.original.
    """
    recipe = f"catalog/recipes/{made.name}.yaml"
    target, kept = root / recipe, root / f"{recipe}.original"
    own = target.exists() and target.samefile(file)
    if (kept if own else target).exists():
        there = (kept if own else target).relative_to(root)
        raise SpecError(f"{there}: is there already; allowed: --name OTHER")
    body = text(made, str(kept.relative_to(root) if own else file))
    if own:
        target.rename(kept)
    target.write_text(body)
    return recipe


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit status; 1 with one line a problem."""
    parser = argparse.ArgumentParser(prog="python -m schema.importing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        made = converted(asked.file, asked.name or asked.file.stem)
        if not asked.write:
            print(text(made, str(asked.file)), end="")
            return 0
        written = write(made, asked.file, root)
        lines = [f"wrote {written}", *(f"needs you: {row}" for row in made.needs)]
        print("\n".join(lines))
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
