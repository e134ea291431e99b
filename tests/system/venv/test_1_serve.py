"""The main job on the second runtime: the real vLLM in a venv; the tests run in this order."""

from __future__ import annotations

import json

from facts.endpoint.completion import ask
from tests.system.venv.steps import UNIT, VENV, Tower, unchanged


def test_serve_from_nothing_is_proven(serving: Tower) -> None:
    answer = ask(serving.endpoint)
    assert answer.ok, answer.detail
    assert answer.text.strip()
    newest = serving.newest()
    assert (newest["deploy"], newest["status"]) == ("serve", "COMMITTED")
    assert serving.values("ActiveState", "UnitFileState", "User", "KillMode") == [
        "active", "enabled", "rig", "control-group",
    ]  # fmt: skip


def test_both_ranks_run_as_the_recipes_user_under_the_one_unit(serving: Tower) -> None:
    rows = serving.on("ps -eo user:20,unit:40,args | grep '[V]LLM::'").splitlines()
    assert len([row for row in rows if "VLLM::Worker_TP" in row]) == 2, rows
    for row in rows:
        assert row.split()[:2] == ["rig", UNIT], row
    assert serving.on("systemctl is-enabled docker.service", check=False) == "masked"
    timers = serving.on("systemctl list-unit-files 'rigbook-pair*' --no-legend | wc -l")
    assert timers == "0", "a rig of one node has no pair to look after"


def test_json_arguments_and_the_environment_arrive_whole(serving: Tower) -> None:
    pid = serving.main_pid()
    argv = serving.on(f"sudo cat /proc/{pid}/cmdline").split("\0")
    assert argv[1] == f"{VENV}/bin/vllm"
    value = argv[argv.index("--default-chat-template-kwargs") + 1]
    assert json.loads(value) == {"greeting": 'it\'s $HOME, "quoted"'}
    environ = serving.on(f"sudo cat /proc/{pid}/environ").split("\0")
    assert "VLLM_CPU_OMP_THREADS_BIND=nobind" in environ
    assert next(v for v in environ if v.startswith("PATH=")).startswith(f"PATH={VENV}/bin:")


def test_a_second_run_changes_nothing_and_restarts_nothing(serving: Tower) -> None:
    before = serving.values("InvocationID")
    assert unchanged(serving.deploy("serve"))
    assert serving.values("InvocationID") == before


def test_doctor_is_silent_and_verify_agrees(serving: Tower) -> None:
    done = serving.deploy("doctor")
    assert done.rc == 0, done.text
    assert "nothing blocks" in done.text and "vllm 0.32.0+cpu" in done.text
    assert "block " not in done.text and "warn " not in done.text
    verify = serving.deploy("verify")
    assert verify.rc == 0 and "answers at" in verify.text


def test_infra_is_green(serving: Tower) -> None:
    done = serving.infra()
    assert done.rc == 0, done.text
    assert "passed" in done.text and serving.name in done.text
