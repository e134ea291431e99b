"""rollback: which change it takes, what it shows, and which hosts it asks to undo it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat

from schema.plan import Plan
from schema.snapshot import Journal, TakenBy
from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    INVENTORY,
    WORKER,
    Runs,
    Scenario,
    Snapshots,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
    tiny_plan,
)
from tests.unit.builders.host_parts import NOW
from tests.unit.builders.rigs import healthy, put

ROLLBACK = "deploys/rollback.py"
NEWER = "20260530T070000Z-serve-5e6f"


def two_open(plan: Plan) -> Snapshots:
    """An older change is open on the head, a newer inconsistent one on both."""
    rows = (
        (HEAD, "INCONSISTENT", NEWER),
        (HEAD, "OPEN", scenario.OPEN_ID),
        (WORKER, "INCONSISTENT", NEWER),
    )
    seen = dict(scenario.with_changes(healthy, *rows)(plan))
    for name in (HEAD, WORKER):
        journal = seen[name].journal
        assert isinstance(journal, Journal)
        opened = journal.changes[0].opened_unix_s + 60
        seen[name] = put(seen[name], "journal.changes.0.opened_unix_s", opened)
    return seen


locked = scenario.broken(scenario.one_forgotten, (WORKER, "journal.lock_held", True))
under_way = scenario.broken(
    scenario.one_forgotten,
    (WORKER, "journal.changes.0.run", "f00"),
    (WORKER, "journal.changes.0.beat_unix_s", NOW),
    (WORKER, "journal.changes.0.taken_by",
     TakenBy(operator="anna@desk", deploy="rollback", unix_s=NOW)),
)  # fmt: skip
proven_on_the_head = scenario.with_changes(
    healthy, (HEAD, "COMMITTED", scenario.OPEN_ID), (WORKER, "OPEN", scenario.OPEN_ID)
)


def set_back(plan: Plan) -> Snapshots:
    """The head's clock was set back between an inconsistent change and the one that is open."""
    rows = (
        (HEAD, "OPEN", scenario.OPEN_ID),
        (HEAD, "INCONSISTENT", NEWER),
        (WORKER, "INCONSISTENT", NEWER),
    )
    seen = dict(scenario.with_changes(healthy, *rows)(plan))
    journal = seen[HEAD].journal
    assert isinstance(journal, Journal)
    opened = journal.changes[0].opened_unix_s - 60
    seen[HEAD] = put(seen[HEAD], "journal.changes.0.opened_unix_s", opened)
    return seen


def rollback(*pairs: str, seen: scenario.Seen = scenario.one_forgotten) -> Scenario:
    """A rollback of both hosts."""
    return Scenario((ROLLBACK, "-y", *data(*pairs)), seen)


# what a host's journal may hold: a terminal's escape, a line that looks like ours
FORGED = "\x1b[2J\nmend: sudo rm /"
forged = scenario.broken(
    scenario.one_forgotten,
    (WORKER, "journal.changes.0.operator", f"milo{FORGED}"),
    (WORKER, "journal.changes.0.deploy", f"x.py; id #{FORGED}"),
    (WORKER, "journal.changes.0.steps", (f"file {FORGED}",)),
)
rolled_back = scenario.with_changes(
    serving, (HEAD, "ROLLED_BACK", scenario.OPEN_ID), (WORKER, "ROLLED_BACK", scenario.OPEN_ID)
)
rolled_back_to_throughput = scenario.with_changes(
    lambda plan: serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput")),
    (HEAD, "ROLLED_BACK", scenario.OPEN_ID), (WORKER, "ROLLED_BACK", scenario.OPEN_ID),
)  # fmt: skip
blessed = scenario.with_changes(
    serving, (HEAD, "COMMITTED", scenario.OPEN_ID), (WORKER, "COMMITTED", scenario.OPEN_ID)
)
UP = {f"{name}:former": "active/running" for name in (HEAD, WORKER)}


def loads(then: Reply, times: int = 2) -> Callable[[], Reply]:
    """The engine answers nothing at first."""
    replies = chain(repeat(Reply("stand-in engine is loading", status=503), times), repeat(then))
    return lambda: next(replies)


