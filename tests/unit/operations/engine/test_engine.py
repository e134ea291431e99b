"""Whose completion it is: recorded snapshots of a rig before an answer and after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from facts.endpoint import Answer, Endpoint
from facts.plain import UnitState
from node.change import kinds
from operations import engine as operations_engine
from operations.engine import (
    TRIES,
    NotOurs,
    ask_ours,
    file_steps,
    folder_steps,
    timer_steps,
    unit_steps,
)
from operations.run import StepFailed
from schema.plan import ENGINE_DIR, PAIR_TIMER, Document
from schema.render_engine import PAIR_TIMER_PATH, SCRIPT_PATH
from schema.snapshot import FileState, Unit, Unreadable
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.builders import rigs
from tests.unit.builders.engine_parts import FOREIGN, absent_file, foreign_container, written_file
from tests.unit.builders.host_parts import absent_unit, pair_timer, port, process, unit
from tests.unit.builders.rigs import put, serving, spark_plan
from tests.unit.operations.doubles import FakeState

PLAN = tiny_plan()
WHERE = Endpoint(f"http://{PLAN.rig.head.lan_address}:8000", "tiny")
GOOD = Answer(True, "6 characters in 0.1 s")
SILENT = Unreadable(unreadable="no answer in 20 s")
FOREIGN_PORT = port(8000, pid=77, process="python3", unit=None, container_id=FOREIGN)
SEED = unit(name="ds4.service", exec_start=("/usr/bin/docker", "exec", "vllm_ds4", "x"))
FLAG = "engine_processes.0.argv.=512"
# What is broken, by node and path, and why it is no proof; a fault that waiting does not mend
# names whose engine it is, or what it runs.
NOT_YET: dict[str, tuple[str, str, Any]] = {
    "nothing listens on port 8000": (HEAD, "ports", ()),
    "is activating/auto-restart": (HEAD, "units.0", unit(active_state="activating",
                                                         sub_state="auto-restart")),
    f"{WORKER} is failed": (WORKER, "units.0", unit(active_state="failed")),
    f"{WORKER} is not there": (WORKER, "units", ()),
    f"{WORKER} is active, and no engine process": (WORKER, "engine_processes", ()),
    "is not visible": (HEAD, "ports.1.pid", None),
    "whose container holds port 8000: no answer": (HEAD, "docker", SILENT),
    "who holds port 8000 of @fake/lab1: no answer": (HEAD, "ports", SILENT),
    f"the unit of {WORKER} cannot be read": (WORKER, "units", SILENT),
    f"the processes of {WORKER} cannot be read": (WORKER, "engine_processes", SILENT),
    f"the launch script of {WORKER} cannot be read": (WORKER, "files", SILENT),
}  # fmt: skip
NEVER: dict[str, list[tuple[str, str, Any]]] = {
    "held by pid 77 (python3, container vllm_ds4), not by rigbook-engine.service; on @fake/lab1: "
    "sudo systemctl stop ds4.service && sudo docker stop vllm_ds4 (": [
        (HEAD, "ports.1", FOREIGN_PORT), (HEAD, "units.+", SEED),
        (HEAD, "docker.containers.+", foreign_container()),
    ],
    # both listen (SO_REUSEPORT): nobody can tell which one answered
    "held by pid 77 (python3, container badbad111111)": [(HEAD, "ports.+", FOREIGN_PORT)],
    "held by pid 7 (nginx, unit nginx.service)": [
        (HEAD, "ports.1", port(8000, pid=7, process="nginx", unit="nginx.service"))],
    "held by pid 8 (python3, unit none), not by rigbook-engine.service; on @fake/lab1: sudo kill": [
        (HEAD, "ports.1", port(8000, pid=8, process="python3", unit=None))],
    f"the engine on {WORKER} was not started as": [(WORKER, FLAG, "1024")],
    "it has '', the script '29501'": [(HEAD, "engine_processes.0.argv.=29501", "")],
}  # fmt: skip
STILL_OURS: dict[str, tuple[str, str, Any]] = {
    "a key that the host does not tell": (HEAD, FLAG, "***"),
    "a title that hides the command line": (HEAD, "engine_processes.0.argv", ("VLLM::APIServer",)),
    "a script in another form": (HEAD, "files.0.content", "#!/bin/sh\n/opt/start\n"),
    "somebody on the loopback alone": (HEAD, "ports.+", port(8000, address="127.0.0.1", pid=9)),
}


class Rig:
    """Looks in turn (the last again and again), and the count of completions between them."""

    def __init__(self, patch: pytest.MonkeyPatch, *looks: Any) -> None:
        self.looks, self.asked = list(looks), 0
        patch.setattr(operations_engine, "look_at_engine", lambda *_: self._next())

    def _next(self) -> Any:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def _answer(self, where: Endpoint) -> Answer:
        assert where.ours  # looked at: it may have the key
        self.asked += 1
        return GOOD

    def ask(self) -> Answer:
        """What the function under test says."""
        state: Any = None
        return ask_ours(state, HEAD, (HEAD, WORKER), WHERE, self._answer)


def seen(*breaks: tuple[str, str, Any]) -> dict[str, Any]:
    """The serving pair with these parts broken."""
    found: dict[str, Any] = dict(serving(PLAN))
    for node, path, value in breaks:
        found[node] = put(found[node], path, value)
    return found


def test_ours_before_and_after_is_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, seen())
    assert rig.ask() is GOOD and rig.asked == 1


@pytest.mark.parametrize("words", STILL_OURS)
def test_what_tells_nothing_is_no_fault(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    assert Rig(monkeypatch, seen(STILL_OURS[words])).ask() is GOOD


@pytest.mark.parametrize("why", NOT_YET)
def test_what_is_not_up_or_not_readable_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Before the question, and where it becomes so during the answer."""
    for looks in ([seen(NOT_YET[why])], [seen(), seen(NOT_YET[why])]):
        answer = Rig(monkeypatch, *looks).ask()
        assert not answer.ok and not answer.final and why in answer.detail, answer


