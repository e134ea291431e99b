"""Run: the hosts of a rig meet at the end of a step; one failure stops and takes back all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from facts import pack
from operations import run as operations_run
from operations.run import Run, StepFailed, call, is_alive_here, new_change_id
from tests.plans.support.doubles import sent
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.operations.doubles import FakeState, Node, failing

PLAN = tiny_plan()
BOTH = (HEAD, WORKER)


class Rig:
    """A run on two doubles, and how often it went back."""

    def __init__(self, revert: Callable[[Run], str] | None = None, **changes: object) -> None:
        self.state = FakeState()
        self.backs: list[set[str]] = []
        self.run = Run(self.state, "serve", PLAN, (("x", "why"),), revert or self._back)

    def _back(self, run: Run) -> str:
        self.backs.append(set(run.touched))
        return "back again"

    def step(self, label: str, **work: Callable[[], object]) -> dict[str, bool]:
        """Runs a step on `head` and `worker` at the same time; what each returned."""
        names = {"head": HEAD, "worker": WORKER}
        members = [names[who] for who in work]
        jobs = {}
        for who, do in work.items():
            command = self.run.step(label, members, do)
            host = self.state.hosts[names[who]]
            jobs[who] = gevent.spawn(command.function, self.state, host)
        gevent.joinall(list(jobs.values()), timeout=10)
        return {who: job.get(block=False) for who, job in jobs.items()}

    def apply(self, name: str) -> Callable[[], bool]:
        """Work that applies a step on a node."""
        return lambda: self.run.apply(name, [])


def test_a_step_that_works_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both return True, nothing goes back."""
    node, rig = Node(monkeypatch), Rig()
    assert rig.step("a", head=rig.apply(HEAD), worker=rig.apply(WORKER)) == {
        "head": True,
        "worker": True,
    }
    assert rig.backs == [] and rig.run.touched == set(BOTH)
    header = node.requests[0]["change"]
    assert header["waivers"] == [{"code": "x", "reason": "why"}]
    assert header["id"] == rig.run.id and "@" in header["operator"]


def test_one_failure_stops_both_and_goes_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host that worked returns False as well: pyinfra then stops there, too."""
    Node(monkeypatch, failing(WORKER, "apply"))
    rig = Rig()
    assert rig.step("a", head=rig.apply(HEAD), worker=rig.apply(WORKER)) == {
        "head": False,
        "worker": False,
    }
    assert rig.backs == [set(BOTH)]
    assert rig.state.said().count(f"{WORKER}: apply: stand-in failure") == 1


def test_nothing_is_done_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later step of a host that did not fail is skipped, and does not go back again."""
    node = Node(monkeypatch, failing(HEAD, "apply"))
    rig = Rig()
    assert rig.step("stop head", head=rig.apply(HEAD)) == {"head": False}
    assert rig.step("stop worker", worker=rig.apply(WORKER)) == {"worker": False}
    assert node.calls == [(HEAD, "apply")]
    assert len(rig.backs) == 1


def test_a_slow_member_is_waited_for_before_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo and apply on one host at the same time would race."""
    Node(monkeypatch, failing(HEAD, "apply"))
    rig = Rig()
    finished = []

    def slow() -> None:
        rig.run.touched.add(WORKER)
        gevent.sleep(0.05)
        finished.append(len(rig.backs))

    assert rig.step("a", worker=slow, head=rig.apply(HEAD)) == {"head": False, "worker": False}
    assert finished == [0] and rig.backs == [set(BOTH)]


def test_nobody_waits_for_a_host_that_failed_in_a_step_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image that one node could not pull: the taker must not wait hours for its giver."""
    node, rig = Node(monkeypatch), Rig()

    def no_registry() -> None:
        raise StepFailed("no way to the registry")

    assert rig.step("pull", head=no_registry) == {"head": False}
    command = rig.run.step("move", BOTH, rig.apply(WORKER), 3600)
    job = gevent.spawn(command.function, rig.state, rig.state.hosts[WORKER])
    assert job.get(timeout=5) is False and node.requests == []


