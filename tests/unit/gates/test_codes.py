"""The gates' house rules: documented codes, known codes only, no pyinfra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from gates.core.codes import CODES

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "gates").rglob("*.py"))
# The doctor adds what only a look at the running engine can tell.
REPORTING = [*SOURCES, *sorted((ROOT / "deploys").rglob("*.py"))]
PAGE = (ROOT / "docs" / "gates.md").read_text()


def sections() -> dict[str, str]:
    """The `## code` sections of docs/gates.md."""
    parts = re.split(r"^## (\S+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert set(sections()) == set(CODES)


def test_sections_stand_in_the_order_of_the_codes() -> None:
    assert list(sections()) == list(CODES)


def test_every_section_says_what_the_code_table_says() -> None:
    for code, text in sections().items():
        what = CODES[code]
        severity = {"block": "blocks", "warn": "warns"}[what.severity]
        waiver = "waivable" if what.waivable else "not waivable"
        line = f"{what.layer.name.lower()} · {severity} · {waiver}"
        assert text.strip().startswith(line), f"{code}: the section must start with: {line}"
        for part in ("Symptom:", "Why:", "Mend:"):
            assert part in text, f"{code}: {part} is missing"


def test_the_order_of_codes_follows_the_layers() -> None:
    layers = [what.layer for what in CODES.values()]
    assert layers == sorted(layers)


def literal_codes() -> set[str]:
    """The codes that gates and deploys name in a call of `violation`."""
    found = set()
    for source in REPORTING:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "violation":
                found |= {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)}
    return found


def test_gates_and_doctor_report_known_codes_and_all_of_them() -> None:
    by_section = {code for code in CODES if code.endswith("-unreadable")}
    assert {str(code) for code in literal_codes()} | by_section == set(CODES)


def test_loading_the_gates_loads_no_pyinfra() -> None:
    loaded = "gates.gate_sets, gates.drift.compare, gates.core.waiver"
    code = f"import sys, {loaded}; print('pyinfra' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_gate_files_are_short_and_gates_have_reasons() -> None:
    for source in SOURCES:
        text = source.read_text()
        assert len(text.splitlines()) <= 350, source.name
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{source.name}: {node.name}"
