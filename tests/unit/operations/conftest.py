"""What every test of an operation gets: a home of its own for this machine's runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def operators_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The operator's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rigbook"
