"""The way back: order, tolerance for nodes that were never reached, and what serves again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from facts.endpoint import Answer, Endpoint
from facts.node import AskFailed
from operations import adopt, rollback
from operations import run as operations_run
from operations.rollback import installed_endpoint, revert_change, undone
from operations.run import StepFailed
from schema.plan import UNIT
from schema.render_engine import NODE_PATH, SCRIPT_PATH
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.builders.rigs import healthy, serving
from tests.unit.operations.doubles import FakeState, Node, failing

PLAN = tiny_plan()
CHANGE = "20260530T065800Z-serve-1a2b"
STOPPED = {"op": "unit", "unit": UNIT, "active": "stop"}
ACTIVE = {"change": {"steps": [STOPPED]}, "ok": True}


def answer(host: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    """A journal in which the unit was stopped."""
    return ACTIVE if verb == "journal" else {"ok": True, "status": "ROLLED_BACK"}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> FakeState:
    """Two hosts whose `systemctl stop` is recorded as a call, with no engine after the undo."""
    state = FakeState()
    state.node = Node(monkeypatch, answer)

    def in_host(state_: Any, host: Any, function: Any, command: str, **_: Any) -> Any:
        state.node.calls.append((host.name, "stop"))
        assert "systemctl stop rigbook-engine.service" in str(command)
        return True, SimpleNamespace(stderr="")

    for host in state.hosts.values():
        host.run_shell_command = None
        host.data = {}
    monkeypatch.setattr(operations_run, "in_host", in_host)
    down = SimpleNamespace(active="inactive")
    monkeypatch.setattr(rollback, "unit_states", lambda *_: dict.fromkeys((HEAD, WORKER), down))
    return state


def undo_of(rig: FakeState, plan: Any, change: str, nodes: set[str]) -> str:
    """The undo that asks no engine."""
    return undone(rig, sorted(nodes), {"change": change}, 60)


def calls(rig: FakeState) -> list[tuple[str, str]]:
    """What was asked, without looks into the journal."""
    return [call for call in rig.node.calls if call[1] != "journal"]


def test_head_stops_first_and_starts_last(rig: FakeState) -> None:
    """A worker that comes back before its head finds nobody, and the other way round."""
    said = revert_change(rig, PLAN, CHANGE, {HEAD, WORKER}, ("/b", "/a"))
    assert calls(rig) == [(HEAD, "stop"), (WORKER, "stop"), (WORKER, "undo"), (HEAD, "undo")]
    undo = rig.node.requests[-1]
    assert undo == {"change": CHANGE, "overwrite": ["/a", "/b"], "start_units": True}
    assert said == f"change {CHANGE} ROLLED_BACK; no engine ran before, none runs now"


def test_a_node_that_does_not_answer_keeps_the_others_from_nothing(rig: FakeState) -> None:
    """Its firmware hangs: the head stops what nobody has proven, and the line says what is left."""
    silent = failing(WORKER, "journal")
    rig.node.answer = lambda name, *asked: (
        silent(name, *asked) if name == WORKER else answer(name, *asked)
    )
    with pytest.raises(StepFailed) as failed:
        revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert calls(rig) == [(HEAD, "stop"), (HEAD, "undo")]
    assert f"{WORKER} keeps what was not proven" in str(failed.value)
    assert f"sudo rignode undo {CHANGE}" in str(failed.value)


STOPS = {"the line is lost": EOFError("cut"), "systemd says no": "Job timed out", "both fail": "no"}


@pytest.mark.parametrize("how", STOPS)
def test_a_stop_that_fails_on_one_node_keeps_no_node_from_its_undo(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The head would stay stopped, and nothing undone anywhere."""

    def in_host(state: Any, host: Any, function: Any, command: str, **_: Any) -> Any:
        rig.node.calls.append((host.name, "stop"))
        said = STOPS[how]
        if isinstance(said, Exception) and host.name == WORKER:
            raise said
        return host.name != WORKER, SimpleNamespace(stderr=str(said))

    monkeypatch.setattr(operations_run, "in_host", in_host)
    if how == "both fail":
        refuses = failing(WORKER, "undo", "locked")
        rig.node.answer = lambda name, verb, request: (
            ACTIVE if verb == "journal" else refuses(name, verb, request)
        )
        with pytest.raises(StepFailed, match=f"{WORKER}: systemctl stop.*no.*stand-in failure"):
            revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    else:
        assert "ROLLED_BACK" in revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
        assert f"{WORKER}: systemctl stop rigbook-engine.service" in rig.said()
    assert calls(rig) == [(HEAD, "stop"), (WORKER, "stop"), (WORKER, "undo"), (HEAD, "undo")]


