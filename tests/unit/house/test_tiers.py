"""What the runner of the tiers makes of a failure: a flake is named, a break stays a break."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import tiers

FLAKE = """
from pathlib import Path

def test_once():
    mark = Path(__file__).with_name("seen")
    first = not mark.exists()
    mark.touch()
    assert not first

def test_fine():
    pass
"""
COMMAND = (sys.executable, "-m", "pytest", "-q", "test_it.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, with its own cache of what failed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    return tmp_path


def tier(command: tuple[str, ...]) -> tiers.Tier:
    """A tier of this one command."""
    return tiers.Tier((command,), lambda: None, "a trial")


def test_a_flake_passes_and_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_it.py").write_text(FLAKE)
    monkeypatch.setitem(tiers.TIERS, "trial", tier(COMMAND))
    assert tiers.run(["trial"]) == 0
    said = capfd.readouterr().out
    assert "FLAKY, passed only the second time: test_it.py::test_once" in said
    assert tiers.run(["trial"]) == 0
    assert "FLAKY" not in capfd.readouterr().out


def test_a_break_fails_the_tier(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_it.py").write_text("def test_broken():\n    assert 1 == 2\n")
    monkeypatch.setitem(tiers.TIERS, "trial", tier(COMMAND))
    assert tiers.run(["trial"]) == 1
    assert "FAILED" in capfd.readouterr().out


def test_many_failures_are_no_accident(folder: Path) -> None:
    (folder / "test_it.py").write_text(
        "from pathlib import Path\nimport pytest\n\n"
        "@pytest.mark.parametrize('n', range(5))\n"
        "def test_once(n):\n"
        "    mark = Path(__file__).with_name(f'seen{n}')\n"
        "    first = not mark.exists()\n"
        "    mark.touch()\n"
        "    assert not first\n"
    )
    assert tiers.attempt(COMMAND) == (tiers.TESTS_FAILED, [])
