"""Imports run one way, between layers and between packages (docs/architecture.md)."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.house.arrows import ALLOWED
from tests.unit.house.import_graph import (
    PARTS,
    ROOT,
    circles,
    files,
    imported,
    module_arrows,
    package_arrows,
)
from tests.unit.house.picture import PICTURE, digest

# What each layer may import of the others.
LAYERS: dict[str, set[str]] = {
    "schema": {"node"},
    "gates": {"schema", "node"},
    "node": set(),
    "facts": {"schema", "node"},
    "operations": {"schema", "facts", "node"},
    "deploys": {"schema", "facts", "gates", "operations", "node"},
    "lab": {"facts", "schema"},
}
# The one file that knows the program that it sends. Other layers see of node its rules alone.
DOOR = "facts/rignode/pack.py"
RULES = "node.rules"
WITHOUT_PYINFRA = ("schema", "gates", "node")
# The only files that import by name: the tables of verbs and of step kinds, and what starts them.
BY_NAME = {
    "node/__main__.py",
    "node/change/kinds.py",
    "node/cli/verb_table.py",
    "deploys/common/startup_speed.py",
}
MOST_FILES, MOST_LINES = 18, 900


def layer_faults(part: str, root: Path = ROOT) -> list[str]:
    """The imports of a layer that are against LAYERS."""
    wrong = []
    for path in files(part, root):
        where = path.relative_to(root).as_posix()
        for name in sorted(imported(path)):
            first = name.split(".")[0]
            if first == part or first not in (*PARTS, "tests"):
                continue
            if first not in LAYERS[part]:
                wrong.append(f"{where} imports {name}")
            elif first == "node" and where != DOOR and not name.startswith(RULES):
                wrong.append(f"{where} imports {name}; only {DOOR} and {RULES} are for others")
    return wrong


def arrow_faults(part: str, root: Path = ROOT) -> list[str]:
    """The arrows between packages that the table lacks, and those that only the table has."""
    there = {f"{a} -> {b}" for a, targets in package_arrows(part, root).items() for b in targets}
    allowed = {f"{a} -> {b}" for a, targets in ALLOWED[part].items() for b in targets}
    return [f"not in the table: {row}" for row in sorted(there - allowed)] + [
        f"only in the table: {row}" for row in sorted(allowed - there)
    ]


def package_faults(part: str, root: Path = ROOT) -> list[str]:
    """Packages without a docstring, with imports in `__init__.py`, or too large for a look."""
    wrong = []
    for path in files(part, root):
        where = path.relative_to(root).as_posix()
        if len(path.read_text().splitlines()) > MOST_LINES:
            wrong.append(f"{where} has more than {MOST_LINES} lines")
        if path.name != "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            wrong.append(f"{where} has no docstring")
        if imported(path):
            wrong.append(f"{where} imports")
        count = len(list(path.parent.glob("*.py")))
        if count > MOST_FILES and path.parent != root / "deploys":
            wrong.append(f"{path.parent.relative_to(root)} has {count} files")
    return wrong


@pytest.mark.parametrize("part", PARTS)
def test_a_layer_imports_only_what_it_may(part: str) -> None:
    assert files(part) and layer_faults(part) == []


@pytest.mark.parametrize("part", PARTS)
def test_packages_import_as_the_table_says(part: str) -> None:
    assert arrow_faults(part) == []


@pytest.mark.parametrize("part", PARTS)
def test_no_packages_import_each_other_in_a_circle(part: str) -> None:
    assert circles(package_arrows(part)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(module_arrows(PARTS)) == []


def test_the_picture_is_of_this_code() -> None:
    assert f"<!-- graph {digest()} -->" in PICTURE.read_text(), "draw it anew: make docs-picture"


@pytest.mark.parametrize("part", PARTS)
def test_packages_can_be_seen_whole(part: str) -> None:
    assert package_faults(part) == []


def test_modules_are_imported_by_name_in_the_tables_alone() -> None:
    by_name = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in files(part)
        if {"importlib", "importlib.import_module"} & imported(path)
    }
    assert by_name == BY_NAME


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
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("node")
        for name in imported(path)
        if name.split(".")[0] not in (*sys.stdlib_module_names, "node")
    ]
    assert wrong == []


def test_files_that_pyinfra_executes_define_nothing_to_import() -> None:
    """pyinfra executes these with `__name__ == "builtins"`: a class there has no module."""
    from_exec = [
        path
        for part in ("inventory", "group_data", "deploys")
        for path in (ROOT / part).glob("*.py")
    ]
    wrong = [
        f"{path.relative_to(ROOT)} defines {item.name}"
        for path in from_exec
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.ClassDef)
    ]
    assert from_exec and wrong == []


# A file of a copy of the gates, what is appended to it, and the check that must see it.
PUT_IN = {
    "a circle of modules": ("core/violation.py", "from gates.core import check", "circle"),
    "a circle through a string": ("core/violation.py", "LATE = 'gates.core.check:known'", "circle"),
    "an arrow against the table": ("host/clock.py", "import gates.doctor.rank", "arrow"),
    "an __init__ that imports": ("host/__init__.py", "from gates.host import clock", "package"),
    "a layer above": ("host/clock.py", "from operations.change import run", "layer"),
    "a file too long": ("host/clock.py", "\n" * (MOST_LINES + 1), "package"),
}


@pytest.mark.parametrize(("name", "text", "seen_by"), PUT_IN.values(), ids=PUT_IN)
def test_each_check_sees_what_is_against_it(
    tmp_path: Path, name: str, text: str, seen_by: str
) -> None:
    shutil.copytree(ROOT / "gates", tmp_path / "gates")
    checks: dict[str, Callable[[], list[Any]]] = {
        "circle": lambda: circles(module_arrows(["gates"], tmp_path)),
        "arrow": lambda: arrow_faults("gates", tmp_path),
        "package": lambda: package_faults("gates", tmp_path),
        "layer": lambda: layer_faults("gates", tmp_path),
    }
    assert checks[seen_by]() == []
    with (tmp_path / "gates" / name).open("a") as file:
        file.write(f"\n{text}\n")
    assert len(checks[seen_by]()) == 1
