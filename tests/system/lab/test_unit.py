"""What node reads of a real journal: the newest lines of a unit in trouble, not the oldest."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from facts import pack
from tests.system.lab.test_node_over_ssh import send
from tests.system.rehearsal import Done, Lab

UNIT = "talker.service"


def test_the_newest_errors_are_told(lab: Lab) -> None:
    """systemd 252's journalctl gives the oldest lines where --since and -n are combined."""
    text = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'for i in $(seq 900); do " \
           "echo error $$i; done; exit 3'\n"  # fmt: skip
    lab.ssh("test1", f"sudo tee /run/systemd/system/{UNIT} >/dev/null", stdin=text)
    lab.ssh("test1", f"sudo systemctl daemon-reload; sudo systemctl start {UNIT}", check=False)
    try:
        command = pack.inline_command("snapshot", {"units": [UNIT]})
        said = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(command)}")
        unit = json.loads(said.splitlines()[-1])["units"][0]
        assert "error 900" in unit["errors"] and "error 1" not in unit["errors"], unit
    finally:
        lab.ssh("test1", f"sudo rm /run/systemd/system/{UNIT}; sudo systemctl daemon-reload; "
                "sudo systemctl reset-failed", check=False)  # fmt: skip


# A ghost ExecStart on booted hosts, repointed by a drop-in and taken back (C13, faults 39, 40).

UNIT_REPOINT_UNIT = "vllm-ds4-head.service"
FOLDER = "/etc/systemd/system"
DROP_IN = f"{FOLDER}/{UNIT_REPOINT_UNIT}.d/50-rigbook-exec.conf"
IMAGE = "rigbook-trial/box:1"
# bash and sleep with their libraries: a labelled stand-in for the seed's image.
FILES = (
    "bin lib lib64 usr/bin/bash usr/bin/sleep usr/lib64 usr/lib/*/libc.so.6 "
    "usr/lib/*/libtinfo.so.6* usr/lib/*/ld-linux-*"
)
EXEC = "/usr/bin/docker exec vllm_ds4 bash"
SLEEP = "exec_start=/usr/bin/sleep infinity"


