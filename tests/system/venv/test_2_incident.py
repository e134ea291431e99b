"""What breaks on a tower: the engine dies, its program is deleted, an operator's run is killed."""

from __future__ import annotations

import json

from tests.system.venv.steps import UNIT, VENV, Tower, unchanged, wait_until


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
