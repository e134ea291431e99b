"""Imports run one way: deploys → operations, gates, facts → schema (design.md, "The house")."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("deploys", "facts", "gates", "lab", "node", "operations", "schema", "tests")
# The one file that knows the program that it sends.
DOOR = "facts/rignode/pack.py"
# Of node, all others may import these pure modules.
RULES = "node.rules."
# What each part may import of the others.
ALLOWED = {
    "schema": {"node"},
    "gates": {"schema", "node"},
    "node": set(),
    "facts": {"schema", "node"},
    "operations": {"schema", "facts", "node"},
    "deploys": {"schema", "facts", "gates", "operations", "node"},
    "lab": {"facts"},
}
WITHOUT_PYINFRA = ("schema", "gates", "node")


def imported(path: Path) -> set[str]:
    """The first words of all modules that a file imports."""
    names: set[str] = set()
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            names.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module:
            names.update(f"{item.module}.{alias.name}" for alias in item.names)
    return names


def files(part: str) -> list[Path]:
    """All Python files of a part."""
    return sorted((ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_it_may(part: str) -> None:
    wrong = []
    for path in files(part):
        for name in imported(path):
            first = name.split(".")[0]
            if first in PARTS and first != part and first not in ALLOWED[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            inside = part == "node" or path == ROOT / DOOR
            if first == "node" and not inside and not name.startswith(RULES):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}; only {DOOR} does")
    assert files(part) and wrong == []


@pytest.mark.parametrize("part", WITHOUT_PYINFRA)
def test_pure_parts_do_not_know_pyinfra(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(part)
        for name in imported(path)
        if name.split(".")[0] in ("pyinfra", "gevent", "httpx")
    ]
    assert files(part) and wrong == []


def test_node_is_standard_library_only() -> None:
    import sys

    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("node")
        for name in imported(path)
        if name.split(".")[0] not in (*sys.stdlib_module_names, "node")
    ]
    assert wrong == []


def test_files_that_pyinfra_executes_define_nothing_to_import() -> None:
    """pyinfra executes these with `__name__ == "builtins"`: a class there has no module."""
    from_exec = [*files("inventory"), *files("group_data")]
    from_exec += [p for p in files("deploys") if "from pyinfra import host" in p.read_text()]
    wrong = [
        f"{path.relative_to(ROOT)} defines {item.name}"
        for path in from_exec
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.ClassDef)
    ]
    assert from_exec and wrong == []