def test_what_another_run_took_up_is_neither_stopped_nor_undone(rig: FakeState) -> None:
    """The run that slept would stop the engine that the other one has proven."""
    theirs = {"id": CHANGE, "run": "b2", "steps": [STOPPED]}
    rig.node.answer = lambda *_: {"ok": True, "change": theirs}
    with pytest.raises(StepFailed, match="was taken up by another run"):
        revert_change(rig, PLAN, CHANGE, {HEAD, WORKER}, run="a1")
    assert calls(rig) == []


def test_what_is_undone_already_is_not_stopped_again(rig: FakeState) -> None:
    """A person at the console was faster, and the former engine runs."""
    undone = {"id": CHANGE, "run": "a1", "status": "ROLLED_BACK", "steps": [STOPPED]}
    rig.node.answer = lambda *_: {"ok": True, "status": "ROLLED_BACK", "change": undone}
    revert_change(rig, PLAN, CHANGE, {HEAD, WORKER}, run="a1")
    assert calls(rig) == [(WORKER, "undo"), (HEAD, "undo")]


def test_the_former_engine_is_asked_as_its_own_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that thinks first needs its tokens; eight of them are all thought."""
    documents = {d.path: d.content for d in PLAN.documents[HEAD]}
    said = installed_endpoint(documents[SCRIPT_PATH], documents[NODE_PATH], "h")
    assert said is not None and not said.reasoning
    assert said == Endpoint(f"http://{PLAN.rig.head.lan_address}:8000", "tiny")
    thinking = json.loads(documents[NODE_PATH])
    thinking["endpoint"].update(reasoning=True, chat_template_kwargs={"thinking": True})
    said = installed_endpoint(documents[SCRIPT_PATH], json.dumps(thinking), "h")
    assert said is not None and said.reasoning and dict(said.chat_template_kwargs)["thinking"]
    worker = {d.path: d.content for d in PLAN.documents[WORKER]}
    script = documents[SCRIPT_PATH]
    for text in (worker[NODE_PATH], "[]", ""):
        assert installed_endpoint(script, text, "h") == Endpoint("http://h:8000", "tiny")


def test_only_nodes_that_have_the_change(rig: FakeState) -> None:
    """The other one is left alone."""
    revert_change(rig, PLAN, CHANGE, {WORKER})
    assert {name for name, _ in rig.node.calls} == {WORKER}


def test_an_engine_that_the_change_did_not_touch_keeps_running(rig: FakeState) -> None:
    """A change that only came to the files is undone without a stop."""
    document = {"ok": True, "status": "ROLLED_BACK", "change": {"steps": [{"op": "file"}]}}
    rig.node.answer = lambda *_: document
    revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert calls(rig) == [(WORKER, "undo"), (HEAD, "undo")]


@pytest.mark.parametrize("verb", ["journal", "undo"])
def test_a_node_that_never_got_the_change_is_fine(rig: FakeState, verb: str) -> None:
    """The first step failed there: there is nothing to undo."""
    rig.node.answer = failing(WORKER, verb, "no_change")
    revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert (HEAD, "undo") in calls(rig)


@pytest.mark.parametrize("verb", ["journal", "undo"])
def test_any_other_refusal_is_told(rig: FakeState, verb: str) -> None:
    """A file that was edited since, a lock, a lost line."""
    rig.node.answer = failing(WORKER, verb, "edited")
    with pytest.raises(StepFailed, match="stand-in failure"):
        revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})


def test_an_undo_that_did_not_roll_back_is_told(rig: FakeState) -> None:
    """Node answers without an error where nothing is left to undo; the status is what counts."""
    said = {"ok": True, "status": "INCONSISTENT", "detail": "its steps are undone already"}
    rig.node.answer = lambda host, verb, _: ACTIVE if verb == "journal" else said
    with pytest.raises(StepFailed, match=f"{WORKER}: change {CHANGE} is INCONSISTENT: its steps"):
        revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (serving, "tiny serves again: 6 characters"),
        (healthy, "the former engine was started (no endpoint to ask)"),
    ],
)
def test_a_former_engine_has_to_answer(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch, seen: Any, line: str
) -> None:
    """It is asked where its restored script says."""
    asked: list[Endpoint] = []
    running = SimpleNamespace(active="active")
    monkeypatch.setattr(rollback, "unit_states", lambda *_: {HEAD: running, WORKER: running})
    monkeypatch.setattr(rollback, "observe", lambda *_, **__: seen(PLAN))

    def wait(state: Any, head: str, nodes: Any, endpoint: Endpoint, budget: int) -> Answer:
        asked.append(endpoint)
        return Answer(True, "6 characters")

    monkeypatch.setattr(rollback, "wait_for_answer", wait)
    assert line in revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert asked == ([Endpoint("http://127.0.0.2:8000", "tiny")] if seen is serving else [])


@pytest.mark.parametrize(("head", "worker", "down"), [
    ("active", "inactive", WORKER), ("activating", "failed", WORKER), ("inactive", "active", HEAD),
    ("active", "deactivating", WORKER),
])  # fmt: skip
def test_a_rank_that_was_down_before_is_told_at_once(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch, head: str, worker: str, down: str
) -> None:
    """Fault 56: half a pair gives no answer, so none is waited for; the change itself is undone."""
    states = {HEAD: SimpleNamespace(active=head), WORKER: SimpleNamespace(active=worker)}
    monkeypatch.setattr(rollback, "unit_states", lambda *_: states)
    monkeypatch.setattr(rollback, "wait_for_answer", lambda *_: pytest.fail("it was waited for"))
    # also where the change had touched one of them alone
    said = revert_change(rig, PLAN, CHANGE, {HEAD})
    assert f"ROLLED_BACK; {down} is {states[down].active}, as the change found it" in said
    assert "pyinfra INVENTORY deploys/serve.py -y" in said


@pytest.mark.parametrize("silent", [(HEAD, WORKER), (HEAD,), (WORKER,)])
def test_a_host_that_does_not_say_its_state_is_named(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...]
) -> None:
    """Nobody saw whether an engine runs there: neither "none runs" nor "serves" is known."""
    down = SimpleNamespace(active="inactive")
    states = {name: None if name in silent else down for name in (HEAD, WORKER)}
    monkeypatch.setattr(rollback, "unit_states", lambda *_: states)
    with pytest.raises(StepFailed) as failed:
        revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert f"{', '.join(silent)} did not say whether" in str(failed.value)
    assert "none runs" not in str(failed.value)


@pytest.mark.parametrize("undo", [revert_change, undo_of])
def test_a_change_that_no_node_has_was_never_undone(rig: FakeState, undo: Any) -> None:

    def unknown(host: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        raise StepFailed(f"no change {CHANGE}", "no_change")

    rig.node.answer = unknown
    said = undo(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert said == f"nothing was changed: no node has change {CHANGE}"


def test_a_pair_that_was_down_as_a_whole_is_down_again(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = dict.fromkeys((HEAD, WORKER), SimpleNamespace(active="inactive"))
    monkeypatch.setattr(rollback, "unit_states", lambda *_: states)
    said = revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert said == f"change {CHANGE} ROLLED_BACK; no engine ran before, none runs now"


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("vllm serve /m --served-model-name tiny --port 9000", ("http://h:9000", "tiny")),
        ("exec vllm serve \\\n  --served-model-name 'a b'", ("http://h:8000", "a b")),
        ("# --served-model-name no\nvllm serve /m --port 1", None),
        ("vllm serve 'open quote", None),
        ("", None),
    ],
)
def test_a_scripts_endpoint(script: str, wanted: tuple[str, str] | None) -> None:
    """Read from the command line that the former engine was started with."""
    found = installed_endpoint(script, "", "h")
    assert found == (Endpoint(*wanted) if wanted else None)


def test_a_part_of_the_undo_that_comes_with_a_boot_gets_one(
    rig: FakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former driver's module: the node that waits for it boots, and the undo is finished."""
    boots = {HEAD: "b1", WORKER: "b1"}
    steps = [{**STOPPED, "state": "done"}, {"op": "packages", "state": "done", "boot": "b1"}]

    def answer(host: str, verb: str, _: object) -> dict[str, Any]:
        if verb == "journal":
            return {"ok": True, "change": {"steps": steps if host == WORKER else steps[:1]}}
        if host == WORKER and boots[host] == "b1":
            raise StepFailed("undo: the former one comes with the next boot", "undo_incomplete")
        return {"ok": True, "status": "ROLLED_BACK"}

    rig.node.answer = answer
    monkeypatch.setattr(rollback, "fact_of", lambda _, host, __: boots[host.name])
    reboots = lambda _, host, before, __: boots.update({host.name: f"after {before}"})  # noqa: E731
    monkeypatch.setattr(rollback, "reboot_now", reboots)
    assert "ROLLED_BACK" in revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert boots == {HEAD: "b1", WORKER: "after b1"}
    assert "boots once, to undo the rest" in rig.said()


