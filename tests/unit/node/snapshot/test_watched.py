"""What a snapshot tells of the watch of this host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node import snapshot
from node.core.errors import CannotRead
from node.engine import watch
from schema.snapshot import Watched


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setenv("RIGBOOK_WATCH", str(tmp_path / "watch.json"))
    (tmp_path / "watch.json").write_text("{}")
    (tmp_path / "watch").mkdir()
    return tmp_path / "watch" / "state.json"


def test_the_state_that_the_watch_keeps_fits_the_schema(state: Path) -> None:
    known = watch.new_state(1000.0)
    known["silence"].update(reason="no token", evidence="evidence in /x", restarts=[1.0, 2.0])
    watch.save_state(known)
    seen = Watched.model_validate(snapshot.read_watch())
    assert (seen.status, seen.looked_unix_s, seen.silent) == ("up", 1000.0, "no token")
    assert seen.restarts == (1.0, 2.0) and seen.stood_down_unix_s is None
    del known["silence"]
    state.write_text(json.dumps(known))
    assert Watched.model_validate(snapshot.read_watch()).silent is None


def test_no_watch_is_none_and_damage_is_not(state: Path) -> None:
    assert snapshot.read_watch() is None
    for damaged in ("{", "[]"):
        state.write_text(damaged)
        with pytest.raises(CannotRead, match=r"state\.json is no"):
            snapshot.read_watch()
    # its files were taken away: what it saw is over
    (state.parent.parent / "watch.json").unlink()
    assert snapshot.read_watch() is None
