"""Whose completion it is: recorded snapshots of a rig before an answer and after it."""

from __future__ import annotations

from typing import Any

import pytest

from facts.endpoint.completion import Answer, Endpoint
from operations.engine import own_answer
from operations.engine.own_answer import TRIES, NotOurs, ask_ours
from schema.observed.snapshot import Unreadable
from schema.render.engine_files import SCRIPT_PATH
from tests.plans.support.scenario import HEAD, WORKER, tiny_plan
from tests.unit.builders import tower_rig
from tests.unit.builders.engine_parts import FOREIGN, foreign_container
from tests.unit.builders.host_parts import port, process, unit
from tests.unit.builders.snapshots import put, serving

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
        patch.setattr(own_answer, "look_at_engine", lambda *_: self._next())

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
    plan = tower_rig.tower_plan()
    name, where = plan.rig.head.name, Endpoint(f"http://{plan.rig.head.lan_address}:8000", "tiny")
    there: Any = tower_rig.serving(plan)
    state: Any = None
    monkeypatch.setattr(own_answer, "look_at_engine", lambda *_: there)
    assert ask_ours(state, name, (name,), where, lambda _: GOOD) is GOOD
    there = {name: put(there[name], "ports.1.unit", "vllm-old.service")}
    with pytest.raises(NotOurs, match=r"unit vllm-old\.service\).*sudo systemctl stop vllm-old"):
        ask_ours(state, name, (name,), where, lambda _: GOOD)