# What an undo of a take-over says of the former engine is what was answered.

SERVED = adopt.Served(HEAD, 8123, "theirs", "unit vllm.service", answered=True)
OK, NO = Answer(True, "6 characters"), Answer(False, "connection refused")


def run(
    monkeypatch: pytest.MonkeyPatch, served: adopt.Served, *replies: Answer,
    by_hand: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """The line, and what was logged; the last reply comes again and again, 40 s apart."""
    said: list[str] = []
    asked: list[Endpoint] = []
    rows = list(replies)
    clock = SimpleNamespace(monotonic=lambda: 40.0 * len(asked))

    def ask(where: Endpoint, timeout_s: float) -> Answer:
        asked.append(where)
        return rows.pop(0) if len(rows) > 1 else rows[0]

    monkeypatch.setattr(adopt, "ask", ask)
    monkeypatch.setattr(adopt, "time", clock)
    monkeypatch.setattr(adopt, "gevent", SimpleNamespace(sleep=lambda _: None))
    host = SimpleNamespace(log=said.append)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda _: host))
    return adopt.answers_again(state, PLAN, served, by_hand), said, asked


def test_it_is_waited_for_where_it_was_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    line, said, asked = run(monkeypatch, SERVED, NO, NO, OK)
    assert line == "theirs of unit vllm.service serves again: 6 characters"
    assert asked[0].base_url == "http://127.0.0.2:8123" and asked[0].model == "theirs"
    assert said[0] == "the former engine is loading: 40 s of 300 s"


