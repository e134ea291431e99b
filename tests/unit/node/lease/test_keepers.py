"""Two keepers on loopback: what they agree on when the run is silent, whatever the line does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.unit.node.support.host import NEW, OLD
from tests.unit.node.support.keepers import HEAD, RUN, WORKER, Pair

BACK = {HEAD: "ROLLED_BACK", WORKER: "ROLLED_BACK"}
STAYS = {HEAD: "COMMITTED", WORKER: "COMMITTED"}
ACTS = ("promise", "stop", "undo", "prove")


def until(seen: Callable[[], object], timeout_s: float = 15) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, "it did not come to it"
        time.sleep(0.05)


def is_back(pair: Pair) -> bool:
    """Whether both files are as the change found them, and nothing of the keepers is left."""
    for name, host in pair.hosts.items():
        assert pair.file(name) == OLD, name
        assert not (host.state / "lease.json").exists(), name
        units = host.state / "units"
        assert not [*units.glob("*.service"), *units.glob("*/*.service")], name
    return True


@pytest.mark.parametrize("mischief", [False, True], ids=["a good line", "lost, twice and late"])
def test_nobody_renews_it_and_both_go_back(pair: Pair, mischief: bool) -> None:
    for name, line in pair.lines.items():
        line.mischief = mischief
        pair.keep(name)
    assert pair.ends(60) == BACK and is_back(pair)
    for name in BACK:
        change = pair.journal(name)
        assert change["reason"].startswith("nobody renewed the lease of 1 s"), change["reason"]
        assert change["taken"]["deploy"] == "lease"
        assert change["taken"]["operator"].startswith("keeper@")


def test_a_run_that_lives_is_left_alone_and_then_closes(pair: Pair) -> None:
    """Three times the lease, a sign of life in each; then COMMITTED: the keepers go."""
    for name in pair.hosts:
        pair.keep(name)
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        for name in pair.hosts:
            assert pair.beat(name)["mine"]
        time.sleep(0.2)
    for name, host in pair.hosts.items():
        done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": RUN}
        assert host.call("close", done)["changed"], name
    assert pair.ends() == STAYS
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]


def test_a_node_that_is_still_renewed_keeps_the_other_from_going_back(pair: Pair) -> None:
    """The cable of one node is out, the run goes on with the other: nothing is undone."""
    for name in pair.hosts:
        pair.keep(name)
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        assert pair.beat(HEAD)["mine"]
        time.sleep(0.2)
    assert {pair.journal(name)["status"] for name in pair.hosts} == {"OPEN"}
    assert {pair.journal(name)["run"] for name in pair.hosts} == {RUN}
    # it comes back, and is still the change's run
    assert pair.beat(WORKER)["mine"]


def test_both_nodes_are_cut_from_each_other(pair: Pair) -> None:
    """Without agreement both wait; when the line is back, both go back."""
    for name, line in pair.lines.items():
        line.cut = True
        pair.keep(name)
    time.sleep(3)
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]
    assert {pair.journal(name)["status"] for name in pair.hosts} == {"OPEN"}
    for line in pair.lines.values():
        line.cut = False
    assert pair.ends() == BACK and is_back(pair)


def test_a_cut_between_the_two_phases_is_waited_for(pair: Pair) -> None:
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


@pytest.mark.parametrize("name", [HEAD, WORKER])
@pytest.mark.parametrize("act", ACTS)
def test_a_keeper_that_is_killed_in_each_phase(pair: Pair, name: str, act: str) -> None:
    """A power cut, or a kill: the next keeper of that host goes on where it was."""
    dying = pair.keep(name, act)
    pair.keep(WORKER if name == HEAD else HEAD)
    assert dying.wait(30) == -9
    dying.communicate()
    pair.keep(name)
    assert pair.ends() == BACK and is_back(pair)


def test_a_reboot_inside_the_lease_begins_it_anew(pair: Pair) -> None:
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


def test_what_one_node_has_committed_the_other_closes_too(pair: Pair) -> None:
    """The run closed the proven change on the head, and was cut off before the worker."""
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": RUN}
    assert pair.hosts[HEAD].call("close", done)["changed"]
    for name in pair.hosts:
        pair.keep(name)
    assert pair.ends() == STAYS
    assert [pair.file(name) for name in pair.hosts] == [NEW, NEW]
    reason = pair.journal(WORKER)["reason"]
    assert reason.endswith("it was proven: spark1 has it COMMITTED"), reason


def test_what_one_node_undid_the_other_undoes_too(pair: Pair) -> None:
    """The run's own return reached the head alone."""
    assert pair.hosts[HEAD].call("undo", {"change": "change-1", "run": RUN})["changed"]
    for name in pair.hosts:
        pair.keep(name)
    assert pair.ends() == BACK and is_back(pair)


def test_a_later_edit_keeps_both_as_they_are(pair: Pair) -> None:
    """Half of it would be worse: it says which file is in the way, and waits."""
    (pair.hosts[WORKER].root / "file.conf").write_text("by hand\n")
    worker = pair.keep(WORKER)
    pair.keep(HEAD)
    time.sleep(3)
    assert {pair.journal(name)["run"] for name in pair.hosts} == {RUN}
    worker.kill()
    assert worker.stdout and "waits: edited after the change: " in worker.stdout.read()
    assert (pair.file(HEAD), pair.file(WORKER)) == (NEW, "by hand\n")


def test_another_run_takes_it_up_before_it_is_over(pair: Pair) -> None:
    """The same command, run again: the new run's signs of life are as good as the first one's."""
    for name, host in pair.hosts.items():
        claim = {"change": "change-1", "run": "b2", "former": RUN, "operator": "anna@desk",
                 "deploy": "serve"}  # fmt: skip
        assert host.call("claim", claim)["claimed"]
        pair.keep(name)
    time.sleep(0.5)
    assert {pair.journal(name)["run"] for name in pair.hosts} == {"b2"}
    assert pair.ends() == BACK and is_back(pair)
