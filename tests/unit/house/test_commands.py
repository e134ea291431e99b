"""Each command that a page shows is run by a test, or says that it needs hardware.

Run by a test: some file of tests/plans (stand-in hosts) or tests/system (booted ones) runs that
runbook and names each key of the command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from schema.inputs.runbooks import RUNBOOKS
from tests.unit.house.test_docs import NOT_FILES, PAGES, ROOT, names

MARK = "needs hardware"
COMMAND = re.compile(r"pyinfra \S+ deploys/(\w+)\.py([^`\n]*)")


def words(path: Path) -> Iterator[str]:
    """The strings of a test file, and the names of its keyword arguments as `NAME=`."""
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            yield item.value
        elif isinstance(item, ast.keyword) and item.arg:
            yield f"{item.arg}="


@cache
def run_by_tests() -> dict[str, set[str]]:
    """Each runbook with the keys that stand in the test files that run it."""
    found: dict[str, set[str]] = {name: set() for name in RUNBOOKS}
    for part in ("plans", "system"):
        for path in sorted((ROOT / "tests" / part).rglob("*.py")):
            told = [*words(path)]
            keys = {key for one in told for key in re.findall(r"(?<![\w-])(\w+)=", one)}
            for name in RUNBOOKS:
                if any(one == name or f"deploys/{name}.py" in one for one in told):
                    found[name] |= {"", *keys}
    return found


def untested(text: str) -> list[str]:
    """The commands of a page that no test runs and that are not marked."""
    wrong = []
    for line in text.splitlines():
        for name, rest in COMMAND.findall(line):
            typed, _, comment = rest.partition("  #")
            wanted = {"", *re.findall(r"--data (\w+)=", typed)}
            known = f"deploys/{name}.py" in NOT_FILES
            if not known and not wanted <= run_by_tests()[name] and MARK not in comment:
                wrong.append(f"{name}{typed.rstrip()}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_command_is_run_by_a_test_or_marked(page: Path) -> None:
    assert untested(page.read_text()) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pyinfra INVENTORY deploys/serve.py -y --data profile=throughput   # another", 0),
        ("see `pyinfra INVENTORY deploys/serve.py -y --data spell=1`", 1),
        ("pyinfra INVENTORY deploys/serve.py -y --data spell=1   # needs hardware: a wand", 0),
    ],
)
def test_a_command_that_nobody_runs_is_seen(line: str, wrong: int) -> None:
    assert len(untested(line)) == wrong
