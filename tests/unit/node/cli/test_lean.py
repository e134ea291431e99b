"""What is sent is the same program: only comments, blank lines and docstrings are left behind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from facts.rignode import pack

ROOT = Path(__file__).resolve().parents[4]


def meaning(text: str) -> str:
    """A module's syntax tree with every docstring emptied."""
    tree = ast.parse(text)
    for item in ast.walk(tree):
        if isinstance(item, (ast.Module, ast.ClassDef, ast.FunctionDef)) and item.body:
            first = item.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                first.value.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("name", sorted(pack.sources()))
def test_a_lean_module_means_the_same(name: str) -> None:
    sent = pack.sources()[name].decode()
    assert meaning(sent) == meaning((ROOT / name).read_text())


def test_a_string_that_looks_like_a_comment_is_kept() -> None:
    text = 'X = """\\\n# not a comment\n\n  # nor this\n"""\n# a comment\n\n'
    assert pack.lean(text.encode()).decode() == text.partition("# a comment")[0]
