"""Two labs on one machine: whose each one is, and what `down` takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab import __main__ as command
from lab.core import settings
from lab.core.settings import LabError, LabSettings
from lab.hosts import lifecycle, processes, state


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LabSettings, LabSettings]:
    """The user's lab and the tests', both in a temporary folder; `down` removes a folder alone."""
    places = [replace(p, home=str(tmp_path / p.name)) for p in (settings.USERS, settings.TESTS)]
    monkeypatch.setattr(settings, "PLACES", {place.name: place for place in places})
    monkeypatch.setattr(command, "PLACES", settings.PLACES)
    monkeypatch.setattr(lifecycle, "down", lambda lab: lab.home.rmdir())
    monkeypatch.setenv("RIGBOOK_CACHE", str(tmp_path / "cache"))
    users, tests = (settings.load({**os.environ, "RIGBOOK_LAB": name}) for name in ("lab", "tests"))
    tests.home.mkdir()
    return users, tests


def test_a_lab_whose_tests_ended_is_taken_down_with_the_users(
    labs: tuple[LabSettings, LabSettings],
) -> None:
    users, tests = labs
    command.down_others(users)
    assert not tests.home.exists()
    command.down_others(users)


def test_a_lab_whose_tests_run_stays_and_nobody_else_takes_it(
    labs: tuple[LabSettings, LabSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    users, tests = labs
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = processes.identify(other.pid)
        assert owner is not None
        tests.owner_file.write_text(json.dumps(owner.as_json()))
        command.down_others(users)
        assert tests.home.exists()
        assert f"the tests lab stays: process {other.pid} uses it" in capsys.readouterr().out
        with pytest.raises(LabError, match=f"in use by process {other.pid}"):
            state.take(tests)
    finally:
        other.kill()
        other.communicate()
    assert state.owner(tests) is None
    state.take(tests)
    assert state.owner(tests) == processes.identify(os.getpid())


def test_the_cache_is_not_taken_from_under_the_other_lab(
    labs: tuple[LabSettings, LabSettings],
) -> None:
    users, tests = labs
    users.cache.mkdir()
    with pytest.raises(LabError, match="'down --all' first"):
        command.purge(users)
    tests.home.rmdir()
    command.purge(users)
    assert not users.cache.exists()
