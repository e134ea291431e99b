"""Steps in words, their time limits and the text behind a diff: one table for all runbooks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pyinfra.api import Config

from operations import run
from operations.apply import USUAL_S, describe, diff_lines, limit_s, text_after
from operations.run import Run, StepFailed
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.operations.doubles import FakeState, Node, failing

UNIT = {"op": "unit", "unit": "a.service", "enabled": None, "active": None, "daemon_reload": True}


@pytest.mark.parametrize(("step", "words"), [
    ({"op": "file", "path": "/a", "mode": "0644"}, "write /a (mode 0644, owner root)"),
    ({"op": "file", "path": "/a", "mode": "0600", "owner": "ubuntu"},
     "write /a (mode 0600, owner ubuntu)"),
    ({"op": "directory", "path": "/a"}, "make the folder /a"),
    ({"op": "directory", "path": "/a", "owner": "ubuntu"}, "make the folder /a (owner ubuntu)"),
    ({"op": "absent", "path": "/a"}, "remove /a"),
    ({"op": "link", "path": "/b/sleep.target", "target": "/dev/null"}, "mask sleep.target"),
    ({"op": "link", "path": "/v", "target": "/v2", "expect": "/v1"}, "/v: /v1 -> /v2"),
    (UNIT, "have systemd read its units again"),
    ({**UNIT, "active": "restart"}, "have systemd read its units again, then restart a.service"),
    ({**UNIT, "daemon_reload": False, "active": "start"}, "start a.service"),
    ({**UNIT, "enabled": True}, "enable a.service"),
    ({**UNIT, "enabled": False, "active": "stop"}, "disable and stop a.service"),
    ({"op": "hold", "packages": ["a", "b"], "held": True}, "apt holds: a, b"),
    ({"op": "grub", "saved": "6", "regenerate": True}, "update-grub; GRUB's saved default is 6"),
    ({"op": "grub", "saved": "6.1", "next": "6.8"}, "GRUB boots 6.8 once"),
    ({"op": "wol", "nic": "eth0", "letters": "g"},
     "eth0 wakes by a magic packet from now on (ethtool wol g)"),
])  # fmt: skip
def test_a_step_is_told_in_words(step: dict[str, Any], words: str) -> None:
    assert describe(step) == words


def test_an_unknown_step_has_no_words() -> None:
    with pytest.raises(KeyError):
        describe({"op": "format", "path": "/dev/sda"})


def test_the_slowest_step_sets_the_limit() -> None:
    assert limit_s([]) == limit_s([{"op": "file"}]) == USUAL_S
    assert limit_s([{"op": "unit"}, {"op": "file"}, {"op": "grub"}]) > limit_s([{"op": "unit"}])


def test_a_diff_shows_what_a_file_becomes() -> None:
    raw = base64.b64encode(b"new\n").decode()
    assert text_after({"op": "file", "path": "/a", "content": "new\n"}) == "new\n"
    assert text_after({"op": "file", "path": "/a", "content_base64": raw}) == "new\n"
    assert text_after({"op": "absent", "path": "/a"}) is None


# How a file's change is shown: what changed, and never a secret.

PATH = "/etc/rigbook/engine/engine.env"
SECRET = "hunter2"


def test_an_equal_file_has_no_diff() -> None:
    """Nothing to show."""
    assert list(diff_lines(PATH, "a\n", "a\n")) == []


def test_a_new_and_a_removed_file() -> None:
    """The side that is not there is /dev/null."""
    assert list(diff_lines(PATH, None, "A=1\n"))[:2] == ["--- /dev/null", f"+++ {PATH}"]
    assert list(diff_lines(PATH, "A=1\n", None))[:2] == [f"--- {PATH}", "+++ /dev/null"]


def test_old_and_new_value_with_two_lines_around() -> None:
    """A unified diff, without the whole file."""
    before = "".join(f"{n}\n" for n in range(9))
    shown = list(diff_lines(PATH, before, before.replace("4\n", "four\n")))
    assert shown[3:] == [" 2", " 3", "-4", "+four", " 5", " 6"]


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN={SECRET}",
        f"VLLM_API_KEY={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"PGPASSWORD={SECRET}",
        f"HTTP_AUTH=Basic {SECRET}=x",
        f"my_token={SECRET}",
        f"  --api-key {SECRET} \\",
        f"  --api-key {SECRET} other-{SECRET}",
        f"  --ssl-token={SECRET}",
    ],
)
def test_secrets_are_masked_on_every_side(line: str) -> None:
    """Added, removed, and as context of another change."""
    for before, after in (
        (None, f"{line}\n"),
        (f"{line}\n", None),
        (f"{line}\na\n", f"{line}\nb\n"),
        (f"{line}\n", "b\n"),
    ):
        shown = "\n".join(diff_lines(PATH, before, after))
        assert SECRET not in shown and "***" in shown


def test_a_changed_secret_is_told_without_its_value() -> None:
    """Otherwise a change would be written that no diff announced."""
    (line,) = diff_lines(PATH, "HF_TOKEN=old\n", "HF_TOKEN=new\n")
    assert "only values of secrets" in line and "new" not in line


def test_a_value_that_the_host_masked_is_no_difference() -> None:
    """node masks secrets before they leave the host (node/rules/secret.py)."""
    shown = list(diff_lines(PATH, "HF_TOKEN=***\nA=1\n", "HF_TOKEN=new\nA=2\n"))
    assert shown[3:] == [" HF_TOKEN=***", "-A=1", "+A=2"]


def test_ordinary_values_are_shown() -> None:
    """A variable that only looks long is not hidden."""
    assert list(diff_lines(PATH, None, "VLLM_HOST_IP=10.0.0.1\n"))[-1] == "+VLLM_HOST_IP=10.0.0.1"


# A run with a lease: keepers before the first step, and a new way in before the end.

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
    monkeypatch.setattr(run, "lease_new_way_in", lambda *_: None)
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

    monkeypatch.setattr(run, "lease_new_way_in", locked)
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

    monkeypatch.setattr(run, "ask_node", beat)
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
        run.lease_new_way_in(state, HEAD)
        return
    with pytest.raises(StepFailed, match=f"{HEAD}: {says}"):
        run.lease_new_way_in(state, HEAD)