def test_a_node_that_cannot_be_looked_at_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Rig(monkeypatch, {**seen(), WORKER: SILENT}).ask()
    assert not answer.ok and answer.detail == f"{WORKER} could not be looked at: no answer in 20 s"


@pytest.mark.parametrize("why", NEVER)
def test_whose_it_is_instead_is_named(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    for looks in ([seen(*NEVER[why])], [seen(), seen(*NEVER[why])]):
        with pytest.raises(NotOurs) as failed:
            Rig(monkeypatch, *looks).ask()
        assert why in str(failed.value)


# vllm PR#22205 and nvidia-smi of a node that serves with it: VLLM::Worker_TP0_EP0
TITLES = {
    "VLLM::Worker_TP1_EP1": True, "VLLM::Worker_DP0_PP0_TP1_EP1": True, "VLLM::Worker_TP1": False,
    "VLLM::Worker_PP1_TP0": False, "VLLM::EngineCore": True, "VLLM::Worker": True,
}  # fmt: skip


@pytest.mark.parametrize("title", TITLES)
def test_expert_parallel_is_seen_in_the_title(monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    """On every node, once it has answered; without the flag no title matters."""
    own = (process(901, "VLLM::EngineCore"), process(903, title))
    looks = seen((HEAD, "engine_processes", own[:1]), (WORKER, "engine_processes", own))
    assert Rig(monkeypatch, looks).ask() is GOOD
    for node in (HEAD, WORKER):
        shot = looks[node]
        script = next(f for f in shot.files if f.path == SCRIPT_PATH)
        text = str(script.content).replace(
            " --tensor-parallel-size", " --enable-expert-parallel --tensor-parallel-size"
        )
        assert text != script.content
        files = tuple(f.model_copy(update={"content": text}) if f is script else f
                      for f in shot.files)  # fmt: skip
        looks[node] = put(shot, "files", files)
    if TITLES[title]:
        assert Rig(monkeypatch, looks).ask() is GOOD
        return
    with pytest.raises(NotOurs, match=f"of {WORKER} enables expert parallel, .* {title} runs"):
        Rig(monkeypatch, looks).ask()


@pytest.mark.parametrize(("node", "path", "value"), [
    (HEAD, "ports.1.start_ticks", 8), (HEAD, "ports.1.pid", 911),
    (HEAD, "identity.boot_id", "another"), (WORKER, "units.0.main_pid", 901),
])  # fmt: skip
def test_an_engine_that_changed_meanwhile_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, node: str, path: str, value: object
) -> None:
    """A pid is given anew; its start, with the boot, is not."""
    first, other = seen(), seen((node, path, value))
    rig = Rig(monkeypatch, first, other, other)
    assert rig.ask() is GOOD and rig.asked == 2
    rig = Rig(monkeypatch, *[first, other] * TRIES)
    answer = rig.ask()
    assert not answer.ok and "started anew while it was asked" in answer.detail
    assert rig.asked == TRIES


def test_an_engine_in_a_venv_is_of_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No docker on that host: its own unit alone tells."""
    plan = rigs.tower_plan()
    name, where = plan.rig.head.name, Endpoint(f"http://{plan.rig.head.lan_address}:8000", "tiny")
    there: Any = rigs.serving_tower(plan)
    state: Any = None
    monkeypatch.setattr(operations_engine, "look_at_engine", lambda *_: there)
    assert ask_ours(state, name, (name,), where, lambda _: GOOD) is GOOD
    there = {name: put(there[name], "ports.1.unit", "vllm-old.service")}
    with pytest.raises(NotOurs, match=r"unit vllm-old\.service\).*sudo systemctl stop vllm-old"):
        ask_ours(state, name, (name,), where, lambda _: GOOD)


# Which steps bring a node's files, folders and unit to what the plan says.

DOCUMENTS = PLAN.documents[HEAD]
SCRIPT = DOCUMENTS[0]


def states(documents: tuple[Document, ...] = DOCUMENTS) -> dict[str, FileState]:
    """The files as serve wrote them."""
    return {document.path: written_file(document) for document in documents}


def changed(**values: object) -> dict[str, FileState]:
    """The same with the launch script's state changed."""
    return {**states(), SCRIPT.path: states()[SCRIPT.path].model_copy(update=values)}


def test_equal_files_need_no_step() -> None:
    """The environment's content stays on the host; its hash is enough."""
    assert states()[f"{ENGINE_DIR}/engine.env"].content is None
    assert file_steps(DOCUMENTS, states()) == []


@pytest.mark.parametrize(
    "values",
    [
        {"sha256": "0" * 64},
        {"mode": "0777"},
        {"uid": 1000},
        {"gid": 1000},
        {"kind": "link", "sha256": None},
    ],
    ids=str,
)
def test_any_difference_needs_the_step(values: dict[str, object]) -> None:
    """Content, mode and owner: a script that another user can write runs as root."""
    (step,) = file_steps(DOCUMENTS, changed(**values))
    assert (step["path"], step["content"], step["mode"]) == (
        SCRIPT.path,
        SCRIPT.content,
        SCRIPT.mode,
    )
    assert (step["owner"], step["group"]) == ("root", "root")


def test_a_step_expects_what_the_diff_showed() -> None:
    """An edit between look and write is refused by node, not overwritten."""
    (step,) = file_steps(DOCUMENTS, changed(sha256="0" * 64))
    assert step["expect_sha256"] == "0" * 64
    for nothing in ({}, {d.path: absent_file(d.path) for d in DOCUMENTS}):
        steps = file_steps(DOCUMENTS, nothing)
        assert [step["expect_sha256"] for step in steps] == ["absent"] * len(DOCUMENTS)


def test_only_a_script_is_checked_by_bash() -> None:
    """A syntax error never replaces a launch script that works."""
    checks = {str(step["path"]): step.get("validate") for step in file_steps(DOCUMENTS, {})}
    assert checks.pop(SCRIPT.path) == ["bash", "-n", "{tmp}"]
    assert set(checks.values()) == {None}


def test_absent_folders_are_made_with_their_owner() -> None:
    """The engine's and those of compiled kernels are root's, the caches are the login user's; the
    weights' is never made."""
    spec = spark_plan().specs["spark1"]
    assert spec.cache_folders and spec.jit_folders
    paths = [ENGINE_DIR, "/etc/rigbook", *spec.jit_folders, *spec.cache_folders, spec.weights]
    steps = folder_steps(spec, {path: absent_file(path) for path in paths}, "milo")
    owners = {step["path"]: step["owner"] for step in steps}
    assert owners == {
        "/etc/rigbook": "root",
        ENGINE_DIR: "root",
        **dict.fromkeys(spec.jit_folders, "root"),
        **dict.fromkeys(spec.cache_folders, "milo"),
    }
    order = [step["path"] for step in steps]
    assert order.index("/etc/rigbook") < order.index(ENGINE_DIR)
    made = [path for path in order if path in spec.jit_folders]
    assert made == sorted(spec.jit_folders, key=len), "a folder's parent comes first"


def test_folders_that_are_there_or_unknown_are_left_alone() -> None:
    """Nothing is made where nobody looked, or where something stands."""
    spec = spark_plan().specs["spark1"]
    there = absent_file(ENGINE_DIR).model_copy(update={"kind": "directory"})
    assert folder_steps(spec, {}, "milo") == []
    assert folder_steps(spec, {ENGINE_DIR: there}, "milo") == []
    link = absent_file(ENGINE_DIR).model_copy(update={"kind": "link"})
    assert folder_steps(spec, {ENGINE_DIR: link}, "milo") == []


@pytest.mark.parametrize(
    ("now", "files_change", "wanted"),
    [
        (None, False, True),
        (absent_unit(), False, True),
        (unit(enabled="disabled"), False, True),
        (unit(enabled="masked"), True, True),
        (unit(), True, True),
        (unit(needs_reload=True), False, None),
    ],
)
def test_the_unit_is_enabled_and_reloaded_where_needed(
    now: object, files_change: bool, wanted: bool | None
) -> None:
    """One step, which never starts or stops: that is another step of the order."""
    (step,) = unit_steps(now, files_change)
    assert (step["enabled"], step["active"], step["daemon_reload"]) == (wanted, None, True)


def test_an_enabled_unit_as_written_needs_nothing() -> None:
    """A second run does not even reload systemd."""
    assert unit_steps(unit(), False) == []


def test_node_accepts_every_step() -> None:
    """The steps of a fresh rig, against node's own checks."""
    spec = dataclasses.replace(PLAN.specs[HEAD], cache_folders=("/home/milo/.cache",))
    absent = {p: absent_file(p) for p in ("/etc/rigbook", ENGINE_DIR, *spec.cache_folders)}
    steps = folder_steps(spec, absent, "root") + file_steps(DOCUMENTS, {}) + unit_steps(None, True)
    assert len(steps) == 3 + len(DOCUMENTS) + 1
    for number, step in enumerate(steps):
        kinds.parse(step, f"steps[{number}]")


@pytest.mark.parametrize(
    ("timer", "files", "active"),
    [
        (None, (), "start"),
        (pair_timer(enabled="disabled"), (), "start"),
        (pair_timer(active_state="inactive"), (), "start"),
        # A timer that runs goes on by its old file until it is started anew.
        (pair_timer(), (PAIR_TIMER_PATH,), "restart"),
        (pair_timer(), (f"{PAIR_TIMER_PATH}.d/x.conf",), None),
        (pair_timer(), (), None),
    ],
)
def test_a_timer_runs_as_its_file_says(
    timer: Unit | None, files: tuple[str, ...], active: str | None
) -> None:
    steps = timer_steps(PAIR_TIMER, timer, files)
    assert [(step["unit"], step["enabled"], step["active"]) for step in steps] == (
        [(PAIR_TIMER, True, active)] if active else []
    )


# Waiting for an answer: it ends early for a reason, late with a reason, and tells meanwhile.

ENDPOINT = Endpoint("http://127.0.0.2:8000", "tiny")
LOADING = Answer(False, "HTTP 503: loading")


def state_of(**changes: object) -> UnitState:
    """A unit that runs."""
    values = {"active": "active", "sub": "running", "restarts": 0, "result": "success",
              "exit_status": 0, "invocation": "one", "last_line": "loading shard 3"}  # fmt: skip
    return UnitState(**{**values, **changes})


TRACE = [
    "(EngineCore pid=7) Traceback (most recent call last):",
    '(EngineCore pid=7)   File "/x/vllm/v1/core/kv_cache_utils.py", line 616, in check',
    "(EngineCore pid=7) ValueError: No available memory for the cache blocks.",
    *["(APIServer pid=1) INFO shutting down"] * 100,
]


def test_a_failed_start_tells_its_root_cause_in_place_of_its_last_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's root cause stands 70 to 115 lines above the end (field notes of a real GPU)."""
    monkeypatch.setattr(operations_engine, "fact_of", lambda *_: TRACE)
    said = operations_engine.log_tail(FakeState(), HEAD)
    assert said.splitlines()[0] == (
        f"{HEAD}: root cause: ValueError: No available memory for the cache blocks. "
        "(vllm/v1/core/kv_cache_utils.py:616 in check)"
    )
    assert "shutting down" not in said and "journalctl -u rigbook-engine.service" in said
    monkeypatch.setattr(operations_engine, "fact_of", lambda *_: TRACE[3:])
    assert operations_engine.log_tail(FakeState(), HEAD).startswith(
        f"the last 40 log lines of {HEAD}:"
    )


class Engine:
    """Doubles of the endpoint and the units: what they say at each ask, the last for ever."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        answers: list[Answer],
        worker: list[UnitState | None] | None = None,
        own: list[str | StepFailed | None] | None = None,
    ) -> None:
        self.state = FakeState()
        # systemd calls it active once it has answered on its own host
        self.head = state_of(active="activating", sub="start-post")
        self.asked = 0
        self._answers = self._repeat(answers)
        self._worker = self._repeat(worker or [state_of()])
        patch.setattr(operations_engine, "ask", self._ask)
        patch.setattr(operations_engine, "unit_states", self._units)
        patch.setattr(operations_engine, "_until_started", lambda *_: None)
        patch.setattr(operations_engine, "fact_of", lambda *_: ["last words"])
        patch.setattr(operations_engine, "POLL_S", 0.01)
        self._own = self._repeat(own or [None])
        patch.setattr(operations_engine, "ask_ours", self._ask_ours)

    @staticmethod
    def _repeat(items: list) -> Iterator:
        yield from items[:-1]
        while True:
            yield items[-1]

    def _ask(self, endpoint: Endpoint, timeout_s: float) -> Answer:
        self.asked += 1
        return next(self._answers)

    def _ask_ours(self, *known: object) -> Answer:
        """Ours (None), or why it cannot be told, or whose it is."""
        reason = next(self._own)
        if isinstance(reason, StepFailed):
            raise reason
        endpoint, question = known[3:5]
        assert callable(question)
        answer: Answer = question(endpoint) if reason is None else Answer(False, reason)
        return answer

    def _units(self, state: object, nodes: object) -> dict[str, UnitState | None]:
        return {HEAD: self.head, WORKER: next(self._worker)}

    def wait(self, budget_s: float = 5, patient: bool = False) -> Answer:
        """What the function under test says."""
        both = (HEAD, WORKER)
        return operations_engine.wait_for_answer(
            self.state, HEAD, both, ENDPOINT, budget_s, patient
        )


def test_the_first_good_answer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is waited out."""
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD])
    # one more behind the first: the one that is looked at
    assert engine.wait() is GOOD and engine.asked == 4


