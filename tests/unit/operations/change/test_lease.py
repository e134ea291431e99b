"""A run with a lease: keepers before the first step, and a new way in before the end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pyinfra.api import Config

from operations.change import lease, ownership
from operations.change.node_call import StepFailed
from operations.change.run import Run
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.operations.doubles import FakeState, Node, failing

PLAN = tiny_plan()
BOTH = [(HEAD, "lease"), (WORKER, "lease")]


class Rig:
    """A run with a lease of 120 s on two doubles."""

    def __init__(self, revert: Callable[[Run], str] | None = None, lease_s: int | None = 120):
        self.state = FakeState()
        self.run = Run(self.state, "serve", PLAN, (), revert, lease_s=lease_s)

    def step(self, name: str, work: Callable[[], object]) -> bool:
        """One node's step."""
        command = self.run.step(f"step on {name}", [name], work)
        job = gevent.spawn(command.function, self.state, self.state.hosts[name])
        done: bool = job.get(timeout=10)
        return done


def test_each_node_has_its_keeper_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one that is not changed: the nodes go back together. Once a run."""
    node, rig = Node(monkeypatch), Rig()
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    assert node.calls == [*BOTH, (HEAD, "apply"), (HEAD, "apply")]
    head, worker = (request["lease"] for request in node.requests[:2])
    assert len(head["key"]) == 64 and head["key"] == worker["key"]
    assert (head["seconds"], head["head"], worker["head"]) == (120, True, False)
    assert head["peers"] == {WORKER: worker["addresses"]}
    assert worker["peers"] == {HEAD: head["addresses"]}
    # by the fabric first, then by the LAN
    of_head = PLAN.rig.head
    assert head["addresses"] == [str(of_head.fabric_address), str(of_head.lan_address)]
    assert {request["change"]["id"] for request in node.requests[:2]} == {rig.run.id}
    assert rig.run.touched == {HEAD} and rig.run.owner.kept == {HEAD, WORKER}


def test_without_a_lease_there_is_no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    node, rig = Node(monkeypatch), Rig(lease_s=None)
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    assert node.calls == [(HEAD, "apply")]


def test_a_step_that_changes_nothing_makes_no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run opens no change (R5)."""
    node, rig = Node(monkeypatch), Rig()
    assert rig.step(HEAD, lambda: None)
    assert node.calls == []


def test_a_keeper_that_does_not_come_stops_the_run_before_any_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, rig = Node(monkeypatch, failing(WORKER, "lease")), Rig()
    assert not rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    # what was opened is ended again
    assert node.calls == [*BOTH, (HEAD, "undo"), (WORKER, "undo")]
    assert rig.run.touched == set()
    assert f"{WORKER}: lease: stand-in failure" in rig.state.said()
    with pytest.raises(StepFailed, match="stand-in failure"):
        rig.run.touch(WORKER)


def test_the_change_is_closed_where_only_a_keeper_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "new_way_in", lambda *_: None)
    node, rig = Node(monkeypatch), Rig()
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    rig.run.close("COMMITTED", "proven")
    assert node.calls[-2:] == [(HEAD, "close"), (WORKER, "close")]


def test_a_return_ends_it_on_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own return is for what it touched; where only a keeper was, nothing is to do."""
    node, rig = Node(monkeypatch, failing(HEAD, "apply")), Rig(lambda run: "back")
    assert not rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    assert node.calls[-1] == (WORKER, "undo") and (HEAD, "undo") not in node.calls


def test_a_return_that_fails_is_left_to_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(run: Run) -> str:
        raise StepFailed(f"{WORKER}: the connection failed")

    Node(monkeypatch, failing(HEAD, "apply"))
    rig = Rig(gone)
    assert not rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    assert "else the nodes go back by themselves in about 120 s" in rig.state.said()


@pytest.mark.parametrize("lease_s", [120, None])
def test_a_change_that_locks_its_operator_out_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, lease_s: int | None
) -> None:
    """sshd, sudo, network, firewall: the run's own connection goes on, a new one does not come."""

    def locked(*_: object) -> None:
        raise StepFailed(f"{HEAD}: no new connection comes about")

    monkeypatch.setattr(lease, "new_way_in", locked)
    node, rig = Node(monkeypatch), Rig(lease_s=lease_s)
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    if lease_s is None:
        rig.run.close("COMMITTED", "proven")
        return
    with pytest.raises(StepFailed, match="no new connection"):
        rig.run.close("COMMITTED", "proven")
    assert (HEAD, "close") not in node.calls


def test_a_node_with_only_a_keeper_is_renewed_and_can_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each keeper hears the run; one that took the change ends it: it does no step any more."""
    Node(monkeypatch)
    rig = Rig()
    assert rig.step(HEAD, lambda: rig.run.apply(HEAD, []))
    asked = []

    def beat(_: object, host: Any, verb: str, *__: object) -> dict[str, Any]:
        asked.append((host.name, verb))
        mine = host.name == HEAD
        return {"mine": mine, "run": rig.run.owner.token if mine else "keeper-5",
                "operator": "keeper@lab2", "deploy": "lease", "status": "ROLLED_BACK"}  # fmt: skip

    monkeypatch.setattr(ownership, "ask_node", beat)
    rig.run.owner._beat_all()
    assert sorted(asked) == [(HEAD, "beat"), (WORKER, "beat")]
    done: list[bool] = []
    assert not rig.step(WORKER, lambda: done.append(True)) and not done
    said = rig.state.said()
    assert f"change {rig.run.id} was taken up by keeper@lab2 (lease) and is ROLLED_BACK" in said
    assert "nothing is undone: the change is another run's" in said


class Connecting:
    """Stand-in for a pyinfra host whose next connection comes, or not, and may be root, or not."""

    def __init__(self, comes: object, root: bool) -> None:
        self.comes, self.root = comes, root
        self.connected = True
        self.data: dict[str, str] = {}

    def run_shell_command(self, command: str, **more: object) -> tuple[bool, Any]:
        """As pyinfra's Host.run_shell_command."""
        assert command and more["_sudo"] is True
        return self.root, SimpleNamespace(stderr="sudo: a password is required")

    def disconnect(self) -> None:
        """As pyinfra's Host.disconnect."""
        self.connected = False

    def connect(self, show_errors: bool) -> None:
        """As pyinfra's Host.connect."""
        if isinstance(self.comes, Exception):
            raise self.comes
        self.connected = bool(self.comes)


@pytest.mark.parametrize(
    ("comes", "root", "says"),
    [
        (True, True, ""),
        (True, False, "a new connection cannot become root: sudo: a password is required"),
        (False, True, "no new connection comes about"),
        (OSError("refused"), True, "no new connection comes about: refused"),
        (EOFError(), True, "no new connection comes about"),
    ],
)
def test_a_new_way_in(comes: object, root: bool, says: str) -> None:
    state: Any = FakeState()
    state.config = Config()
    state.hosts[HEAD] = Connecting(comes, root)
    state.inventory.get_host = state.hosts.__getitem__
    if not says:
        lease.new_way_in(state, HEAD)
        return
    with pytest.raises(StepFailed, match=f"{HEAD}: {says}"):
        lease.new_way_in(state, HEAD)
