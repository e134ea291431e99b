"""Imports run one way between layers, and in no circle between modules (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from docs.site.picture import PARTS, ROOT, files, imported

# What each layer may import of the others, and of what is installed beside it.
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
DOOR = "facts/pack.py"
RULES = "node.rules"
WITHOUT_PYINFRA = ("schema", "gates")
# Their tables name modules that are loaded when they are needed: no import.
TABLES = ("node/verbs.py", "node/change/kinds.py")
# A module named in a string, such as "node.kernel.grub_step" or "node.kernel.boot:collect_kernel".
NAMED = re.compile(rf"((?:{'|'.join(PARTS)})(?:\.\w+)+)(?::\w+)?")


def layer_faults(part: str, root: Path = ROOT) -> list[str]:
    """The imports of a layer that are against LAYERS, or that its place does not allow."""
    wrong = []
    for path in files(part, root):
        where = path.relative_to(root).as_posix()
        for name in sorted(imported(path)):
            first = name.split(".")[0]
            if path.name == "__init__.py":
                wrong.append(f"{where} imports {name}: each of its modules would bring it along")
            elif part == "node" and first not in (*sys.stdlib_module_names, "node"):
                wrong.append(f"{where} imports {name}: the standard library alone is on a host")
            elif part in WITHOUT_PYINFRA and first in ("pyinfra", "gevent", "httpx"):
                wrong.append(f"{where} imports {name}")
            elif first == part or first not in (*PARTS, "tests"):
                continue
            elif first not in LAYERS[part]:
                wrong.append(f"{where} imports {name}")
            elif first == "node" and where != DOOR and not name.startswith(RULES):
                wrong.append(f"{where} imports {name}; only {DOOR} and {RULES} are for others")
    return wrong


def circle(parts: tuple[str, ...], root: Path = ROOT) -> list[str]:
    """A circle of modules that import each other, also by a name in a string; empty: none."""
    modules = {".".join(path.relative_to(root).with_suffix("").parts): path
               for part in parts for path in files(part, root)}  # fmt: skip
    graph = {}
    for module, path in modules.items():
        texts = (item.value for item in ast.walk(ast.parse(path.read_text()))
                 if isinstance(item, ast.Constant) and isinstance(item.value, str)
                 and path.relative_to(root).as_posix() not in TABLES)  # fmt: skip
        names = {*imported(path), *(found[1] for text in texts if (found := NAMED.fullmatch(text)))}
        both = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = both & modules.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


@pytest.mark.parametrize("part", PARTS)
def test_a_layer_imports_only_what_it_may(part: str) -> None:
    assert files(part) and layer_faults(part) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(PARTS) == []


def test_files_that_pyinfra_executes_define_nothing_to_import() -> None:
    """pyinfra executes these with `__name__ == "builtins"`: a class there has no module."""
    executed = [path for part in ("inventory", "group_data", "deploys")
                for path in (ROOT / part).glob("*.py")]  # fmt: skip
    wrong = [
        f"{path.relative_to(ROOT)} defines {item.name}"
        for path in executed
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.ClassDef)
    ]
    assert executed and wrong == []


# What is put into a copy of the gates, and whether the look at layers or that for circles sees it.
PUT_IN = {
    "a circle of modules": ("import gates.unit", "circle"),
    "a circle through a string": ("LATE = 'gates.unit:GATES'", "circle"),
    "a layer above": ("from operations import run", "layer"),
    "node's inside": ("from node.core import host", "layer"),
    "pyinfra": ("import pyinfra.api", "layer"),
}


@pytest.mark.parametrize(("text", "seen_by"), PUT_IN.values(), ids=PUT_IN)
def test_each_check_sees_what_is_against_it(tmp_path: Path, text: str, seen_by: str) -> None:
    shutil.copytree(ROOT / "gates", tmp_path / "gates")
    with (tmp_path / "gates/core.py").open("a") as file:
        file.write(f"\n{text}\n")
    assert len(layer_faults("gates", tmp_path)) == (seen_by == "layer")
    assert bool(circle(("gates",), tmp_path)) == (seen_by == "circle")
