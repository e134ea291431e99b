"""The seed's evening, with the real vLLM: an upgrade that works, one that cannot, one cut off.

The host has wheels of 0.31.0 and 0.32.0, both real, and of 0.33.0, a labelled one whose engine
raises when it starts. Seconds are printed for each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.system.rehearsal import PYINFRA, ROOT
from tests.system.venv.steps import INVENTORY, UNIT, VENV, Tower, unchanged, wait_until

OLD, OTHER, BROKEN = "0.32.0", "0.31.0", "0.33.0"


@pytest.fixture(scope="module", autouse=True)
def started(serving: Tower) -> None:
    """The evening begins with an engine that serves: the tests before end with a stopped one."""
    done = serving.deploy("serve")
    assert done.rc == 0, done.text


def leads_to(tower: Tower) -> str:
    """The version that the link leads to."""
    return tower.on(f"readlink {VENV}").rpartition("/")[2]


def backups(tower: Tower) -> int:
    """How many verified backups there are."""
    text = tower.deploy("backup", "--data", "list=true").text
    return text.count(", verified 20")


def test_an_upgrade_that_works_serves_and_a_second_run_changes_nothing(serving: Tower) -> None:
    dry = serving.deploy("upgrade", "--dry", "--diff", "--data", f"version={OTHER}", yes=False)
    assert dry.rc == 0 and f"vllm {OLD}+cpu -> {OTHER}+cpu" in dry.text
    assert leads_to(serving) == OLD
    done = serving.deploy("upgrade", "--data", f"version={OTHER}")
    assert done.rc == 0, done.text
    print(f"REPLAY upgrade {OLD} -> {OTHER}: {done.seconds:.0f} s")
    assert leads_to(serving) == OTHER and serving.answers()
    assert f"vllm {OTHER}+cpu serves" in done.text and "tok/s" in done.text
    newest = serving.newest()
    assert (newest["deploy"], newest["status"]) == ("upgrade", "COMMITTED")
    assert backups(serving) >= 1
    assert unchanged(serving.deploy("upgrade", "--data", f"version={OTHER}"))


def test_a_blessed_upgrade_goes_back_by_its_id(serving: Tower) -> None:
    change = str(serving.newest()["id"])
    done = serving.deploy("rollback", "--data", f"change={change}")
    assert done.rc == 0, done.text
    print(f"REPLAY rollback of a blessed upgrade: {done.seconds:.0f} s")
    assert "serves again" in done.text and "tok/s" in done.text
    assert leads_to(serving) == OLD and serving.answers()
    assert unchanged(serving.deploy("rollback", "--data", f"change={change}"))


def test_a_version_that_cannot_start_goes_back_by_itself(serving: Tower) -> None:
    """B1: an error at every start; two starts, then the former version again."""
    done = serving.deploy("upgrade", "--data", f"version={BROKEN}")
    assert done.rc == 1, done.text
    print(f"REPLAY upgrade to {BROKEN}, which cannot start: back after {done.seconds:.0f} s")
    assert "2 starts, and none came to an answer" in done.text
    assert "serves again" in done.text and leads_to(serving) == OLD and serving.answers()
    newest = serving.newest()
    assert (newest["deploy"], newest["status"]) == ("upgrade", "ROLLED_BACK")
    assert "starts" in str(newest["reason"]) and "NCCL error" in done.text
    assert unchanged(serving.deploy("serve"))


def test_the_operator_killed_in_the_middle(serving: Tower) -> None:
    """The automatic return never comes; one command, and it answers."""
    change = serving.killed_operator("upgrade", "--data", f"version={BROKEN}")
    assert leads_to(serving) == BROKEN
    began = time.monotonic()
    done = serving.deploy("rollback")
    assert done.rc == 0, done.text
    print(f"REPLAY rollback after kill -9 of the operator: {done.seconds:.0f} s")
    seconds = serving.started_at() - began
    assert seconds > 0, "the broken version's last start, not the former's"
    print(f"REPLAY its engine's process started after {seconds:.1f} s")
    assert (serving.newest()["id"], serving.newest()["status"]) == (change, "ROLLED_BACK")
    assert leads_to(serving) == OLD and serving.answers()
    assert unchanged(serving.deploy("rollback"))


def test_the_automatic_return_killed_in_its_middle(serving: Tower) -> None:
    """Killed while the former version starts: all is back but the proof, which serve gives."""
    words = [str(PYINFRA), INVENTORY, "deploys/upgrade.py", "-y", "--data", f"version={BROKEN}"]
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "going back to what was there before" in line:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    # The undo on the host goes on to its end without its operator, and holds the lock meanwhile:
    # the rollback waits for it.
    done = serving.deploy("rollback")
    assert done.rc == 0, done.text
    seconds = done.seconds + wait_until("a real completion", 600, serving.answers)
    print(f"REPLAY rollback after kill -9 in the automatic return: {seconds:.0f} s")
    assert leads_to(serving) == OLD
    assert serving.newest()["status"] == "ROLLED_BACK"


def test_the_same_upgrade_again_takes_up_what_a_killed_operator_left(serving: Tower) -> None:
    """One command: what is half done is undone, and the version serves."""
    change = serving.killed_operator("upgrade", "--data", f"version={OTHER}")
    done = serving.deploy("upgrade", "--data", f"version={OTHER}")
    assert done.rc == 0 and f"takes up change {change}" in done.text, done.text
    assert leads_to(serving) == OTHER and serving.answers()
    assert (serving.newest()["id"], serving.newest()["status"]) == (change, "COMMITTED")
    back = serving.deploy("rollback", "--data", f"change={change}")
    assert back.rc == 0 and leads_to(serving) == OLD and serving.answers(), back.text


def test_a_deleted_entry_point_comes_back_from_the_backup(serving: Tower) -> None:
    """B3: the unit ends with 127; the backup brings the program back with its tree."""
    serving.on(f"sudo rm {VENV}/bin/vllm && sudo systemctl restart {UNIT}", check=False)
    wait_until("127", 60, lambda: serving.values("ExecMainStatus") == ["127"])
    # A drop-in that came after the backup: the unit comes back as it was recorded.
    late = f"/etc/systemd/system/{UNIT}.d/99-late.conf"
    folder = late.rpartition("/")[0]
    serving.on(f"sudo mkdir -p {folder}; printf '[Service]\\nNice=7\\n' | sudo tee {late}")
    serving.on("sudo systemctl daemon-reload")
    doctor = serving.deploy("doctor")
    assert doctor.rc == 1 and "venv-entry-missing" in doctor.text and "127" in doctor.text
    done = serving.deploy("rollback", "--data", "backup=last")
    assert done.rc == 0, done.text
    print(f"REPLAY restore of the backup, entry point gone: {done.seconds:.0f} s")
    assert serving.answers() and leads_to(serving) == OLD
    assert serving.on(f"test -e {late} || echo gone") == "gone" and f"remove {late}" in done.text
    assert unchanged(serving.deploy("rollback", "--data", "backup=last"))


def test_a_prune_removes_the_versions_that_failed(serving: Tower) -> None:
    """What was kept for the post-mortem goes when somebody asks, and only that."""
    before = serving.on(f"ls {VENV}s").split()
    assert BROKEN in before
    done = serving.deploy("upgrade", "--data", "prune=true")
    assert done.rc == 0, done.text
    assert OLD in serving.on(f"ls {VENV}s").split()
    assert BROKEN not in serving.on(f"ls {VENV}s").split()
    assert unchanged(serving.deploy("upgrade", "--data", "prune=true"))
    displaced = serving.deploy("backup", "--data", "prune=true", "--data", "displaced=true")
    assert displaced.rc == 0, displaced.text
    assert serving.on("ls -a /opt/engine /opt/engine/venvs").count(".rigbook-") == 0
    assert serving.answers()
