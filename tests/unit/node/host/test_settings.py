"""Settings as the host's files tell them, and the two steps that change what runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.change import apply, journal, undo
from node.core.errors import CannotRead, NodeError
from node.host import settings, sysctl_step
from tests.unit.node.support.host import Host


def put(root: Path, files: dict[str, str]) -> None:
    """Writes files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_watchdogs_that_are_there(tmp_path: Path) -> None:
    # QEMU's i6300esb and a softdog, as Debian 12's 6.1 shows them
    put(tmp_path, {
        "sys/class/watchdog/watchdog0/identity": "i6300ESB timer\n",
        "sys/class/watchdog/watchdog0/state": "active\n",
        "sys/class/watchdog/watchdog0/timeout": "60\n",
        "sys/class/watchdog/watchdog1/dev": "10:130\n",
    })  # fmt: skip
    first, second = settings.watchdogs(str(tmp_path))
    assert (first["identity"], first["state"], first["timeout_s"]) == (
        "i6300ESB timer", "active", 60)  # fmt: skip
    assert second == {"name": "watchdog1", "identity": None, "state": None, "timeout_s": None}
    assert settings.watchdogs(str(tmp_path / "none")) == []


@pytest.mark.parametrize(("files", "kept"), [
    ({"var/log/journal/m1/system.journal": "12345678"}, True),
    ({"run/log/journal/m1/system.journal": "1"}, False),
    # journald was not told yet: the folder is there, and it still writes to /run
    ({"var/log/journal/m1/system.journal": "12345678", "run/log/journal/m1/system.journal": "1"},
     False),
    ({}, False),
])  # fmt: skip
def test_where_the_journal_goes(tmp_path: Path, files: dict[str, str], kept: bool) -> None:
    put(tmp_path, {"etc/machine-id": "m1\n", **files})
    assert settings.journal(str(tmp_path))["persistent"] is kept


@pytest.mark.parametrize(("said", "seconds"), [
    ("t 60000000", 60.0), ("t 0", 0.0), ("t 18446744073709551615", 0.0),
])  # fmt: skip
def test_what_pid_1_says(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: str, seconds: float
) -> None:
    host.double("busctl", f"#!/bin/sh\necho '{said}'\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    assert settings.runtime_watchdog_s() == seconds


@pytest.mark.parametrize("script", ["echo 's \"x\"'", "echo 'no bus' >&2; exit 1"])
def test_a_silent_pid_1_is_unknown(
    host: Host, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    host.double("busctl", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    with pytest.raises(CannotRead, match="RuntimeWatchdogUSec"):
        settings.runtime_watchdog_s()


def test_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "host.json"
    monkeypatch.setattr(settings, "WANTED", str(path))
    assert settings.wanted() is None
    path.write_text('{"format": 1}')
    assert settings.wanted() == {"format": 1}
    path.write_text("{")
    with pytest.raises(CannotRead, match="is not JSON"):
        settings.wanted()


PANIC, SOFT = "kernel.panic", "kernel.softlockup_panic"


@pytest.fixture
def kernel(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /proc/sys, with no panic set, and a systemctl that does nothing."""
    host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    root = tmp_path / "sys"
    put(root, {"kernel/panic": "0\n", "kernel/softlockup_panic": "0\n"})
    monkeypatch.setattr(sysctl_step, "ROOT", str(root))
    return root


def request(*steps: dict[str, Any]) -> dict[str, Any]:
    """An apply of these steps."""
    return {"change": {"id": "20261123T000000Z-host-0", "deploy": "host", "operator": "t"},
            "steps": list(steps)}  # fmt: skip


def sysctl(**values: str) -> dict[str, Any]:
    """A sysctl step; `_` stands for the dot."""
    return {"op": "sysctl", "values": {k.replace("__", "."): v for k, v in values.items()}}


SET = sysctl(kernel__panic="10", kernel__softlockup_panic="1")


def test_values_are_set_once_and_given_back(kernel: Path) -> None:
    (step,) = apply.apply(request(SET))["steps"]
    assert step["detail"] == f"{PANIC}=0, {SOFT}=0 -> {PANIC}=10, {SOFT}=1"
    assert (kernel / "kernel/panic").read_text() == "10"
    assert apply.apply(request(SET))["changed"] is False
    assert undo.undo({})["status"] == "ROLLED_BACK"
    assert [(kernel / f"kernel/{n}").read_text() for n in ("panic", "softlockup_panic")] == [
        "0"
    ] * 2


def test_a_later_value_is_left_and_told(kernel: Path) -> None:
    apply.apply(request(SET))
    (kernel / "kernel/panic").write_text("30")
    undone = undo.undo({})
    assert f"left as it is now ({PANIC}=30)" in undone["steps"][0]["detail"]
    assert (kernel / "kernel/softlockup_panic").read_text() == "0"


def test_a_kill_between_two_values_is_undone(kernel: Path) -> None:
    apply.apply(request(SET))
    (path,) = Path(journal.path_of("x")).parent.glob("*.json")
    change = json.loads(path.read_text())
    del change["sha256"]
    change["steps"][0]["state"] = "intent"
    path.write_text(json.dumps(change))
    (kernel / "kernel/softlockup_panic").write_text("0")
    assert undo.undo({})["status"] == "ROLLED_BACK"
    assert (kernel / "kernel/panic").read_text() == "0"


@pytest.mark.parametrize("values", [
    {}, {"kernel.panic; id": "1"}, {"../x": "1"}, {"kernel.panic": "1; id"}, {"kernel.panic": 1},
    {"kernel": "1"}, [],
])  # fmt: skip
def test_bad_input_is_refused(kernel: Path, values: object) -> None:
    with pytest.raises(NodeError) as error:
        apply.apply(request({"op": "sysctl", "values": values}))
    assert error.value.code == "bad_request"


def test_a_kernel_without_it_changes_nothing(kernel: Path) -> None:
    with pytest.raises(NodeError, match="hung_task_panic"):
        apply.apply(request(sysctl(kernel__hung_task_panic="1")))
    assert journal.read_all() == ([], [])


def test_a_reread_follows_a_change_and_its_undo(host: Host, kernel: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    reread = {"op": "reread", "what": "journald"}
    log = host.bin / "units" / "log"
    text = {"op": "file", "path": str(path), "content": "[Journal]\n", "mode": "0644"}
    apply.apply(request(text, reread))
    assert "restart systemd-journald.service" in log.read_text()
    log.unlink()
    assert undo.undo({})["status"] == "ROLLED_BACK"
    said = log.read_text()
    assert "restart systemd-journald.service" in said and "stop" not in said
    assert not path.exists()
