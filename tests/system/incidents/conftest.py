"""The lab of the engine's tests, and the same list of what was measured."""

from __future__ import annotations

from tests.system.engine.conftest import lab, pytest_terminal_summary, serving

__all__ = ["lab", "pytest_terminal_summary", "serving"]
