"""The operations where nothing is to do: no command, and a line that says so (cases/*.yaml)."""

from __future__ import annotations

from pathlib import Path

from tests.unit.facts.cases import make_operation_tests

CASES = Path(__file__).parent / "cases"

Apply = make_operation_tests("operations", "apply.apply", CASES / "apply")
Stop = make_operation_tests("operations", "engine.stop", CASES / "stop")
Undo = make_operation_tests("operations", "rollback.undo", CASES / "undo")
