"""Whose a change is: signs of life, a claim that waits, a run that lost its change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from facts.node import AskFailed
from operations import run as operations_run
from operations.run import (
    AliveHere,
    Ownership,
    Run,
    StepFailed,
    deploy_here,
    is_alive_here,
    operator,
    proven_dead,
)
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.operations.doubles import FakeState, Node, failing

CHANGE = "20260530T065800Z-serve-1a2b"
MINE = {"mine": True, "run": "x", "status": "OPEN", "operator": "anna@desk", "deploy": "serve"}
THEIRS = {**MINE, "mine": False, "run": "b2"}
HOLD = """\
import sys, time
from operations.run import AliveHere
AliveHere(sys.argv[1], "serve").hold()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch, operators_folder: Path) -> Path:
    """This machine's files of runs; waits that take no time."""
    monkeypatch.setattr(operations_run, "POLL_S", 0.01)
    return operators_folder / "runs"


def test_a_run_that_was_killed_here_is_known_to_be_dead(runs: Path) -> None:
    """A real process and its real end; nobody of this machine ever had another one."""
    assert is_alive_here(CHANGE) is None and not proven_dead(CHANGE, operator())
    child = subprocess.Popen([sys.executable, "-c", HOLD, CHANGE], stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline() == b"held\n"
    assert is_alive_here(CHANGE) is True and not proven_dead(CHANGE, operator())
    child.kill()
    child.communicate()
    assert is_alive_here(CHANGE) is False and proven_dead(CHANGE, operator())
    # what another machine's operator does is not known here
    assert not proven_dead(CHANGE, "anna@desk")


def test_the_file_of_a_run_goes_when_its_change_is_settled(runs: Path) -> None:
    for settled in (False, True):
        mine = AliveHere(CHANGE, "serve")
        mine.hold()
        assert is_alive_here(CHANGE) is True
        mine.let_go(settled)
        assert is_alive_here(CHANGE) is (None if settled else False)


def test_of_two_runs_at_once_one_succeeds_the_dead_one(runs: Path) -> None:
    """The second took the first, which had claimed the change already, for the dead one."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, CHANGE], stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline() == b"held\n"
    first, second = AliveHere(CHANGE, "serve"), AliveHere(CHANGE, "serve")
    assert not first.hold()
    child.kill()
    child.communicate()
    assert first.hold() and not second.hold()
    first.let_go(settled=False)
    assert second.hold()


def test_a_run_says_that_it_lives_before_it_claims(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = []
    monkeypatch.setattr(
        operations_run, "call", lambda *_: alive.append(is_alive_here(CHANGE)) or {"claimed": True}
    )
    owner = Ownership(FakeState(), CHANGE, "rollback")
    owner.claim(HEAD, None, print)
    assert alive == [True]
    owner.end(settled=False)
    assert is_alive_here(CHANGE) is False


def test_of_two_rollbacks_here_the_second_waits_until_the_first_is_over(
    runs: Path, claims: list[object]
) -> None:
    """It claims nothing meanwhile: of two that both claim, each takes the other for dead."""
    first = AliveHere(CHANGE, "rollback")
    first.hold()
    second, told = Ownership(FakeState(), CHANGE, "rollback"), []
    assert deploy_here(CHANGE) == "rollback"

    def tell(line: object) -> None:
        told.append(line)
        first.let_go(settled=True)

    claims.append({"claimed": False, "status": "ROLLED_BACK"})
    assert not second.claim_from_whom_it_has(HEAD, "a1", tell, False, 5)["claimed"]
    assert len(told) == 1 and "who rolls it back" in str(told[0])


def test_a_folder_that_cannot_be_written_keeps_no_run_from_its_work(runs: Path) -> None:
    runs.parent.mkdir()
    runs.write_text("a file")
    mine = AliveHere(CHANGE, "serve")
    mine.hold()
    mine.let_go(settled=True)
    assert is_alive_here(CHANGE) is None


class Beats:
    """What each node was asked as a sign of life; `said` is what it answers, or raises."""

    def __init__(self, patch: pytest.MonkeyPatch, **said: object) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.under_way = 0
        names = {"head": HEAD, "worker": WORKER}
        self.said = {names[who]: answer for who, answer in said.items()}
        patch.setattr(operations_run, "ask_node", self.ask)

    def ask(self, state: object, host: Any, verb: str, request: dict[str, Any], *_: object) -> Any:
        assert verb == "beat"
        if not request.get("over"):
            self.under_way += 1
            gevent.sleep(0.01)
            self.under_way -= 1
        self.asked.append((host.name, request))
        said = self.said.get(host.name, MINE)
        if isinstance(said, Exception):
            raise said
        return said


def test_a_run_says_that_it_lives_on_every_node_and_at_its_end_that_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that does not answer keeps no other one from its beat."""
    monkeypatch.setattr(operations_run, "BEAT_S", 0.02)
    beats = Beats(monkeypatch, head=AskFailed("off"))
    owner = Ownership(FakeState(), CHANGE, "serve")
    owner.begin()
    owner.nodes |= {HEAD, WORKER}
    gevent.sleep(0.3)

    def own() -> list[tuple[str, Any]]:
        # a run of another test in this process may beat as well
        return [row for row in beats.asked if row[1]["change"] == CHANGE]

    assert {name for name, _ in own()} == {HEAD, WORKER} and len(own()) > 4
    while not beats.under_way:
        gevent.sleep(0.001)
    owner.end(settled=False)
    assert [request.get("over") for _, request in own()[-2:]] == [True, True]
    count = len(own())
    gevent.sleep(0.1)
    owner.end(settled=False)
    assert len(own()) == count


def test_a_run_that_lost_its_change_does_no_step_and_undoes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A laptop slept; another operator took the change up: what serves is not this run's."""
    monkeypatch.setattr(operations_run, "BEAT_S", 0.02)
    Node(monkeypatch)
    Beats(monkeypatch, worker=THEIRS)
    backs: list[str] = []
    run = Run(FakeState(), "serve", tiny_plan(), revert=lambda run: backs.append(run.id) or "back")
    did: list[str] = []
    state: Any = run.state
    assert run.step("a", [HEAD], lambda: run.apply(WORKER, [])).function(state, state.hosts[HEAD])
    gevent.sleep(0.1)
    step = run.step("b", [HEAD], lambda: did.append("b"))
    assert step.function(state, state.hosts[HEAD]) is False
    assert did == [] and backs == []
    assert "was taken up by anna@desk (serve) and is OPEN: this run is over" in state.said()
    assert "nothing is undone" in state.said()


@pytest.mark.parametrize("code", ["taken_up", "change_closed"])
@pytest.mark.parametrize("verb", ["apply", "close"])
def test_a_write_that_is_refused_to_a_run_that_slept_is_its_end(
    monkeypatch: pytest.MonkeyPatch, verb: str, code: str
) -> None:
    """Also at the proof, when it was the other run's engine that answered."""
    Node(monkeypatch, failing(HEAD, verb, code))
    backs: list[str] = []
    run = Run(FakeState(), "serve", tiny_plan(), revert=lambda run: backs.append(run.id) or "back")

    def work() -> None:
        run.apply(HEAD, [])
        run.proven = True
        run.close("COMMITTED", "proof")

    state: Any = run.state
    assert run.step("a", [HEAD], work).function(state, state.hosts[HEAD]) is False
    assert backs == [] and "nothing is undone" in state.said()
    assert "the proof came" not in state.said()


Answers = Callable[..., dict[str, Any]]


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What node says to claims, in turn (the last again and again); an error is raised."""
    queue: list[object] = []

    def call(state: object, host: Any, verb: str, request: dict[str, Any], *_: object) -> Any:
        said = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(said, Exception):
            raise said
        return {**THEIRS, "quiet_s": 3.0, **dict(said), "former": request["former"]}  # type: ignore[call-overload]

    monkeypatch.setattr(operations_run, "call", call)
    return queue


LOCKED = StepFailed("n: claim: the lock is held by pid 77; wait for it", "locked")


def test_a_claim_waits_for_the_lock_and_has_an_end(
    claims: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead run's last command holds it: a stop takes 30 s."""
    owner, told = Ownership(FakeState(), CHANGE, "rollback"), []
    claims += [LOCKED, LOCKED, LOCKED, {"claimed": True}]
    assert owner.claim(HEAD, None, told.append)["claimed"] and owner.nodes == {HEAD}
    assert told == ["waits: n: claim: the lock is held by pid 77: 0 s of 300 s"]
    monkeypatch.setattr(operations_run, "LOCK_WAIT_S", 0.05)
    claims[:] = [LOCKED]
    with pytest.raises(StepFailed, match="held by pid 77: still so after"):
        owner.claim(HEAD, None, told.append)


@pytest.mark.parametrize(("said", "forced", "ends"), [
    ([{"claimed": False, "quiet_s": 200.0}], False, "b2"),
    ([{"claimed": False, "deploy": "rollback", "quiet_s": 200.0}], False, "b2"),
    ([{"claimed": False}], True, "b2"),
    ([{"claimed": False, "status": "ROLLED_BACK"}], False, None),
])  # fmt: skip
def test_a_rollback_takes_a_change_from_a_dead_run_or_by_name(
    claims: list[object], said: list[object], forced: bool, ends: str | None
) -> None:
    owner, told = Ownership(FakeState(), CHANGE, "rollback"), []
    claims += [*said, {"claimed": True}]
    answer = owner.claim_from_whom_it_has(HEAD, "a1", told.append, forced, 5)
    assert answer["claimed"] is (ends is not None)
    assert answer["former"] == (ends or "a1") and told == []


def test_a_rollback_does_not_take_a_change_from_a_run_that_lives(claims: list[object]) -> None:
    claims.append({"claimed": False})
    owner = Ownership(FakeState(), CHANGE, "rollback")
    with pytest.raises(StepFailed, match=r"is anna@desk's \(serve\), last sign of life 3 s ago"):
        owner.claim_from_whom_it_has(HEAD, "a1", print, False, 5)