def test_an_answer_counts_when_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 55: our unit is not up yet, somebody answers; it is waited for, or ended at once."""
    engine = Engine(monkeypatch, [GOOD], own=["the unit is activating", None])
    assert engine.wait() is GOOD
    engine = Engine(monkeypatch, [GOOD], own=["the unit is activating"])
    with pytest.raises(StepFailed, match="the unit is activating"):
        engine.wait(0.05)
    engine = Engine(monkeypatch, [GOOD], own=[NotOurs("not this rig's engine")])
    with pytest.raises(NotOurs, match="not this rig's engine"):
        engine.wait()
    assert engine.asked == 1


def test_a_head_that_has_started_is_asked_by_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine gets no connection: what our engine says to its own host ends the wait."""
    engine = Engine(monkeypatch, [Answer(False, "ConnectTimeout")])
    engine.head = state_of()
    monkeypatch.setattr(operations_engine, "ask_ours", lambda *_: GOOD)
    assert engine.wait() is GOOD and engine.asked == 1


def test_ours_that_dies_while_somebody_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our unit fails beside an engine that answers: the wait does not go on to its budget."""
    now = state_of(sub="auto-restart", restarts=1)
    engine = Engine(monkeypatch, [GOOD], [state_of(), now], own=["the unit is activating"])
    with pytest.raises(StepFailed, match=f"{WORKER}: the engine ended"):
        engine.wait()


def test_an_answer_that_waiting_cannot_mend_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the answer and the log."""
    engine = Engine(monkeypatch, [Answer(False, "HTTP 500: CUDA error", final=True)])
    with pytest.raises(StepFailed, match=r"HTTP 500: CUDA error\n.*\n    last words"):
        engine.wait()
    assert engine.asked == 1


