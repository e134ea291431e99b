"""What ends each former setup, in order, and what is refused in one line."""

from __future__ import annotations

import pytest

from deploys.procedures.adopt.former_steps import (
    end_steps,
    grace_s,
    refusals,
    release_steps,
    who,
)
from operations.change.apply import describe
from schema.observed.former import Former
from tests.unit.builders import former_parts as parts

TABLE = {
    # setup: before (it still serves), and the end
    "the seed's": (
        parts.seed(),
        ["disable vllm-ds4.service", "restart policy of container vllm_ds4: no",
         "/etc/crontab: comment out line 12"],
        ["stop vllm-ds4.service", "end the engine that runs in container vllm_ds4"],
        "unit vllm-ds4.service, crontab /etc/crontab:12, container vllm_ds4",
    ),
    "compose": (
        parts.compose(), ["restart policy of container llm-vllm-1: no"],
        ["stop container llm-vllm-1"], "compose project llm, container llm-vllm-1",
    ),
    "by hand, with --rm": (
        parts.by_hand(), [], ["end the engine that runs in container vllm_ds4"],
        "container vllm_ds4",
    ),
    "a venv under a unit": (
        parts.venv(), ["disable vllm.service"], ["stop vllm.service"], "unit vllm.service",
    ),
    "a venv by a shell": (
        parts.venv(None), [], ["end the engine that is pid 812"], "pid 812",
    ),
    # its unit is down and disabled, and the engine runs: somebody started it
    "a dormant unit": (
        Former(engines=(parts.engine(),), containers=(parts.container(restart_policy="no"),),
               supervisors=(parts.by_unit(enabled="disabled", active="inactive/dead",
                                          starts_at_boot=False),)),
        [], ["end the engine that runs in container vllm_ds4"],
        "container vllm_ds4",
    ),
    "a timer's unit": (
        parts.venv().model_copy(update={"supervisors": (parts.by_unit(
            name="vllm.service", enabled="static", triggered_by=("vllm.timer",)),)}),
        ["disable and stop vllm.timer"], ["stop vllm.service"], "unit vllm.service",
    ),
    # taken up after the kill of an operator: what is done is not asked for again
    "ended already": (
        Former(supervisors=(parts.by_unit(enabled="disabled", active="inactive/dead",
                                          starts_at_boot=False),),
               containers=(parts.container(restart_policy="no"),)),
        [], [], "",
    ),
    "nothing": (Former(), [], [], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_each_setup_is_ended_as_its_row_says(name: str) -> None:
    former, released, ended, by = TABLE[name]
    assert list(refusals(former)) == []
    assert [describe(step) for step in release_steps(former)] == released
    assert [describe(step) for step in end_steps(former)] == ended
    assert who(former) == by


def test_a_deployment_is_scaled_as_it_was_seen_and_its_pods_grace_is_waited_for() -> None:
    (step,) = end_steps(parts.pod())
    assert (step["op"], step["replicas"]) == ("kube", 0)
    assert (step["uid"], step["resource_version"]) == ("u-1", "7")
    assert step["container"] == "engine" and step["deployment"] == "lucebox"
    assert who(parts.pod()) == "Deployment default/lucebox"
    assert (grace_s(parts.pod()), grace_s(parts.seed())) == (30.0, 0.0)


REFUSED = {
    "one of two": (
        Former(engines=(parts.engine(), parts.engine(pid=900, port=8001))),
        "2 engines run here (pid 812 on port 8000, pid 900 on port 8001), and a rig has one recipe",
    ),
    "--rm": (
        Former(engines=(parts.engine(inside_of="main"),),
               containers=(parts.container(auto_remove=True),)),
        "container vllm_ds4 was made with --rm: a stop removes it",
    ),
    "a pod without a Deployment": (
        parts.pod(None), "what made it has to end it: kubectl describe pod default/lucebox",
    ),
    "unread": (Former(unread=("crontabs: Permission denied",)),
               "not all could be looked at: crontabs: Permission denied"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_way_back_is_refused_in_one_line(name: str) -> None:
    former, line = REFUSED[name]
    (told,) = refusals(former)
    assert line in told and "\n" not in told


def test_a_container_with_rm_that_its_unit_makes_again_is_taken() -> None:
    box = parts.container(auto_remove=True)
    former = Former(engines=(parts.engine(inside_of="main"),), containers=(box,),
                    supervisors=(parts.by_unit(),))  # fmt: skip
    assert list(refusals(former)) == []
