"""rollback: which change it takes, what it shows, and which hosts it asks to undo it."""

from __future__ import annotations

from schema.desired.plan import Plan
from schema.observed.files import Journal
from tests.plans.support import rigs
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, data
from tests.plans.support.table import done, each_row, failed, quiet, refused
from tests.unit.builders.snapshots import healthy, put

ROLLBACK = "deploys/rollback.py"
NEWER = "20260530T070000Z-serve-5e6f"


def two_open(plan: Plan) -> Snapshots:
    """An older change is open on the head, a newer inconsistent one on both."""
    rows = (
        (HEAD, "INCONSISTENT", NEWER),
        (HEAD, "OPEN", rigs.OPEN_ID),
        (WORKER, "INCONSISTENT", NEWER),
    )
    seen = dict(rigs.with_changes(healthy, *rows)(plan))
    for name in (HEAD, WORKER):
        journal = seen[name].journal
        assert isinstance(journal, Journal)
        opened = journal.changes[0].opened_unix_s + 60
        seen[name] = put(seen[name], "journal.changes.0.opened_unix_s", opened)
    return seen


def set_back(plan: Plan) -> Snapshots:
    """The head's clock was set back between an inconsistent change and the one that is open."""
    rows = (
        (HEAD, "OPEN", rigs.OPEN_ID),
        (HEAD, "INCONSISTENT", NEWER),
        (WORKER, "INCONSISTENT", NEWER),
    )
    seen = dict(rigs.with_changes(healthy, *rows)(plan))
    journal = seen[HEAD].journal
    assert isinstance(journal, Journal)
    opened = journal.changes[0].opened_unix_s - 60
    seen[HEAD] = put(seen[HEAD], "journal.changes.0.opened_unix_s", opened)
    return seen


def rollback(*pairs: str, seen: rigs.Seen = rigs.one_forgotten) -> Scenario:
    """A rollback of both hosts."""
    return Scenario((ROLLBACK, "-y", *data(*pairs)), seen)


SCRIPT = "/etc/rigbook/engine/serve.sh"
EDITED = {"error": "serve.sh was edited since", "code": "edited", "remedy": "name it: --overwrite"}
TABLE = {
    # exit status 0: there is nothing to mend
    "nothing": (rollback(seen=healthy), quiet()),
    # change, state, operator and steps of the node that has it
    "dry": (Scenario((ROLLBACK, "--dry"), rigs.one_forgotten), quiet(
        f"{WORKER}: undo {rigs.OPEN_ID} (OPEN, ", f"milo@forge): file {SCRIPT}",
        never=(rigs.BLESSED_ID,))),
    # the other one keeps its blessed state
    "one": (rollback(), done(
        f"change {rigs.OPEN_ID} ROLLED_BACK", steps=["lab2 systemctl-stop", "lab2 undo"])),
    # the newest open change goes first: head stopped first, worker undone first
    "two": (rollback(seen=two_open), done(
        steps=["lab1 systemctl-stop", "lab2 systemctl-stop", "lab2 undo", "lab1 undo"])),
    # fault 68: the open one, by the node's own order
    "clock": (rollback(seen=set_back), done(
        f"change {rigs.OPEN_ID} ROLLED_BACK", steps=["lab1 systemctl-stop", "lab1 undo"])),
    "by id": (rollback(f"change={rigs.BLESSED_ID}"), done()),
    "overwrite": (rollback(f"overwrite={SCRIPT}"), done()),
    # with their state, so that the operator can pick
    "unknown": (rollback("change=20200101T000000Z-x"), refused(
        "no node has a change '20200101T000000Z-x'", f"{rigs.OPEN_ID} (OPEN)",
        f"{rigs.BLESSED_ID} (COMMITTED)")),
    # an edit by hand is never overwritten; the run fails with node's line
    "edited": (
        Scenario((ROLLBACK, "-y"), rigs.one_forgotten, faults={f"{WORKER}:undo": EDITED}),
        failed(f"{WORKER}: undo: serve.sh was edited since; name it: --overwrite")),
    # another run at work is not undone under its hands
    "locked": (rollback(seen=rigs.locked), refused("lock-held", HEAD)),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_which_change_is_undone_and_what_is_overwritten(ran: Runs) -> None:
    """A blessed one only by name, only where it was made; later edits only by their path."""
    undo = ran["one"].changing[-1].request
    assert undo["change"] == rigs.OPEN_ID and undo["overwrite"] == []
    assert {c.request["change"] for c in ran["two"].changing if c.verb == "undo"} == {NEWER}
    assert ran["by id"].steps[-1:] == ["lab1 undo"]
    assert ran["by id"].changing[-1].request["change"] == rigs.BLESSED_ID
    (undo,) = [c.request for c in ran["overwrite"].changing if c.verb == "undo"]
    assert undo["overwrite"] == [SCRIPT]