def test_one_that_wants_a_key_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    line, _, _ = run(monkeypatch, SERVED, Answer(False, "401; set RIGBOOK_API_KEY", alive=True))
    assert "serves again: 401" in line


def test_none_within_the_budget_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepFailed, match=r"as before, but does not answer after 320 s: connection"):
        run(monkeypatch, SERVED, NO)


def test_one_that_gave_no_answer_before_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served = adopt.Served(HEAD, 8123, "theirs", "pid 7")
    line, _, asked = run(monkeypatch, served, NO)
    assert "gave no answer before the take-over either" in line and not asked


def test_one_that_was_started_by_hand_is_asked_once_and_its_commands_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [{"op": "unit"}, {"op": "former_engine", "by": [], "commands": ["bash serve.sh"]}]
    unit = {"op": "former_engine", "by": ["vllm.service"], "commands": ["bash serve.sh"]}
    old = {"op": "former_engine", "by": [], "kept": ["0" * 64]}
    changes = {"a": {"steps": steps}, "b": {"steps": [unit]}, "c": {"steps": [old]}, "d": None}
    told = adopt.started_by_hand(changes)
    assert told == ["a: bash serve.sh", "c: sudo rignode status"]
    served = replace(SERVED, by="container vllm_ds4")
    line, _, asked = run(monkeypatch, served, NO, by_hand=tuple(told))
    assert line == (
        "container vllm_ds4 was started by hand; to start it again: a: bash serve.sh; c: sudo "
        "rignode status"
    )
    assert len(asked) == 1
    # somebody did
    line, _, _ = run(monkeypatch, served, OK, by_hand=tuple(told))
    assert line == "theirs of container vllm_ds4 serves again: 6 characters"


IN_POD = {"namespace": "default", "deployment": "lucebox", "container": "engine"}


@pytest.mark.parametrize(("said", "answer_is"), [
    ({"answered": True, "detail": "5 letters", "final": False, "model": "theirs"},
     Answer(True, "5 letters", model="theirs")),
    ({"answered": False, "detail": "no pod of it runs", "final": False, "model": ""},
     Answer(False, "no pod of it runs")),
    (AskFailed("lab1: kube answer: there is no kubectl on this host"),
     Answer(False, "lab1: kube answer: there is no kubectl on this host")),
    ({"answered": 7}, None),
])  # fmt: skip
def test_one_in_a_pods_network_is_asked_by_its_node(
    monkeypatch: pytest.MonkeyPatch, said: Any, answer_is: Answer | None
) -> None:
    sent: list[Any] = []

    def ask_node(state: Any, host: Any, verb: str, request: Any, limit_s: int) -> Any:
        sent.append((host, verb, request, limit_s))
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(adopt, "ask_node", ask_node)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda name: name))
    found = adopt.ask_former(state, PLAN, replace(SERVED, pod=IN_POD), 900.0)
    assert found == answer_is if answer_is else not found.ok and "answered" in found.detail
    host, verb, request, limit_s = sent[0]
    # node takes 600 s for one question
    assert (host, verb, request["timeout_s"], limit_s) == (HEAD, "kube answer", 600, 640)
    assert request["kubectl"] == "auto" and request["port"] == 8123
    assert request["deployment"] == "lucebox" and request["model"] == "theirs"


def test_it_is_read_from_any_nodes_change() -> None:
    blob = {"blob": {adopt.CONTEXT: asdict(SERVED)}}
    assert adopt.former_in({"a": None, "b": {"blob": None}, "c": blob}) == SERVED
    assert adopt.former_in({"a": {"blob": {"baseline": 3}}}) is None
