"""backup on stand-in hosts: what is sent, what is refused; a second run changes nothing."""

from __future__ import annotations

import pytest

from tests.plans.support.rigs import change_open, locked
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario
from tests.plans.support.tree_double import row

BACKUP = "deploys/backup.py"
TREE = ("--data", "tree=/opt/engine/venv")
OLD, NEW = "20260101T000000Z-venv-0a0a", "20260201T000000Z-venv-0b0b"


def have(*rows: dict[str, object]) -> dict[str, object]:
    """These backups on both hosts, newest first."""
    return {f"{name}:backups": list(rows) for name in (HEAD, WORKER)}


ERROR = {"error": "changed while it was read: x was edited", "code": "tree_changing"}
DAMAGED = {"error": "its sha256 is another one", "code": "backup_damaged"}
SCENARIOS = {
    "dry": Scenario((BACKUP, "--dry", *TREE)),
    "first": Scenario((BACKUP, "-y", *TREE)),
    "again": Scenario((BACKUP, "-y", *TREE), faults=have(row(NEW))),
    "changing": Scenario((BACKUP, "-y", *TREE), faults={f"{WORKER}:tree backup": ERROR}),
    "damaged": Scenario((BACKUP, "-y", *TREE), faults={f"{HEAD}:tree verify": DAMAGED}),
    "odd": Scenario((BACKUP, "-y", "--data", "tree=/opt/a;touch x")),
    "container": Scenario((BACKUP, "-y")),
    "open": Scenario((BACKUP, "-y", *TREE), change_open),
    "locked": Scenario((BACKUP, "-y", *TREE), locked),
    "list": Scenario(
        (BACKUP, "-y", "--data", "list=true"),
        faults=have(row(NEW, verified=False), row(OLD, problem="its sha256 is another one")),
    ),
    "list none": Scenario((BACKUP, "-y", "--data", "list=true")),
    "verify": Scenario((BACKUP, "-y", "--data", f"verify={OLD}"), faults=have(row(NEW), row(OLD))),
    "verify all": Scenario((BACKUP, "-y", "--data", "verify=all"), faults=have(row(NEW), row(OLD))),
    "verify unknown": Scenario((BACKUP, "-y", "--data", f"verify={OLD}"), faults=have(row(NEW))),
    "prune dry": Scenario(
        (BACKUP, "--dry", "--data", "prune=true", "--data", "keep=1"),
        faults=have(row(NEW), row(OLD)),
    ),
    "prune": Scenario(
        (BACKUP, "-y", "--data", "prune=true", "--data", "keep=1"),
        faults=have(row(NEW), row(OLD)),
    ),
    "prune nothing": Scenario((BACKUP, "-y", "--data", "prune=true"), faults=have(row(NEW))),
    **{
        f"bad {pair}": Scenario((BACKUP, "-y", "--data", pair))
        for pair in ("tree=venv", "tree=-rf", "keep=0", "keep=-1", "verify=$(id)",
                     "verify=-rf", "prune=perhaps")
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_dry_says_what_and_sends_nothing(ran: Runs) -> None:
    dry = ran["dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for name in (HEAD, WORKER):
        line = f"[{name}] back up /opt/engine/venv: vLLM 0.27.0, torch 2.8.0, cuda 12.8; 77492"
        assert line in dry.stderr


def test_every_backup_is_read_back(ran: Runs) -> None:
    first = ran["first"]
    assert first.status == 0, first.output
    for name in ("lab1", "lab2"):
        assert [s for s in first.steps if s.startswith(name)] == [
            f"{name} tree backup", f"{name} tree verify"
        ]  # fmt: skip
    sent = next(c for c in first.changing if c.verb == "tree backup").request
    assert sent["documents"]["recipe"]["name"] == "tiny" and sent["documents"]["rendered"]
    assert "/etc/systemd/system/rigbook-engine.service" in sent["files"]
    assert "is whole: 77492 members" in first.stderr


def test_a_second_run_changes_nothing(ran: Runs) -> None:
    again = ran["again"]
    assert again.status == 0 and again.changing == (), again.output
    assert f"{NEW} is verified and holds the same files" in again.output


@pytest.mark.parametrize(("name", "words"), [
    ("changing", "x was edited"), ("damaged", "its sha256 is another one"),
])  # fmt: skip
def test_what_fails_is_said_and_is_the_exit_status(ran: Runs, name: str, words: str) -> None:
    failed = ran[name]
    assert failed.status == 1 and words in failed.output and "Traceback" not in failed.output


@pytest.mark.parametrize(("name", "part"), [
    ("container", "runs in a container: no venv to back up"), ("open", "change-open"),
    ("locked", "lock-held"), ("verify unknown", f"no node has a backup {OLD}"),
])  # fmt: skip
def test_refused_before_anything_changes(ran: Runs, name: str, part: str) -> None:
    ran[name].refused(part)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("bad ")])
def test_bad_values_are_refused(ran: Runs, name: str) -> None:
    ran[name].refused(name.split()[1].partition("=")[0])


def test_an_odd_path_stays_one_argument(ran: Runs) -> None:
    odd = ran["odd"]
    assert odd.status == 0, odd.output
    for command in odd.commands:
        assert "touch" not in command.raw, command.raw
    asked = [c.request["tree"] for c in odd.commands if c.verb == "tree backup"]
    assert set(asked) == {"/opt/a;touch x"} and len(asked) == 4


def test_list_shows_age_size_versions_and_whether_verified(ran: Runs) -> None:
    listed = ran["list"]
    assert listed.status == 0 and listed.changing == (), listed.output
    assert f"[{HEAD}] {NEW}: 2 h old, /opt/engine/venv, vLLM 0.27.0" in listed.output
    assert "800 MiB of 3072, not verified" in listed.output
    assert "NOT USABLE: its sha256 is another one" in listed.output
    assert f"[{WORKER}] no backup" in ran["list none"].output


def test_verify_by_name_and_all(ran: Runs) -> None:
    assert ran["verify"].status == 0
    assert sorted(ran["verify"].steps) == ["lab1 tree verify", "lab2 tree verify"]
    assert ran["verify all"].steps.count("lab1 tree verify") == 2


def test_prune_shows_first_and_a_second_run_changes_nothing(ran: Runs) -> None:
    assert ran["prune dry"].changing == () and f"remove backup {OLD}" in ran["prune dry"].stderr
    assert sorted(ran["prune"].steps) == ["lab1 tree prune", "lab2 tree prune"]
    nothing = ran["prune nothing"]
    assert nothing.status == 0 and nothing.changing == (), nothing.output