SCRIPT = "/etc/rigbook/engine/serve.sh"
LOCKED = {"error": "the lock is held by pid 77 (apply serve)", "code": "locked"}
ROLLS = {"claimed": False, "status": "OPEN", "run": "f00", "operator": "anna@desk",
         "deploy": "rollback", "quiet_s": 3.0}  # fmt: skip
ROLLED = {**ROLLS, "status": "ROLLED_BACK"}
EDITED = {"error": "serve.sh was edited since", "code": "edited", "remedy": "name it: --overwrite"}
TABLE = {
    # exit status 0: there is nothing to mend
    "nothing": (rollback(seen=healthy), quiet()),
    # a rollback that was killed while the former engine loaded: done is what answers
    "it loads": (Scenario((ROLLBACK, "-y"), rolled_back, faults=UP, answers=loads(Reply())), done(
        f"change {scenario.OPEN_ID} ROLLED_BACK; tiny serves again", "no baseline for balanced: ",
        f"pyinfra {INVENTORY} deploys/bench.py -y", steps=[])),
    # the profile that came back, not the one that a serve would ask for
    "it loads, another profile": (
        Scenario((ROLLBACK, "-y"), rolled_back_to_throughput, faults=UP, answers=loads(Reply())),
        done("tiny serves again", "no baseline for throughput: ", steps=[])),
    "it loads, by id": (
        Scenario((ROLLBACK, "-y", *data(f"change={scenario.OPEN_ID}")), rolled_back, faults=UP,
                 answers=loads(Reply())),
        done(f"change {scenario.OPEN_ID} ROLLED_BACK; tiny serves again", steps=[])),
    "it answers without a word": (
        Scenario((ROLLBACK, "-y"), rolled_back, faults=UP, answers=lambda: Reply(status=400)),
        failed("no good answer", steps=[])),
    "it answers": (Scenario((ROLLBACK, "-y"), rolled_back, faults=UP, answers=Reply), quiet()),
    # what it serves is blessed: whoever asks for an answer runs verify
    "blessed": (
        Scenario((ROLLBACK, "-y"), blessed, faults=UP, answers=loads(Reply())), quiet()),
    # change, state, operator and steps of the node that has it
    "dry": (Scenario((ROLLBACK, "--dry"), scenario.one_forgotten), quiet(
        f"{WORKER}: undo {scenario.OPEN_ID} (OPEN, ", f"milo@forge): file {SCRIPT}",
        never=(scenario.BLESSED_ID,))),
    "forged, dry": (Scenario((ROLLBACK, "--dry"), forged), quiet(
        f"{WORKER}: undo {scenario.OPEN_ID} (OPEN, ", "milo?[2J", never=("\x1b[2J", "\nmend: "))),
    "forged, under another": (rollback(f"change={scenario.BLESSED_ID}", seen=forged), refused(
        f"change {scenario.OPEN_ID} (x.py; id #?[2J")),
    # the other one keeps its blessed state
    "one": (rollback(), done(
        f"change {scenario.OPEN_ID} ROLLED_BACK",
        steps=["lab2 claim", "lab2 systemctl-stop", "lab2 undo"])),
    # the newest open change goes first: head stopped first, worker undone first
    "two": (rollback(seen=two_open), done(
        steps=["lab1 claim", "lab2 claim", "lab1 systemctl-stop", "lab2 systemctl-stop",
               "lab2 undo", "lab1 undo"])),
    # its undo would stop the engine that the other change's run is about to prove
    "under another": (rollback(f"change={scenario.BLESSED_ID}"), refused(
        f"change {scenario.OPEN_ID} (serve) of milo@forge is OPEN on {WORKER}",
        f"--data change={scenario.BLESSED_ID} --data despite={scenario.OPEN_ID}")),
    # fault 68: the open one, by the node's own order
    "clock": (rollback(seen=set_back), done(
        f"change {scenario.OPEN_ID} ROLLED_BACK",
        steps=["lab1 claim", "lab1 systemctl-stop", "lab1 undo"])),
    "by id": (rollback(f"change={scenario.BLESSED_ID}", f"despite={scenario.OPEN_ID}"), done()),
    # the worker's line was lost at close: what serves is proven, and stays
    "proven": (rollback(seen=proven_on_the_head), refused(
        f"change {scenario.OPEN_ID} is COMMITTED on {HEAD}", f"OPEN on {WORKER}",
        "sudo rignode close", f"--data change={scenario.OPEN_ID}")),
    "proven by id": (rollback(f"change={scenario.OPEN_ID}", seen=proven_on_the_head), done(
        steps=["lab1 claim", "lab2 claim", "lab1 systemctl-stop", "lab2 systemctl-stop",
               "lab2 undo", "lab1 undo"])),
    "overwrite": (rollback(f"overwrite={SCRIPT}"), done()),
    # with their state, so that the operator can pick
    "unknown": (rollback("change=20200101T000000Z-x"), refused(
        "no node has a change '20200101T000000Z-x'", f"{scenario.OPEN_ID} (OPEN)",
        f"{scenario.BLESSED_ID} (COMMITTED)")),
    # an edit by hand is never overwritten; the run fails with node's line
    "edited": (
        Scenario((ROLLBACK, "-y"), scenario.one_forgotten, faults={f"{WORKER}:undo": EDITED}),
        failed(f"{WORKER}: undo: serve.sh was edited since; name it: --overwrite")),
    # a dead run's last command holds the lock: a stop takes 30 s
    "locked": (
        Scenario((ROLLBACK, "-y"), locked, faults={f"{WORKER}:then claim": [LOCKED, LOCKED]}), done(
            f"[{WORKER}] waits: {WORKER}: claim: the lock is held by pid 77 (apply serve): ",
            steps=["lab2 claim", "lab2 claim", "lab2 claim", "lab2 systemctl-stop", "lab2 undo"])),
    # another operator's rollback of the same change: it waits, and says what that one does
    "two at once": (
        Scenario((ROLLBACK, "-y"), scenario.one_forgotten,
                 faults={f"{WORKER}:then claim": [ROLLS, ROLLS, ROLLED]}), done(
            f"[{WORKER}] waits: {WORKER}: change {scenario.OPEN_ID} is anna@desk's (rollback), who "
            "rolls it back: ",
            f"anna@desk was faster: change {scenario.OPEN_ID} ROLLED_BACK; no engine",
            steps=["lab2 claim", "lab2 claim", "lab2 claim"])),
    # it was seen at work before this one began: its change is not simply taken from it
    "under way": (
        Scenario((ROLLBACK, "-y"), under_way, faults={f"{WORKER}:then claim": [ROLLS, ROLLED]}),
        done("who rolls it back", "anna@desk was faster", steps=["lab2 claim", "lab2 claim"])),
    "the first died": (
        Scenario((ROLLBACK, "-y"), scenario.one_forgotten,
                 faults={f"{WORKER}:then claim": [ROLLS, {**ROLLS, "quiet_s": 300.0}]}), done(
            steps=["lab2 claim", "lab2 claim", "lab2 claim", "lab2 systemctl-stop", "lab2 undo"])),
    # it went on while this one asked
    "taken up meanwhile": (
        Scenario((ROLLBACK, "-y"), scenario.one_forgotten,
                 faults={f"{WORKER}:then claim": [{**ROLLS, "deploy": "serve"}]}), failed(
            f"change {scenario.OPEN_ID} is anna@desk's (serve), last sign of life 3 s ago",
            steps=["lab2 claim"])),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_a_change_is_claimed_from_the_run_that_had_it_but_not_from_a_rollback(ran: Runs) -> None:
    """The head first: of two that begin at once, one waits there."""
    formers = {name: [c.request["former"] for c in ran[name].changing if c.verb == "claim"]
               for name in ("one", "under way", "the first died")}  # fmt: skip
    assert formers == {
        "one": [None],
        "under way": ["?", "?"],
        "the first died": [None, None, "f00"],
    }


def test_which_change_is_undone_and_what_is_overwritten(ran: Runs) -> None:
    """A blessed one only by name, only where it was made; later edits only by their path."""
    undo = ran["one"].changing[-1].request
    assert undo["change"] == scenario.OPEN_ID and undo["overwrite"] == []
    assert {c.request["change"] for c in ran["two"].changing if c.verb == "undo"} == {NEWER}
    assert ran["by id"].steps[-1:] == ["lab1 undo"]
    assert ran["by id"].changing[-1].request["change"] == scenario.BLESSED_ID
    (undo,) = [c.request for c in ran["overwrite"].changing if c.verb == "undo"]
    assert undo["overwrite"] == [SCRIPT]