def test_a_member_that_never_comes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, after a bounded time."""
    monkeypatch.setattr(operations_run, "RENDEZVOUS_S", 0.05)
    Node(monkeypatch)
    rig = Rig()
    command = rig.run.step("a", BOTH, rig.apply(HEAD))
    assert command.function(rig.state, rig.state.hosts[HEAD]) is False
    assert f"a: {WORKER} did not finish within 0.05 s" in rig.state.said()
    assert len(rig.backs) == 1


def test_a_step_that_may_take_longer_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reboot's budget is the operator's: the quick board waits for the slow one."""
    monkeypatch.setattr(operations_run, "RENDEZVOUS_S", 0.01)
    Node(monkeypatch)
    rig = Rig()
    jobs = []
    for name, seconds in ((HEAD, 0.0), (WORKER, 0.1)):
        command = rig.run.step("reboot", BOTH, lambda s=seconds: gevent.sleep(s), 10)
        jobs.append(gevent.spawn(command.function, rig.state, rig.state.hosts[name]))
    gevent.joinall(jobs, timeout=10)
    assert [job.get(block=False) for job in jobs] == [True, True] and rig.backs == []


def test_what_is_proven_stays_when_the_journal_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk at the last line must not end an engine that answers."""
    Node(monkeypatch, failing(WORKER, "close"))
    rig = Rig()
    assert rig.step("a", head=rig.apply(HEAD), worker=rig.apply(WORKER))["head"]
    rig.run.proven = True
    assert rig.step("prove", head=lambda: rig.run.close("COMMITTED", "answers")) == {"head": False}
    said = rig.state.said()
    assert rig.backs == [] and f"{WORKER}: close: stand-in failure" in said
    assert "the proof came and nothing is undone" in said
    assert f'sudo rignode close \'{{"change": "{rig.run.id}"' in said


def test_a_defect_of_ours_goes_back_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception, not only a failed step."""
    Node(monkeypatch)
    rig = Rig()
    rig.run.touched.add(HEAD)
    assert rig.step("a", head=lambda: 1 / 0) == {"head": False}
    assert "a: ZeroDivisionError: division by zero" in rig.state.said() and len(rig.backs) == 1


def test_a_host_counts_as_touched_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is cut may leave an open change there."""
    Node(monkeypatch, failing(WORKER, "apply"))
    rig = Rig()
    rig.step("a", worker=rig.apply(WORKER))
    assert rig.backs == [{WORKER}]


def test_a_failure_before_any_change_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was touched, so nothing is undone."""
    Node(monkeypatch)
    rig = Rig()
    assert rig.step("a", head=lambda: 1 / 0) == {"head": False}
    assert rig.backs == []


def test_a_blessed_change_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails after the proof fails alone."""
    Node(monkeypatch)
    rig = Rig()

    def work() -> None:
        rig.run.apply(HEAD, [])
        rig.run.close("COMMITTED", "proof")
        raise StepFailed("too late")

    assert rig.step("a", head=work) == {"head": False}
    assert rig.backs == []


def test_close_ends_every_touched_node_and_names_those_that_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second node is closed although the first one refused."""
    node = Node(monkeypatch, failing(HEAD, "close"))
    rig = Rig()
    rig.run.touched |= set(BOTH)
    with pytest.raises(StepFailed, match=f"{HEAD}: close: stand-in failure"):
        rig.run.close("COMMITTED", "proof")
    assert node.calls == [(HEAD, "close"), (WORKER, "close")] and not rig.run.closed


def test_what_a_close_freed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line, not_yet = "removed 3 backups beyond the 5 newest, 90.0 MiB", "images: docker hangs"
    told = {"ok": True, "freed": [line], "not_freed": [not_yet]}
    Node(monkeypatch, lambda host, verb, request: told if host == HEAD else {"ok": True})
    rig = Rig()
    rig.run.touched |= set(BOTH)
    rig.run.close("COMMITTED", "proof")
    assert rig.state.hosts[HEAD].lines == [line, not_yet] and rig.run.closed
    assert rig.state.hosts[WORKER].lines == []


