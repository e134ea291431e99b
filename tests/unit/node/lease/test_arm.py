"""The verb `lease`: the change is open and kept before its first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.lease import arm, settings
from tests.unit.node.support.host import Host, apply_request, change, file_step, mode

KEY = "5" * 64


def asked(**more: object) -> dict[str, Any]:
    """A request for a lease of change-1."""
    lease: dict[str, object] = {
        "seconds": 120, "key": KEY, "node": "spark1", "head": True, "port": 29530,
        "addresses": ["10.0.0.1"], "peers": {"spark2": ["10.0.0.2", "192.168.1.2"]}, **more,
    }  # fmt: skip
    return {"change": change(run="a1"), "lease": lease}


def test_the_keeper_is_there_before_the_first_step(host: Host) -> None:
    units = host.systemctl()
    answer = host.call("lease", asked())
    assert (answer["change"], answer["status"]) == ("change-1", "OPEN")
    unit = host.state / "units" / arm.UNIT
    assert f"ExecStart={host.pyz} lease keep" in unit.read_text() and mode(unit) == 0o644
    link = host.state / "units" / "multi-user.target.wants" / arm.UNIT
    assert link.is_symlink() and link.resolve() == unit
    assert mode(host.state / "lease.json") == 0o600
    log = (units / "log").read_text().splitlines()
    assert log == ["daemon-reload ", f"restart {arm.UNIT}"]
    # the key is in no journal, which people and operators read
    assert KEY not in (host.state / "journal" / "change-1.json").read_text()
    row = host.call("journal")
    assert row["changes"][0]["lease"] == {"seconds": 120}
    text = host.run(host.argv("status")).stdout
    assert "    lease: 120 s; journalctl -u rigbook-lease\n" in text
    # the run's steps go into the same change
    step = apply_request(file_step(host.file()), run="a1")
    assert host.call("apply", step)["change"] == "change-1"


def test_a_second_lease_takes_the_place_of_the_first(host: Host) -> None:
    host.systemctl()
    host.call("lease", asked())
    host.call("lease", asked(seconds=300, key="6" * 64))
    assert json.loads((host.state / "lease.json").read_text())["seconds"] == 300


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seconds": 10}, "lease.seconds is not a number from 45 to 86400"),
        ({"key": "secret"}, "lease.key is not a key of 64 hex digits"),
        ({"addresses": []}, "lease.addresses is empty"),
        ({"peers": {"spark2": ["no address"]}}, "lease.peers.spark2[0]: 'no address'"),
        ({"peers": [1]}, "lease.peers is not an object"),
        ({"port": 22}, "lease.port is not a number"),
    ],
)
def test_a_lease_that_is_none_changes_nothing(
    host: Host, wrong: dict[str, object], says: str
) -> None:
    host.systemctl()
    answer = host.call("lease", asked(**wrong))
    assert not answer["ok"] and says in answer["error"] and "secret" not in answer["error"]
    assert not (host.state / "journal").exists()


def test_a_systemd_that_refuses_leaves_the_change_to_its_run(host: Host) -> None:
    units = host.systemctl()
    (units / "fail-daemon-reload").touch()
    assert host.call("lease", asked())["code"] == "unit_failed"
    (units / "fail-daemon-reload").unlink()
    undone = host.call("undo", {"change": "change-1", "run": "a1"})
    assert undone["status"] == "ROLLED_BACK"


def test_a_keeper_that_cannot_start_is_no_lease(host: Host) -> None:
    """Its port was taken: the lease was said to hold, and nobody would have rolled back."""
    units = host.systemctl()
    (units / "fail-restart").touch()
    answer = host.call("lease", asked())
    assert not answer["ok"] and answer["code"] == "lease_failed"
    assert "keeper does not start" in answer["error"] and "ss -lunp" in answer["remedy"]
    assert settings.load() is None and not (host.state / "units" / arm.UNIT).exists()
    assert "nothing was begun" in answer["error"]
    assert host.call("journal")["changes"] == []


def test_only_its_own_keeper_takes_it_away(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that arms anew, while the keeper of the change before goes."""
    host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    host.call("lease", asked())
    first = settings.load()
    assert first
    host.call("lease", asked(key="6" * 64))
    arm.remove(first)
    second, unit = settings.load(), Path(arm.unit_folder()) / arm.UNIT
    assert second and second != first and unit.exists()
    arm.remove(second)
    assert settings.load() is None and not unit.exists()
    arm.remove(second)