def ghost(exec_start: str) -> str:
    """The seed's unit; it is tried again and again, quicker than every 30 s."""
    return (
        "[Unit]\nDescription=trial of a ghost\nStartLimitIntervalSec=0\n"
        f"[Service]\nExecStart={exec_start}\nRestart=on-failure\nRestartSec=2\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def install(lab: Lab, exec_start: str) -> None:
    """Puts the ghost on test1, enabled, and starts it."""
    lab.ssh("test1", f"sudo tee {FOLDER}/{UNIT_REPOINT_UNIT}", stdin=ghost(exec_start))
    lab.ssh(
        "test1",
        f"sudo systemctl daemon-reload; sudo systemctl enable --now {UNIT_REPOINT_UNIT}; sleep 1",
    )


@pytest.fixture
def host_ghost(lab: Lab) -> Iterator[Lab]:
    """test1 with a unit whose program is nowhere on the host (203/EXEC)."""
    install(lab, "/workspace/vllm-head-090.sh")
    yield lab
    remove(lab)


@pytest.fixture(scope="module")
def box(lab: Lab) -> Iterator[Lab]:
    """test1 with a running container that holds one launch script, and not the other."""
    lab.ssh("test1", f"cd / && sudo tar -c {FILES} | sudo docker import - {IMAGE}")
    lab.ssh("test1", f"sudo docker run -d --init --name vllm_ds4 {IMAGE} sleep infinity")
    script = "mkdir() { :; }; cd /; printf 'sleep infinity' > /vllm-head.sh"
    lab.ssh("test1", f"sudo docker exec vllm_ds4 bash -c {shlex.quote(script)}")
    yield lab
    lab.ssh("test1", f"sudo docker rm -f vllm_ds4; sudo docker rmi {IMAGE}")


@pytest.fixture
def box_ghost(box: Lab) -> Iterator[Lab]:
    """test1 with the seed's unit: its script lives only in a layer that is gone (127)."""
    install(box, f"{EXEC} /vllm-head-090.sh")
    yield box
    remove(box)


def remove(lab: Lab) -> None:
    """Everything that a test made on test1, its open change first."""
    lab.ssh("test1", "sudo rignode undo --text", check=False)
    lab.ssh(
        "test1",
        f"sudo systemctl disable --now {UNIT_REPOINT_UNIT}; sudo rm -rf "
        f"{FOLDER}/{UNIT_REPOINT_UNIT} {FOLDER}/{UNIT_REPOINT_UNIT}.d; "
        f"sudo systemctl daemon-reload; sudo systemctl reset-failed {UNIT_REPOINT_UNIT}; true",
    )


def dies_with(lab: Lab, status: str) -> bool:
    """Whether the unit is tried again and again, and ends with this status each time."""
    for _ in range(20):
        if state(lab) == ("activating", status):
            return True
        time.sleep(0.5)
    return False


def state(lab: Lab) -> tuple[str, str]:
    """The unit's active state and the exit status of its last main process."""
    text = lab.ssh("test1", f"systemctl show -p ActiveState -p ExecMainStatus {UNIT_REPOINT_UNIT}")
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    return values["ActiveState"], values["ExecMainStatus"]


def tree(lab: Lab) -> str:
    """Names, modes, owners and hashes of all unit files of the administrator's on test1."""
    find = f"sudo find {FOLDER} -printf '%p %m %u %g %l\\n' | sort"
    hashes = f"sudo find {FOLDER} -type f -exec sha256sum {{}} + | sort"
    return lab.ssh("test1", f"{find}; {hashes}")


def unit(lab: Lab, *data: str, yes: bool = True) -> Done:
    """The deploy with these values of --data; without `yes` a look with the diff."""
    words = [word for pair in (f"unit={UNIT_REPOINT_UNIT}", *data) for word in ("--data", pair)]
    return lab.pyinfra("unit", *words, *(() if yes else ("--dry", "--diff")), yes=yes)


def newest(lab: Lab) -> dict[str, object]:
    """The newest change on test1."""
    return lab.changes("test1")[0]


def test_the_seeds_ghost_is_repointed_into_the_container_and_rolled_back(box_ghost: Lab) -> None:
    lab = box_ghost
    assert dies_with(lab, "127")
    before, script = tree(lab), f"exec_start={EXEC} /vllm-head.sh"
    doctor = lab.pyinfra("doctor")
    assert (
        "script-ghost" in doctor.text
        and f"deploys/unit.py --data unit={UNIT_REPOINT_UNIT}" in doctor.text
    )
    dry = unit(lab, script, yes=False)
    assert dry.rc == 0 and f"+ExecStart={EXEC} /vllm-head.sh" in dry.text, dry.text
    assert tree(lab) == before

    refused = unit(lab, f"exec_start={EXEC} /vllm-other.sh")
    assert refused.rc == 1 and "nothing was changed" in refused.text
    assert "/vllm-other.sh, which is not in container vllm_ds4" in refused.text
    for exec_start, said in (
        (f"/usr/bin/docker run --rm {IMAGE} bash /vllm-head.sh", f"is not in image {IMAGE}"),
        ("/usr/bin/docker run --rm no/image bash /x", "there is no image no/image here"),
        ("/usr/bin/docker exec no_box bash /x", "there is no container no_box"),
    ):
        content = f"[Service]\nExecStart=\nExecStart={exec_start}\n"
        asked: dict[str, object] = {"unit": UNIT_REPOINT_UNIT, "path": DROP_IN, "content": content}
        (ghost,) = send(lab, "test1", pack.inline_command("dropin", asked))["ghosts"]
        assert said in ghost
    assert tree(lab) == before

    done = unit(lab, script)
    assert done.rc == 0 and "COMMITTED" in done.text, done.text
    assert state(lab)[0] == "active"
    assert lab.ssh("test1", "pgrep -fc '^sleep infinity'", check=False) != "0"
    again = unit(lab, script)
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text
    change = str(newest(lab)["id"])

    back = lab.pyinfra("rollback", "--data", f"change={change}")
    assert back.rc == 0 and "ROLLED_BACK" in back.text, back.text
    assert tree(lab) == before
    assert dies_with(lab, "127")


def test_a_ghost_of_the_host_runs_again_and_is_undone_at_the_console(host_ghost: Lab) -> None:
    lab = host_ghost
    assert dies_with(lab, "203")
    before = tree(lab)
    done = unit(lab, SLEEP, "restart_sec=7", "environment=A=1,B=$HOME")
    assert done.rc == 0, done.text
    assert state(lab)[0] == "active"
    assert (
        lab.ssh("test1", f"systemctl show -p RestartUSec {UNIT_REPOINT_UNIT}").strip()
        == "RestartUSec=7s"
    )
    pid = lab.ssh("test1", f"systemctl show -p MainPID --value {UNIT_REPOINT_UNIT}")
    environ = lab.ssh("test1", f"sudo cat /proc/{pid}/environ | tr '\\0' '\\n'").splitlines()
    assert {"A=1", "B=$HOME"} <= {*environ}
    lab.ssh("test1", f"sudo rignode undo {newest(lab)['id']} --text")
    assert tree(lab) == before and newest(lab)["status"] == "ROLLED_BACK"


def test_it_is_taken_away_again_and_not_back_to_a_ghost_unasked(host_ghost: Lab) -> None:
    lab = host_ghost
    assert unit(lab, SLEEP).rc == 0
    with_it = tree(lab)
    refused = unit(lab, "remove=true")
    assert refused.rc == 1 and "/workspace/vllm-head-090.sh, which does not exist" in refused.text
    assert tree(lab) == with_it
    done = unit(lab, "remove=true", "waive=unit-ghost", "reason=the image brings it")
    assert done.rc == 0, done.text
    assert DROP_IN not in tree(lab)
    again = unit(lab, "remove=true")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text


def test_a_start_that_fails_again_takes_the_drop_in_back(host_ghost: Lab) -> None:
    lab = host_ghost
    before = tree(lab)
    done = unit(lab, "exec_start=/usr/bin/false")
    assert done.rc == 1 and "ended again: exit-code, exit status 1" in done.text, done.text
    assert tree(lab) == before and newest(lab)["status"] == "ROLLED_BACK"


def test_what_is_no_unit_and_what_is_ours_is_refused(lab: Lab) -> None:
    for name, said in (
        ("no-such.service", "systemd knows no unit no-such.service"),
        ("rigbook-engine.service", "serve writes this unit"),
        ("ssh", "is not a service's name"),
    ):
        done = lab.pyinfra("unit", "--data", f"unit={name}", "--data", SLEEP)
        assert done.rc == 1 and said in done.text and "Traceback" not in done.text, done.text


BAD = {
    "no reset": ("[Service]\nExecStart=/usr/bin/sleep 1\n", "more than one ExecStart="),
    "no program": ("[Service]\nExecStart=\nExecStart=/opt/gone\n", "/opt/gone, which does not"),
    "syntax": ("[Service]\nExecStart=\nExecStart=/usr/bin/sleep 1\nRestrat=no\n", "Unknown key"),
}


def steps(text: str) -> list[dict[str, object]]:
    """Node's steps for a drop-in of this text."""
    return [
        {"op": "directory", "path": DROP_IN.rpartition("/")[0], "mode": "0755"},
        {
            "op": "file",
            "path": DROP_IN,
            "content": text,
            "mode": "0644",
            "for_unit": UNIT_REPOINT_UNIT,
        },
        {"op": "unit", "unit": UNIT_REPOINT_UNIT, "active": "restart", "daemon_reload": True},
    ]


def request(text: str, number: int = 0) -> dict[str, object]:
    """An apply of these steps, as a change of its own."""
    change = {"id": f"20261120T000000Z-trial-{number}", "deploy": "trial", "operator": "t"}
    return {"change": change, "steps": steps(text)}


@pytest.mark.parametrize("name", BAD)
def test_node_refuses_a_bad_drop_in_and_changes_nothing(host_ghost: Lab, name: str) -> None:
    text, said = BAD[name]
    lab, before = host_ghost, tree(host_ghost)
    call = pack.install_call("apply", request(text))
    answer = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(call.line)}", False, call.stdin)
    assert '"code":"not_valid"' in answer and said in answer, answer
    assert tree(lab) == before and lab.ssh("test1", "ls -d /run/rigbook-verify-*", False) == ""


