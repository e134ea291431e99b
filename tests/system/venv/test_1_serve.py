"""The main job on the second runtime: the real vLLM in a venv; the tests run in this order."""

from __future__ import annotations

import json

from facts.endpoint import ask
from tests.system.venv.steps import UNIT, VENV, Tower, unchanged, wait_until


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


# What breaks on a tower: the engine dies, its program is deleted, an operator's run is killed.


def test_a_killed_engine_comes_back_by_itself_and_leaves_no_orphan(serving: Tower) -> None:
    """The second seed's zombies: ranks that outlive their server hold the memory (B2)."""
    restarts = int(serving.values("NRestarts")[0])
    ranks = set(serving.on("pgrep VLLM").split())
    serving.on(f"sudo kill -9 {serving.main_pid()}")
    seconds = wait_until("a real completion", 600, serving.answers)
    print(f"REPLAY answers again after {seconds:.0f} s")
    assert int(serving.values("NRestarts")[0]) == restarts + 1
    assert not ranks & set(serving.on("pgrep VLLM").split()), "a rank outlived its server"
    wait_until("active", 60, lambda: serving.values("ActiveState") == ["active"])


def test_a_deleted_entry_point_is_named_and_pip_brings_it_back(serving: Tower) -> None:
    """`pip uninstall` took bin/vllm, and the unit ends with 127 (B3)."""
    assert serving.deploy("stop").rc == 0
    serving.on(f"sudo rm {VENV}/bin/vllm")
    serving.on(f"sudo systemctl start {UNIT}", check=False)
    assert serving.values("ExecMainStatus") == ["127"]
    serving.on(f"sudo systemctl stop {UNIT}")
    done = serving.deploy("doctor", "--data", "json=true")
    assert done.rc == 1
    rows = json.loads(done.text[done.text.index("[\n") : done.text.rindex("]") + 1])
    first = rows[0]
    assert (first["code"], first["node"]) == ("venv-entry-missing", serving.name)
    assert "127" in first["summary"] and f"{VENV}s/0.32.0/bin/vllm" in first["evidence"]
    assert f"engine-down@{serving.name}" in first["explains"]
    refused = serving.deploy("serve")
    assert refused.rc == 1 and "venv-entry-missing" in refused.text
    # The remedy as it is written, behind the words that say where to type it.
    serving.on(first["remedy"].split(f"on {serving.name}: ")[1])
    assert serving.deploy("serve").rc == 0
    assert serving.answers()


def test_a_killed_operator_is_rolled_back_by_one_command(serving: Tower) -> None:
    change = serving.killed_operator("serve", "--data", "profile=throughput")
    done = serving.deploy("rollback")
    assert done.rc == 0, done.text
    assert "serves again" in done.text
    assert (serving.newest()["id"], serving.newest()["status"]) == (change, "ROLLED_BACK")
    assert unchanged(serving.deploy("serve"))
    assert unchanged(serving.deploy("rollback"))


def test_a_cold_restart_is_proven(serving: Tower) -> None:
    before = serving.values("InvocationID")
    done = serving.deploy("restart")
    assert done.rc == 0, done.text
    assert "cold restart" in done.text and serving.values("InvocationID") != before


def test_a_reboot_comes_back_by_itself(serving: Tower) -> None:
    boot = serving.on("cat /proc/sys/kernel/random/boot_id; uptime -s")
    done = serving.deploy("reboot")
    assert done.rc == 0, done.text
    assert serving.answers()
    assert serving.on("cat /proc/sys/kernel/random/boot_id; uptime -s") != boot


def test_a_watch_looks_and_goes_away(serving: Tower) -> None:
    done = serving.deploy("watch", "--data", "interval=60")
    assert done.rc == 0, done.text
    assert unchanged(serving.deploy("watch", "--data", "interval=60"))
    assert serving.deploy("watch", "--data", "remove=true").rc == 0


def test_stop_leaves_nothing_and_a_second_stop_changes_nothing(serving: Tower) -> None:
    done = serving.deploy("stop")
    assert done.rc == 0, done.text
    assert serving.on("pgrep -c VLLM || true") == "0"
    assert serving.on("sudo ss -Hltn 'sport = :8000'") == ""
    assert unchanged(serving.deploy("stop"))
    verify = serving.deploy("verify")
    assert verify.rc == 1 and "Traceback" not in verify.text
