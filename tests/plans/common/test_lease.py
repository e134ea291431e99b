"""A lease: keepers on every node before the first step, and what they did is told first."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from node.rules.engine import KEEPER
from operations.run import operator
from schema.plan import Plan
from schema.snapshot import TakenBy
from tests.plans.host.test_unit import BARE, DS4, SLEEP
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import put

ID = "20260530T065800Z-serve-1a2b"
KEEPERS = ["lab1 lease", "lab2 lease"]
WHY = "nobody renewed the lease of 120 s"
AWAY = f"while you were away (serve, change {ID}): {HEAD} is ROLLED_BACK: {WHY}"
# This machine's file of the run that fell silent.
HERE, ELSEWHERE, DRY, EARLY, ASKED = (
    tempfile.TemporaryDirectory(prefix="rigbook-runs-") for _ in range(5)
)
for folder in (HERE, DRY, EARLY, ASKED):
    mine = Path(folder.name, "rigbook/runs", ID)
    mine.parent.mkdir(parents=True)
    mine.touch()


def went_back(base: Seen = serving, status: str = "ROLLED_BACK") -> Seen:
    """A rig whose keepers took a change of serve; on the worker it is ROLLED_BACK or `status`."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(base(plan))
        for name, snapshot in seen.items():
            taken = TakenBy(operator=f"keeper@{name}", deploy=KEEPER, unix_s=1.0)
            row = change(status if name == WORKER else "ROLLED_BACK", id=ID, deploy="serve",
                         operator=operator(), run="k", taken_by=taken, reason=WHY,
                         beat_unix_s=snapshot.identity.clock_unix_s - 2)  # fmt: skip
            seen[name] = put(snapshot, "journal.changes", (row,))
        return seen

    return make


def run(
    deploy: str, *pairs: str, seen: Seen = serving, how: str = "-y", **more: object
) -> Scenario:
    """A command line with data."""
    words = (f"deploys/{deploy}.py", how, *data(*pairs))
    return Scenario(words, seen, answers=Reply, **more)  # type: ignore[arg-type]


def there(
    folder: tempfile.TemporaryDirectory[str], how: str = "-y", seen: Seen | None = None
) -> Scenario:
    """serve on a rig that went back by itself."""
    env = {"XDG_STATE_HOME": folder.name}
    return run("serve", seen=seen or went_back(), how=how, env=env)


TABLE: Table = {
    "stop": (run("stop", "lease=true"), done("COMMITTED")),
    "unit": (run("unit", f"unit={DS4}", SLEEP, "lease=300", seen=BARE), done("COMMITTED")),
    "without": (run("stop"), done("COMMITTED")),
    "nothing to do": (run("serve", "lease=true"), quiet()),
    "too short": (run("stop", "lease=10"), refused("lease")),
    "what changes nothing": (run("verify", "lease=true"), refused("lease")),
    "no keeper": (
        run("stop", "lease=true", faults={f"{WORKER}:then lease": [
            {"error": "systemctl daemon-reload: failed", "code": "unit_failed"}]}),
        failed("lab2: lease: systemctl daemon-reload: failed",
               steps=[*KEEPERS, "lab1 undo", "lab2 undo"])),
    # the run's own connection goes on, and takes it back
    "locked out": (
        run("unit", f"unit={DS4}", SLEEP, "lease=true", seen=BARE,
            faults={f"{HEAD}:no root": True}),
        failed("a new connection cannot become root: sudo: a password is required",
               "ROLLED_BACK")),
    "away": (there(HERE), quiet(AWAY)),
    "away, elsewhere": (there(ELSEWHERE), quiet(never=("while you were away",))),
    "away, not ended": (
        there(EARLY, seen=went_back(status="OPEN")),
        refused(f"keeper@{WORKER} may still be at work on {WORKER}",
                says=(f"{AWAY}; {WORKER} is going back by itself, and has not ended",))),
    "away, verify": (
        run("verify", seen=went_back(), env={"XDG_STATE_HOME": ASKED.name}), quiet(AWAY)),
    "away, dry": (there(DRY, "--dry"), quiet(AWAY)),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize(("name", "seconds"), [("stop", 120), ("unit", 300)])
def test_the_keepers_come_first_and_the_change_ends_on_both(
    ran: Runs, name: str, seconds: int
) -> None:
    steps = [step for step in ran[name].steps if "beat" not in step]
    assert steps[:2] == KEEPERS
    assert {"lab1 close COMMITTED", "lab2 close COMMITTED"} <= set(steps)
    leases = [c.request["lease"] for c in ran[name].changing if c.verb == "lease"]
    assert [(row["node"], row["seconds"]) for row in leases] == [(HEAD, seconds), (WORKER, seconds)]


def test_without_one_there_is_no_keeper(ran: Runs) -> None:
    assert not [step for step in ran["without"].steps if "lease" in step]


def test_it_is_told_once(ran: Runs) -> None:
    """A dry run writes nothing in the operator's folder either: the next one tells it again."""
    assert ran["away"].output.count("while you were away") == 1
    assert ran["away, dry"].output.count("while you were away") == 1
    assert not Path(HERE.name, "rigbook/runs", ID).exists()
    assert Path(DRY.name, "rigbook/runs", ID).exists()
    # and a change that has not ended is told again
    assert Path(EARLY.name, "rigbook/runs", ID).exists()