def test_killed_in_the_middle_it_is_old_or_new_and_undo_brings_it_back(host_ghost: Lab) -> None:
    lab, before = host_ghost, tree(host_ghost)
    good = "[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"
    send(lab, "test1", *pack.install_call("journal", {}))
    seen = set()
    for number, delay in enumerate((0.02, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0), start=1):
        killed = f"sudo timeout -s KILL {delay} rignode apply"
        lab.ssh("test1", killed, check=False, stdin=json.dumps(request(good, number)))
        now = lab.ssh("test1", f"sudo cat {DROP_IN}", check=False)
        assert now in ("", good.strip())
        seen.add(now)
        lab.ssh("test1", "sudo rignode undo --text")
        assert tree(lab) == before
    assert "" in seen, "no run was killed before its file was there"


# Fault 56 with the real systemd: a unit that somebody restarts is no unit that was down.

UNIT_STATE_UNIT = "rigbook-trial-passing.service"
CHANGE = "20261120T000000Z-trial-56"
# Its stop takes as long as an engine's may.
TEXT = "[Service]\nExecStart=/usr/bin/sleep infinity\nExecStop=/usr/bin/sleep 4\nType=exec\n"


def root(lab: Lab, verb: str, request: dict[str, object]) -> dict[str, Any]:
    """A verb of node as root on test1; what it answered."""
    line, stdin = pack.install_call(verb, request)
    said = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(line)}", check=False, stdin=stdin)
    return dict(json.loads(said.splitlines()[-1]))


