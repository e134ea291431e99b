"""The lab of the engine's tests: images that come back from backups (not in CI)."""

from __future__ import annotations

from tests.system.engine.conftest import lab, pytest_terminal_summary, serving

__all__ = ["lab", "pytest_terminal_summary", "serving"]
