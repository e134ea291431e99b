"""The picture of docs/architecture.md on the site: layers, their packages, and who imports whom.

graphviz lays it out. What follows from other arrows is left out (its tred), so that a page can
hold it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("deploys", "facts", "gates", "lab", "node", "operations", "schema")
_STYLE = (
    'rankdir=TB; compound=true; nodesep=0.12; ranksep=0.35; fontname="sans-serif";'
    ' node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif",'
    " fontsize=11, height=0.28, margin=0.07]; edge [arrowsize=0.6, color=gray45];"
)


def files(part: str, root: Path = ROOT) -> list[Path]:
    """The Python files of a part's packages, sorted; not the scripts that only lie there."""
    return sorted(p for p in (root / part).rglob("*.py") if (p.parent / "__init__.py").exists())


def imported(path: Path) -> set[str]:
    """The names that a file imports, anywhere in it, each with the module that it comes from."""
    names: set[str] = set()
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            names.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module:
            names.update(f"{item.module}.{alias.name}" for alias in item.names)
    return names


def _package(name: str) -> str:
    """The package that a dotted name is in."""
    while not (ROOT / name.replace(".", "/") / "__init__.py").exists():
        name = name.rpartition(".")[0]
    return name


def _lines() -> Iterator[str]:
    """The graph in the DOT language."""
    arrows = {
        (_package(".".join(path.relative_to(ROOT).parts[:-1])), _package(name))
        for part in PARTS
        for path in files(part)
        for name in imported(path)
        if name.split(".")[0] in PARTS
    }
    yield f"digraph rigbook {{ {_STYLE}"
    names = sorted({name for row in arrows for name in row})
    shown = {part: [name for name in names if name.split(".")[0] == part] for part in PARTS}
    for part in PARTS:
        yield f'subgraph "cluster_{part}" {{ label="{part}/"; style="rounded,filled";'
        yield " color=gray70; fillcolor=gray95; fontsize=13;"
        for package in shown[part]:
            label = package.removeprefix(f"{part}.") if package != part else f"{part}/*.py"
            yield f'"{package}" [label="{label}"];'
        yield "}"
    layers = {(here.split(".")[0], there.split(".")[0]) for here, there in arrows}
    yield from (f'"{here}" -> "{there}";' for here, there in sorted(arrows)
                if here != there and here.split(".")[0] == there.split(".")[0])  # fmt: skip
    for here, there in sorted(layers):
        if here != there:
            yield (f'"{shown[here][0]}" -> "{shown[there][0]}" [ltail="cluster_{here}",'
                   f' lhead="cluster_{there}", penwidth=1.6, color=black];')  # fmt: skip
    yield "}"


def draw(target: Path) -> None:
    """Writes the picture as SVG. Raises CalledProcessError where graphviz fails."""
    text = "\n".join(_lines()).encode()
    reduced = subprocess.run(["tred"], input=text, capture_output=True, check=True).stdout
    subprocess.run(["dot", "-Tsvg", "-o", str(target)], input=reduced, check=True)