def active(lab: Lab) -> str:
    """The unit's active state now."""
    return lab.ssh("test1", f"systemctl show -P ActiveState {UNIT_STATE_UNIT}")


@pytest.fixture
def runs(lab: Lab) -> Iterator[Lab]:
    """test1 with the unit running, and no change of the test's left behind."""
    lab.ssh("test1", f"sudo tee /etc/systemd/system/{UNIT_STATE_UNIT} >/dev/null", stdin=TEXT)
    lab.ssh("test1", f"sudo systemctl daemon-reload && sudo systemctl start {UNIT_STATE_UNIT}")
    yield lab
    lab.ssh(
        "test1",
        f"sudo systemctl kill -s KILL {UNIT_STATE_UNIT}; sudo systemctl stop {UNIT_STATE_UNIT}; "
        f"sudo rm -f /etc/systemd/system/{UNIT_STATE_UNIT}; "
        # only root may read that folder, and the shell's pattern needs to
        f"sudo sh -c 'rm -f /var/lib/rigbook/journal/{CHANGE}*'; "
        "sudo systemctl daemon-reload; sudo systemctl reset-failed",
        check=False,
    )


@pytest.mark.parametrize(("verb", "goal"), [("restart", "active"), ("stop", "inactive")])
def test_a_unit_that_is_stopping_is_recorded_as_what_it_becomes(
    runs: Lab, verb: str, goal: str
) -> None:
    """The pair's timer restarts the worker while serve begins: undo brings it up again."""
    runs.ssh("test1", f"sudo systemctl {verb} --no-block {UNIT_STATE_UNIT}; sleep 1")
    assert active(runs) == "deactivating"
    change = {"id": CHANGE, "deploy": "trial", "operator": "t"}
    step = {"op": "unit", "unit": UNIT_STATE_UNIT, "active": "stop", "enabled": None}
    done = root(runs, "apply", {"change": change, "steps": [step]})
    assert done["ok"] and active(runs) == "inactive", done
    if goal == "inactive":
        assert done["changed"] is False
        return
    entry = root(runs, "journal", {"change": CHANGE})["change"]["steps"][0]
    assert entry["pre"]["active"] == goal
    assert root(runs, "undo", {"change": CHANGE})["status"] == "ROLLED_BACK"
    time.sleep(1)
    assert active(runs) == "active"
