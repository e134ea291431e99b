"""rollback: which change it takes, what it shows, and which hosts it asks to undo it."""

from __future__ import annotations

import pytest

from tests.plans.support import rigs
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario
from tests.unit.builders.snapshots import healthy

ROLLBACK = "deploys/rollback.py"
NEWER = "20260530T070000Z-serve-5e6f"


def two_open(plan: rigs.Plan) -> rigs.Snapshots:
    """An older change is open on the head, a newer inconsistent one on both."""
    rows = (
        (HEAD, "INCONSISTENT", NEWER),
        (HEAD, "OPEN", rigs.OPEN_ID),
        (WORKER, "INCONSISTENT", NEWER),
    )
    seen = dict(rigs.with_changes(healthy, *rows)(plan))
    for name in (HEAD, WORKER):
        path = "journal.changes.0.opened_unix_s"
        opened = seen[name].journal.changes[0].opened_unix_s
        seen[name] = rigs.put(seen[name], path, opened + 60)
    return seen


def data(**values: str) -> tuple[str, ...]:
    """--data arguments."""
    return tuple(word for key, value in values.items() for word in ("--data", f"{key}={value}"))


SCENARIOS = {
    "nothing": Scenario((ROLLBACK, "-y"), healthy),
    "dry": Scenario((ROLLBACK, "--dry"), rigs.one_forgotten),
    "one": Scenario((ROLLBACK, "-y"), rigs.one_forgotten),
    "two": Scenario((ROLLBACK, "-y"), two_open),
    "by id": Scenario((ROLLBACK, "-y", *data(change=rigs.BLESSED_ID)), rigs.one_forgotten),
    "overwrite": Scenario(
        (ROLLBACK, "-y", *data(overwrite="/etc/rigbook/engine/serve.sh")), rigs.one_forgotten
    ),
    "unknown": Scenario((ROLLBACK, "-y", *data(change="20200101T000000Z-x")), rigs.one_forgotten),
    "edited": Scenario(
        (ROLLBACK, "-y"),
        rigs.one_forgotten,
        faults={
            f"{WORKER}:undo": {
                "error": "serve.sh was edited since",
                "code": "edited",
                "remedy": "name it: --overwrite",
            }
        },
    ),
    "locked": Scenario((ROLLBACK, "-y"), rigs.locked),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_nothing_open_is_no_change(ran: Runs) -> None:
    """Exit status 0: there is nothing to mend."""
    run = ran["nothing"]
    assert run.status == 0 and run.changing == (), run.output


def test_dry_shows_the_plan_and_sends_nothing(ran: Runs) -> None:
    """Change, state, operator and steps of the node that has it."""
    run = ran["dry"]
    assert run.status == 0 and run.changing == (), run.output
    assert f"{WORKER}: undo {rigs.OPEN_ID} (OPEN, " in run.stderr
    assert "milo@forge): file /etc/rigbook/engine/serve.sh" in run.stderr
    assert rigs.BLESSED_ID not in run.stderr


def test_only_the_node_that_has_the_change_is_asked(ran: Runs) -> None:
    """The other one keeps its blessed state."""
    run = ran["one"]
    assert run.status == 0, run.output
    assert run.steps == ["lab2 systemctl-stop", "lab2 undo"]
    undo = run.changing[-1].request
    assert undo["change"] == rigs.OPEN_ID and undo["overwrite"] == []
    assert f"change {rigs.OPEN_ID} ROLLED_BACK" in run.stderr


def test_the_newest_open_change_goes_first(ran: Runs) -> None:
    """On every node that has it: head stopped first, worker undone first."""
    run = ran["two"]
    assert run.status == 0, run.output
    assert run.steps == [
        "lab1 systemctl-stop",
        "lab2 systemctl-stop",
        "lab2 undo",
        "lab1 undo",
    ]
    assert {c.request["change"] for c in run.changing if c.verb == "undo"} == {NEWER}


def test_a_blessed_change_is_undone_by_name(ran: Runs) -> None:
    """Only where it was made."""
    assert ran["by id"].status == 0, ran["by id"].output
    assert ran["by id"].steps[-1:] == ["lab1 undo"]
    assert ran["by id"].changing[-1].request["change"] == rigs.BLESSED_ID


def test_later_edits_are_discarded_only_by_name(ran: Runs) -> None:
    """The path that the operator named travels with the undo."""
    (undo,) = [c for c in ran["overwrite"].changing if c.verb == "undo"]
    assert undo.request["overwrite"] == ["/etc/rigbook/engine/serve.sh"]


def test_an_unknown_change_lists_those_that_are_known(ran: Runs) -> None:
    """With their state, so that the operator can pick."""
    ran["unknown"].refused(
        "no node has a change '20200101T000000Z-x'",
        f"{rigs.OPEN_ID} (OPEN)",
        f"{rigs.BLESSED_ID} (COMMITTED)",
    )


def test_an_undo_that_is_refused_fails_with_nodes_line(ran: Runs) -> None:
    """An edit by hand is never overwritten; the run fails."""
    run = ran["edited"]
    assert run.status == 1 and "Traceback" not in run.output
    assert f"{WORKER}: undo: serve.sh was edited since; name it: --overwrite" in run.stderr


def test_rollback_waits_for_the_lock(ran: Runs) -> None:
    """Another run at work is not undone under its hands."""
    ran["locked"].refused("lock-held", HEAD)
