"""Draws docs/architecture.svg from the import graph: `make docs-picture` (graphviz lays it out).

Boxes are layers, rows in them packages, an arrow is an import. What follows from other arrows is
left out (graphviz' tred), so that a page can hold it.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.unit.house.import_graph import PARTS, ROOT, circles, files, module_arrows, package_arrows

PICTURE = ROOT / "docs" / "architecture.svg"
_STYLE = (
    'rankdir=TB; compound=true; nodesep=0.12; ranksep=0.35; fontname="sans-serif";'
    ' node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif",'
    " fontsize=11, height=0.28, margin=0.07]; edge [arrowsize=0.6, color=gray45];"
)


def layer_arrows() -> dict[str, set[str]]:
    """Each layer to the layers that it imports from."""
    arrows: dict[str, set[str]] = {part: set() for part in PARTS}
    for module, targets in module_arrows(PARTS, strings=False).items():
        here = module.split(".")[0]
        arrows[here] |= {target.split(".")[0] for target in targets} - {here}
    return arrows


def _held(package: str) -> list[Path]:
    """The files of a package."""
    folder = ROOT / package.replace(".", "/")
    return [path for path in files(package.split(".")[0]) if path.parent == folder]


def _shown(part: str) -> list[str]:
    """The packages of a part that hold modules, the part itself first."""
    return sorted(package for package in package_arrows(part) if len(_held(package)) > 1)


def digest() -> str:
    """The sha256 of what is drawn; the picture carries it, so that a test sees an old one."""
    return hashlib.sha256("\n".join(_lines()).encode()).hexdigest()


def _lines() -> Iterator[str]:
    """The graph in the DOT language."""
    yield f"digraph rigbook {{ {_STYLE}"
    shown = {part: _shown(part) for part in PARTS}
    for part in PARTS:
        yield f'subgraph "cluster_{part}" {{ label="{part}/"; style="rounded,filled";'
        yield " color=gray70; fillcolor=gray95; fontsize=13;"
        packages = package_arrows(part)
        for package in shown[part]:
            label = package.removeprefix(f"{part}.") if package != part else f"{part}/*.py"
            yield f'"{package}" [label="{label}"];'
        for package, targets in sorted(packages.items()):
            yield from (f'"{package}" -> "{target}";' for target in sorted(targets))
        yield "}"
    for part, targets in layer_arrows().items():
        for target in sorted(targets):
            yield (
                f'"{shown[part][0]}" -> "{shown[target][0]}"'
                f' [ltail="cluster_{part}", lhead="cluster_{target}",'
                " penwidth=1.6, color=black];"
            )
    yield "}"


def drawn() -> bytes:
    """The picture as SVG. Raises CalledProcessError when graphviz fails."""
    reduced = subprocess.run(
        ["tred"], input="\n".join(_lines()).encode(), capture_output=True, check=True
    )
    done = subprocess.run(["dot", "-Tsvg"], input=reduced.stdout, capture_output=True, check=True)
    return done.stdout.replace(b"<svg", f"<!-- graph {digest()} -->\n<svg".encode(), 1)


if __name__ == "__main__":
    assert not any(circles(package_arrows(part)) for part in PARTS), "a circle cannot be drawn"
    PICTURE.write_bytes(drawn())