def test_a_node_without_the_change_has_nothing_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every step was as wanted already, no change was opened."""
    node = Node(monkeypatch, failing(HEAD, "close", "no_change"))
    rig = Rig()
    rig.run.touched |= set(BOTH)
    rig.run.close("COMMITTED", "proof")
    assert node.calls == [(HEAD, "close"), (WORKER, "close")] and rig.run.closed


def test_a_reason_of_any_length_is_one_that_the_journal_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host's whole log may be behind it; node refuses more than 2000 characters."""
    node, rig = Node(monkeypatch), Rig()
    rig.run.touched.add(HEAD)
    rig.run.close("ROLLED_BACK", "why " * 4000)
    (request,) = node.requests
    assert request["reason"].startswith("why why") and len(request["reason"]) < 2000


def test_a_way_back_that_fails_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the change's id; the step still returns False."""

    def revert(run: Run) -> str:
        raise StepFailed("worker is off")

    Node(monkeypatch)
    rig = Rig(revert)
    rig.run.touched.add(HEAD)
    assert rig.step("a", head=lambda: 1 / 0) == {"head": False}
    said = rig.state.said()
    assert "could not go back whole: worker is off" in said
    assert f"pyinfra INVENTORY deploys/rollback.py -y --data change={rig.run.id}" in said


@pytest.mark.parametrize("stays_open", [False, True])
def test_a_run_whose_change_stays_open_is_known_to_be_over(
    monkeypatch: pytest.MonkeyPatch, operators_folder: Path, stays_open: bool
) -> None:
    """Weights go on where they were; the same command was refused for two minutes."""

    def revert(run: Run) -> str:
        run.stays_open = stays_open
        return "run it again"

    Node(monkeypatch, failing(HEAD, "apply"))
    rig = Rig(revert)
    rig.step("a", head=rig.apply(HEAD))
    assert is_alive_here(rig.run.id) is (False if stays_open else None)


def test_a_run_without_a_way_back_says_that_it_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """stop does not start an engine again by itself."""
    Node(monkeypatch)
    state = FakeState()
    run = Run(state, "stop", PLAN)
    run.touched.add(HEAD)
    command = run.step("a", [HEAD], lambda: 1 / 0)
    assert command.function(state, state.hosts[HEAD]) is False
    assert f"change {run.id} stays OPEN; undo it with: pyinfra INVENTORY deploys/" in state.said()


def test_change_ids_are_unique_and_nodes_own() -> None:
    """Two operators in one second never share an id, and node takes it."""
    from node.core.validate import change_id

    ids = {new_change_id("serve") for _ in range(50)}
    assert len(ids) > 45 and all(change_id(i) == i for i in ids)


# operations.run.call: what a host answers becomes a document or one line.


class Line:
    """Stand-in for the connection to one host; keeps the command."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        out: str = "",
        err: str = "",
        broken: Exception | None = None,
    ) -> None:
        self.command = ""
        self.sudo = False
        self.stdin = ""
        host = SimpleNamespace(name="lab1", data={}, run_shell_command=None)
        state = SimpleNamespace(print_output=False, print_input=False)

        def in_host(state_: Any, host_: Any, function: Any, command: Any, **arguments: Any) -> Any:
            self.command = command.get_raw_value()
            self.sudo, self.stdin = arguments["_sudo"], arguments["_stdin"]
            if broken:
                raise broken
            output = SimpleNamespace(stdout_lines=out.splitlines(), stderr_lines=err.splitlines())
            return not err, output

        patch.setattr(operations_run, "in_host", in_host)
        self.ask = lambda **request: call(state, host, "close", request, 7)


def test_a_document_comes_back_and_the_request_went_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, bounded on the host, with node installed first."""
    line = Line(monkeypatch, 'a warning of sudo\n{"ok": true, "changed": false}')
    assert line.ask(change="x") == {"ok": True, "changed": False}
    assert line.command.startswith("timeout -k 5 7 sh -c ") and line.sudo
    went = sent("lab1", line.command, line.stdin)
    assert (went.verb, went.request, went.installs) == ("close", {"change": "x"}, True)


