"""The way back: order, tolerance for nodes that were never reached, and what serves again."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from facts.endpoint.completion import Answer, Endpoint
from operations.change import node_call
from operations.change.node_call import StepFailed
from operations.rollback import revert
from operations.rollback.revert import installed_endpoint, revert_change, undone
from schema.desired.plan import UNIT
from schema.render.engine_files import NODE_PATH, SCRIPT_PATH
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.builders.snapshots import healthy, serving
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
    monkeypatch.setattr(node_call, "in_host", in_host)
    down = SimpleNamespace(active="inactive")
    monkeypatch.setattr(revert, "unit_states", lambda *_: dict.fromkeys((HEAD, WORKER), down))
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

    monkeypatch.setattr(node_call, "in_host", in_host)
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
    monkeypatch.setattr(revert, "unit_states", lambda *_: {HEAD: running, WORKER: running})
    monkeypatch.setattr(revert, "observe", lambda *_, **__: seen(PLAN))

    def wait(state: Any, head: str, nodes: Any, endpoint: Endpoint, budget: int) -> Answer:
        asked.append(endpoint)
        return Answer(True, "6 characters")

    monkeypatch.setattr(revert, "wait_for_answer", wait)
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
    monkeypatch.setattr(revert, "unit_states", lambda *_: states)
    monkeypatch.setattr(revert, "wait_for_answer", lambda *_: pytest.fail("it was waited for"))
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
    monkeypatch.setattr(revert, "unit_states", lambda *_: states)
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
    monkeypatch.setattr(revert, "unit_states", lambda *_: states)
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
    monkeypatch.setattr(revert, "fact_of", lambda _, host, __: boots[host.name])
    reboots = lambda _, host, before, __: boots.update({host.name: f"after {before}"})  # noqa: E731
    monkeypatch.setattr(revert, "reboot_now", reboots)
    assert "ROLLED_BACK" in revert_change(rig, PLAN, CHANGE, {HEAD, WORKER})
    assert boots == {HEAD: "b1", WORKER: "after b1"}
    assert "boots once, to undo the rest" in rig.said()
