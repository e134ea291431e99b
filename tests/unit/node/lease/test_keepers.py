"""Two keepers on loopback: what they agree on when the run is silent, whatever the line does."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from tests.unit.node.support.host import NEW
from tests.unit.node.support.keepers import BACK, HEAD, RUN, WORKER, Pair, is_back, until

STAYS = {HEAD: "COMMITTED", WORKER: "COMMITTED"}


def nobody_renews_it_and_both_go_back(mischief: bool, pair: Pair) -> None:
    for name, line in pair.lines.items():
        line.mischief = mischief
        pair.keep(name)
    assert pair.ends(60) == BACK and is_back(pair)
    for name in BACK:
        change = pair.journal(name)
        assert change["reason"].startswith("nobody renewed the lease of 2 s"), change["reason"]
        assert change["taken"]["deploy"] == "lease"
        assert change["taken"]["operator"].startswith("keeper@")


def a_run_that_lives_is_left_alone_and_then_closes(pair: Pair) -> None:
    """More than twice the lease, a sign of life in each; then COMMITTED: the keepers go."""
    for name in pair.hosts:
        pair.keep(name)
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        for name in pair.hosts:
            assert pair.beat(name)["mine"]
        time.sleep(0.2)
    for name, host in pair.hosts.items():
        done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": RUN}
        assert host.call("close", done)["changed"], name
    assert pair.ends() == STAYS
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]


def a_node_that_is_still_renewed_keeps_the_other_from_going_back(pair: Pair) -> None:
    """The cable of one node is out, the run goes on with the other: nothing is undone."""
    for name in pair.hosts:
        pair.keep(name)
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        assert pair.beat(HEAD)["mine"]
        time.sleep(0.2)
    assert {pair.journal(name)["status"] for name in pair.hosts} == {"OPEN"}
    assert {pair.journal(name)["run"] for name in pair.hosts} == {RUN}
    # it comes back, and is still the change's run
    assert pair.beat(WORKER)["mine"]


def both_nodes_are_cut_from_each_other(pair: Pair) -> None:
    """Without agreement both wait; when the line is back, both go back."""
    for name, line in pair.lines.items():
        line.cut = True
        pair.keep(name)
    time.sleep(4)
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]
    assert {pair.journal(name)["status"] for name in pair.hosts} == {"OPEN"}
    for line in pair.lines.values():
        line.cut = False
    assert pair.ends() == BACK and is_back(pair)


def a_cut_between_the_two_phases_is_waited_for(pair: Pair) -> None:
    """The worker has promised and does not hear it: it stays, refuses the run, and goes back when
    the line is there again.
    """
    pair.keep(WORKER)
    head = pair.keep(HEAD, "stop")
    assert head.wait(20) == -9
    until(lambda: pair.journal(WORKER)["run"] != RUN)
    late = pair.beat(WORKER)
    assert not late["mine"] and late["deploy"] == "lease"
    pair.keep(HEAD)
    assert pair.ends() == BACK and is_back(pair)


def a_reboot_inside_the_lease_begins_it_anew(pair: Pair) -> None:
    """The rebooted host does not take the time that it was down for silence."""
    for name in pair.hosts:
        pair.keep(name)
    pair.keepers[WORKER].kill()
    pair.keepers[WORKER].communicate()
    time.sleep(1.5)
    pair.keep(WORKER)
    assert pair.beat(WORKER)["mine"] and pair.beat(HEAD)["mine"]
    assert {pair.journal(name)["status"] for name in pair.hosts} == {"OPEN"}
    assert pair.ends() == BACK and is_back(pair)


def what_one_node_has_committed_the_other_closes_too(pair: Pair) -> None:
    """The run closed the proven change on the head, and was cut off before the worker."""
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": RUN}
    assert pair.hosts[HEAD].call("close", done)["changed"]
    for name in pair.hosts:
        pair.keep(name)
    assert pair.ends() == STAYS
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]
    assert pair.journal(WORKER)["taken"]["deploy"] == "lease", "the next command tells it"
    reason = pair.journal(WORKER)["reason"]
    assert reason.endswith("it was proven: spark1 has it COMMITTED"), reason


def what_one_node_undid_the_other_undoes_too(pair: Pair) -> None:
    """The run's own return reached the head alone."""
    assert pair.hosts[HEAD].call("undo", {"change": "change-1", "run": RUN})["changed"]
    for name in pair.hosts:
        pair.keep(name)
    assert pair.ends() == BACK and is_back(pair)


def a_later_edit_keeps_both_as_they_are(pair: Pair) -> None:
    """Half of it would be worse: it says which file is in the way, and waits."""
    (pair.hosts[WORKER].root / "file.conf").write_text("by hand\n")
    worker = pair.keep(WORKER)
    pair.keep(HEAD)
    time.sleep(4)
    assert {pair.journal(name)["run"] for name in pair.hosts} == {RUN}
    worker.kill()
    assert worker.stdout and "waits: edited after the change: " in worker.stdout.read()
    assert (pair.file(HEAD), pair.file(WORKER)) == (NEW, "by hand\n")


def what_one_node_has_committed_and_the_other_edited_stays_open(pair: Pair) -> None:
    """It is not called committed over the edit, nothing is undone, and no sign of life is made up
    for the run that is gone, which would keep the next command out."""
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": RUN}
    assert pair.hosts[HEAD].call("close", done)["changed"]
    (pair.hosts[WORKER].root / "file.conf").write_text("by hand\n")
    worker = pair.keep(WORKER)
    pair.keep(HEAD)
    until(lambda: (pair.journal(WORKER).get("taken") or {}).get("deploy") == "lease")
    time.sleep(0.5)
    stored = pair.hosts[WORKER].state / "journal" / "change-1.json"
    last_sign = stored.stat().st_mtime_ns
    time.sleep(3)
    assert stored.stat().st_mtime_ns == last_sign
    worker.kill()
    assert worker.stdout and "it is not as change change-1 left it" in worker.stdout.read()
    assert pair.journal(WORKER)["status"] == "OPEN" and pair.file(WORKER) == "by hand\n"


def another_run_takes_it_up_before_it_is_over(pair: Pair) -> None:
    """The same command, run again: the new run's signs of life are as good as the first one's."""
    for name, host in pair.hosts.items():
        claim = {"change": "change-1", "run": "b2", "former": RUN, "operator": "anna@desk",
                 "deploy": "serve"}  # fmt: skip
        assert host.call("claim", claim)["claimed"]
        pair.keep(name)
    time.sleep(0.5)
    assert {pair.journal(name)["run"] for name in pair.hosts} == {"b2"}
    assert pair.ends() == BACK and is_back(pair)


PLAYS: dict[str, Callable[[Pair], None]] = {
    "nobody renews it": partial(nobody_renews_it_and_both_go_back, False),
    "lost, twice and late": partial(nobody_renews_it_and_both_go_back, True),
    **{
        play.__name__: play
        for play in (
            a_run_that_lives_is_left_alone_and_then_closes,
            a_node_that_is_still_renewed_keeps_the_other_from_going_back,
            both_nodes_are_cut_from_each_other,
            a_cut_between_the_two_phases_is_waited_for,
            a_reboot_inside_the_lease_begins_it_anew,
            what_one_node_has_committed_the_other_closes_too,
            what_one_node_undid_the_other_undoes_too,
            what_one_node_has_committed_and_the_other_edited_stays_open,
            a_later_edit_keeps_both_as_they_are,
            another_run_takes_it_up_before_it_is_over,
        )
    },
}


@pytest.mark.parametrize("name", PLAYS)
def test_two_keepers(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()
