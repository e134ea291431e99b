"""The import graph of the project: modules, the packages that hold them, and who imports whom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("deploys", "facts", "gates", "lab", "node", "operations", "schema")
# A module named in a string, such as "node.kernel.grub_step" or "node.kernel.report:collect".
_NAMED = re.compile(rf"((?:{'|'.join(PARTS)})(?:\.\w+)+)(?::\w+)?")

Graph = dict[str, set[str]]


def files(part: str, root: Path = ROOT) -> list[Path]:
    """The Python files of a part's packages, sorted; not the scripts that only lie there."""
    return sorted(p for p in (root / part).rglob("*.py") if (p.parent / "__init__.py").exists())


def module_of(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a file; a package's for its `__init__.py`."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def _read(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a file's text imports, and the modules that it names in strings."""
    names: set[str] = set()
    strings: set[str] = set()
    for item in ast.walk(ast.parse(text)):
        if isinstance(item, ast.Import):
            names.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module:
            names.update(f"{item.module}.{alias.name}" for alias in item.names)
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
            found = _NAMED.fullmatch(item.value)
            strings.update((found[1],) if found else ())
    return frozenset(names), frozenset(strings)


def imported(path: Path) -> frozenset[str]:
    """The names that a file imports, anywhere in it, each with the module it comes from."""
    return _read(path.read_text())[0]


def named(path: Path) -> frozenset[str]:
    """The modules that a file names in strings, for importlib."""
    return _read(path.read_text())[1]


def _known(names: Iterable[str], modules: Mapping[str, Path]) -> set[str]:
    """The modules behind imported names: `package.module`, or the module that a name is in."""
    both = {name if name in modules else name.rpartition(".")[0] for name in names}
    return {name for name in both if name in modules}


def module_arrows(parts: Iterable[str], root: Path = ROOT, strings: bool = True) -> Graph:
    """Each module of the parts to the modules it imports; with those in strings, if asked."""
    modules = {module_of(path, root): path for part in parts for path in files(part, root)}
    arrows: Graph = {}
    for module, path in modules.items():
        names = imported(path) | (named(path) if strings else frozenset())
        arrows[module] = _known(names, modules) - {module}
    return arrows


def package_of(module: str, packages: set[str]) -> str:
    """The package that holds a module."""
    return module if module in packages else module.rpartition(".")[0]


def package_arrows(part: str, root: Path = ROOT) -> Graph:
    """Each package of a part to the packages of that part that it imports from, strings apart."""
    packages = {module_of(p, root) for p in files(part, root) if p.name == "__init__.py"}
    arrows: Graph = {package: set() for package in packages}
    for module, targets in module_arrows([part], root, strings=False).items():
        here = package_of(module, packages)
        arrows[here] |= {package_of(target, packages) for target in targets} - {here}
    return arrows


def circles(arrows: Graph) -> list[list[str]]:
    """The circles of a graph, each as its sorted members."""
    reach: Graph = {}
    for start in arrows:
        seen: set[str] = set()
        todo = list(arrows[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo.extend(arrows.get(name, ()))
        reach[start] = seen
    found = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in arrows
        if name in reach[name]
    }
    return [list(members) for members in sorted(found)]
