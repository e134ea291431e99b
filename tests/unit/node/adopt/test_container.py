"""Containers of a former setup as steps: their policy, their stop, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from node.adopt.container_step import ContainerKind
from node.adopt.restart_policy_step import RestartPolicyKind
from node.change import kinds
from node.core.errors import NodeError
from node.core.step_kind import POST, PRE, Kind, Seen, Steps
from tests.unit.node.adopt.docker_double import ID, OTHER, Docker, Json, box

POLICY: tuple[Kind, Json] = (
    RestartPolicyKind("restart_policy"),
    {"op": "restart_policy", "container": "vllm_ds4", "policy": "no"},
)
STOP: tuple[Kind, Json] = (
    ContainerKind("container"), {"op": "container", "container": "vllm_ds4"},
)  # fmt: skip
BOTH = pytest.mark.parametrize("case", [POLICY, STOP], ids=["policy", "stop"])
COMPOSE = {"com.docker.compose.project": "llm", "com.docker.compose.service": "vllm"}


def done(case: tuple[Kind, Json]) -> list[Json]:
    """The rows after the step was done once."""
    rows: list[Json] = []
    kind, step = case
    assert kind.do(kind.parse(step, "step"), Steps({"steps": rows}, lambda: None))[0]
    return rows


def back(kind: Kind, rows: list[Json]) -> str:
    """Undo of the rows, in words."""
    if kind.phase != "unit":
        return kind.revert(rows[0], overwrite=False)
    return ", ".join([*kind.quiesce(rows), *kind.resume(rows, True)[0]])


def state(docker: Docker, name: str = "vllm_ds4") -> tuple[bool, str]:
    """Whether the container runs, and its policy."""
    row = docker.boxes[name]
    return row["State"]["Running"], row["HostConfig"]["RestartPolicy"]["Name"]


@BOTH
def test_a_step_is_done_once_looked_at_and_undone(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Kind, Json]
) -> None:
    docker, (kind, step) = Docker(monkeypatch, box()), case
    assert kind.plan(kind.parse(step, "step"), Seen())[0] and not docker.asked
    rows = done(case)
    assert state(docker) == ((True, "no") if case is POLICY else (False, "unless-stopped"))
    assert not kind.do(kind.parse(step, "step"), Steps({"steps": rows}, lambda: None))[0]
    assert not kind.plan(kind.parse(step, "step"), Seen())[0]
    assert not kind.verify(rows[0], POST) and kind.verify(rows[0], PRE)
    assert back(kind, rows) and state(docker) == (True, "unless-stopped")
    asked = list(docker.asked)
    assert kind.verify(rows[0], POST) and not kind.verify(rows[0], PRE)
    assert back(kind, rows) in ("", "was as before") and docker.asked == asked


@BOTH
@pytest.mark.parametrize("came", [True, False])
def test_a_step_that_a_kill_cut_short_is_what_docker_says(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Kind, Json], came: bool
) -> None:
    docker = Docker(monkeypatch, box())
    rows = done(case)
    rows[0]["state"] = "intent"
    if not came:
        docker.boxes = {"vllm_ds4": box()}
    assert kinds.recover(rows) and rows[0]["state"] == ("done" if came else "undone")


@BOTH
@pytest.mark.parametrize(("now", "left"), [
    # compose may make the same container with its variables in another order
    (box(Id=OTHER, Config__Env=["HF_HOME=/models", "PATH=/bin"]), "the same again"),
    (box(Id=OTHER, Image="sha256:" + "2" * 64), "another"),
    (box("llm-vllm-1", Id=OTHER, Config__Labels=COMPOSE), "by its labels"),
    (None, "gone"),
], ids=["the same again", "another", "by its labels", "gone"])  # fmt: skip
def test_a_container_that_was_made_anew_meanwhile(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Kind, Json], now: Any, left: str
) -> None:
    first = box(Config__Labels=COMPOSE) if left == "by its labels" else box()
    docker, kind = Docker(monkeypatch, first), case[0]
    rows = done(case)
    docker.boxes = {str(now["Name"]).lstrip("/"): now} if now else {}
    if now:
        now["HostConfig"]["RestartPolicy"] = {"Name": "no", "MaximumRetryCount": 0}
        now["State"]["Running"] = case is POLICY
    if left in ("the same again", "by its labels"):
        assert back(kind, rows) and not kind.verify(rows[0], PRE)
        return
    if left == "gone" and case is POLICY:
        assert "gone" in back(kind, rows) and rows[0]["left"]
        return
    with pytest.raises(NodeError, match="another one now" if now else "is gone"):
        back(kind, rows)


def test_a_policy_that_somebody_set_since_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(monkeypatch, box())
    rows = done(POLICY)
    docker.boxes["vllm_ds4"]["HostConfig"]["RestartPolicy"]["Name"] = "always"
    assert "somebody has set it to always" in back(POLICY[0], rows)
    assert state(docker) == (True, "always") and rows[0]["left"]


def test_a_container_with_rm_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(monkeypatch, box(HostConfig__AutoRemove=True))
    with pytest.raises(NodeError, match="was made with --rm: a stop removes it"):
        done(STOP)
    assert not docker.asked


@BOTH
def test_what_docker_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Kind, Json]
) -> None:
    docker = Docker(monkeypatch, box())
    docker.refuses = {"update": 409, "stop": 500}
    with pytest.raises(NodeError, match="docker says no"):
        done(case)


def test_a_stopped_container_is_to_start_where_the_undo_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Docker(monkeypatch, box())
    assert STOP[0].resume(done(STOP), False) == ([], True)


@pytest.mark.parametrize("bad", [
    {"op": "restart_policy", "container": "a b", "policy": "no"},
    {"op": "restart_policy", "container": "a", "policy": "never"},
    {"op": "container", "container": "../x"},
    {"op": "container"},
])  # fmt: skip
def test_a_bad_request_is_refused(bad: Json) -> None:
    with pytest.raises(NodeError) as error:
        kinds.parse(bad, "steps[0]")
    assert error.value.code == "bad_request"


def test_no_value_of_an_environment_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    Docker(monkeypatch, box(Config__Env=["HF_TOKEN=hf_canary"]))
    rows = done(STOP)
    assert rows[0]["known"]["id"] == ID and "hf_canary" not in str(rows)