@pytest.mark.parametrize(
    ("out", "err", "line"),
    [
        (
            json.dumps({"ok": False, "error": "no change x", "code": "no_change", "remedy": "y"}),
            "",
            "lab1: close: no change x; y",
        ),
        (json.dumps({"ok": False, "error": "no"}), "", "lab1: close: no"),
        ("", "sudo: a password is required", "lab1: close: the host answered: sudo: a password"),
        ("7", "", "lab1: close: the host answered: 7"),
        ("Killed", "", "lab1: close: the host answered: Killed"),
        ("", "", "lab1: close: the host answered nothing (limit 7 s)"),
    ],
)
def test_anything_else_is_one_line(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, line: str
) -> None:
    """With the host, the verb and its own words."""
    with pytest.raises(StepFailed) as failed:
        Line(monkeypatch, out, err).ask()
    assert str(failed.value).startswith(line)
    assert failed.value.code == ("no_change" if "no_change" in out else "")


def test_a_broken_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the transport raises."""
    with pytest.raises(StepFailed, match="lab1: close: the connection failed: reset"):
        Line(monkeypatch, broken=OSError("reset")).ask()


# operations.run.call: a request goes through stdin, never into a command line.

REQUEST = {"change": "change-1", "secret": "T0P-S3CRET"}


def test_the_request_goes_through_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line holds no word of the request, packed or plain."""
    seen: dict[str, Any] = {}

    def in_host(_: Any, __: Any, ___: Any, command: Any, **arguments: Any) -> Any:
        seen.update(arguments, command=command.get_raw_value())
        return True, SimpleNamespace(stdout_lines=['{"ok": true}'], stderr_lines=[])

    monkeypatch.setattr(operations_run, "in_host", in_host)
    host: Any = SimpleNamespace(name="lab1", data={}, run_shell_command=None)
    state: Any = SimpleNamespace(print_output=False, print_input=False)
    assert call(state, host, "apply", REQUEST) == {"ok": True}
    read = sent("lab1", seen["command"], seen["_stdin"])
    assert read.verb == "apply" and read.request == REQUEST
    other: dict[str, Any] = {}
    seen, other = other, seen
    call(state, host, "apply", {"change": "x"})
    assert seen["command"] == other["command"] and seen["_stdin"] != other["_stdin"]


def test_the_program_reads_it_there(tmp_path: Path) -> None:
    """The whole line in a real shell: the verb's request is the program's own stdin."""
    made = pack.install_call(
        "journal", {"change": "T0P-S3CRET"}, str(tmp_path / "lib"), str(tmp_path / "rignode")
    )
    done = subprocess.run(
        ["sh", "-c", made.line],
        input=made.stdin,
        env={"PATH": "/usr/bin:/bin", "RIGBOOK_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "no change T0P-S3CRET" in json.loads(done.stdout)["error"]


# A long verb: the operator sees how far it is, and its failure is the caller's.


class Told:
    """A stand-in of a host, which keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def run(monkeypatch: pytest.MonkeyPatch, told: Told, answer: Any) -> dict[str, Any]:
    """A verb that takes five looks."""

    def call(*_: Any) -> Any:
        gevent.sleep(0.1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(operations_run, "call", call)
    monkeypatch.setattr(operations_run, "REPORT_S", 0.02)
    host: Any = told
    state: Any = None
    return operations_run.call_with_progress(state, host, "x", {}, 1, lambda: ["half"])


def test_the_answer_comes_and_the_looks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    assert run(monkeypatch, told, {"ok": True}) == {"ok": True}
    assert set(told.lines) == {"half"} and len(told.lines) >= 1


def test_a_failure_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepFailed, match="pip ended with 1"):
        run(monkeypatch, Told(), StepFailed("pip ended with 1", "install_failed"))