def test_the_budget_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last answer, the budget and the log."""
    engine = Engine(monkeypatch, [LOADING])
    with pytest.raises(StepFailed, match=r"\(budget 0.05 s\): HTTP 503: loading"):
        engine.wait(0.05)
    assert engine.asked > 1


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (state_of(active="failed", result="exit-code", exit_status=1), "unit failed: exit-code"),
        (state_of(restarts=1), "systemd restarts it"),
        (state_of(invocation="two"), "started the unit anew"),
    ],
)
def test_a_dead_worker_ends_it(
    monkeypatch: pytest.MonkeyPatch, now: UnitState, reason: str
) -> None:
    """A lost rank is told at once, although the head still loads."""
    engine = Engine(monkeypatch, [LOADING], [state_of(), now])
    with pytest.raises(StepFailed, match=f"{WORKER}: .*{reason}"):
        engine.wait()
    assert engine.asked == 1


def test_after_a_boot_a_second_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker came late, systemd starts the unit again: only one that it gave up ends the wait."""
    again = [state_of(), state_of(sub="auto-restart", restarts=1), state_of(restarts=1)]
    engine = Engine(monkeypatch, [LOADING, LOADING, LOADING, GOOD], again)
    assert engine.wait(patient=True) is GOOD
    given_up = state_of(active="failed", result="start-limit-hit")
    engine = Engine(monkeypatch, [LOADING], [state_of(), state_of(restarts=1), given_up])
    with pytest.raises(StepFailed, match=f"{WORKER}: unit failed: start-limit-hit"):
        engine.wait(patient=True)


def test_a_host_that_cannot_be_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short loss of the line is no death of the engine."""
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD], [state_of(), None, state_of()])
    assert engine.wait() is GOOD


def test_progress_has_phase_time_budget_and_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the head, now and then."""
    monkeypatch.setattr(operations_engine, "PROGRESS_S", 0.0)
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD], [state_of(), None, state_of()])
    engine.wait()
    first, second = engine.state.hosts[HEAD].lines
    assert first == f"waiting for the unit on {WORKER}: 0 s of 5 s; {HEAD}: loading shard 3"
    assert second.startswith("engine is loading: ")
