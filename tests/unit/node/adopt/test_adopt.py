"""Containers of a former setup as steps: their policy, their stop, and the way back."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node import adopt
from node.adopt import MARK, ContainerKind, RestartPolicyKind
from node.change import apply, kinds, transaction
from node.change.kinds import POST, PRE, Kind, Seen, Steps
from node.core import proc
from node.core.errors import NodeError
from tests.unit.node.adopt.docker_double import ID, OTHER, Docker, Json, box
from tests.unit.node.support.host import Host, apply_request, change
from tests.unit.node.support.reap_world import STAND_IN, World
from tests.unit.node.support.transfers import wait_for

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


# Lines of a crontab are commented out as a step on the file, and come back with it.

REBOOT = "@reboot root HF_TOKEN=hf_canary docker start vllm_ds4"
SEEN = "@reboot root HF_TOKEN=*** docker start vllm_ds4"
TEXT = f"SHELL=/bin/sh\n{REBOOT}\n17 * * * * root run-parts /etc/cron.hourly"


@pytest.fixture
def crontab(host: Host) -> Path:
    """A crontab of somebody else's, without a line's end at its end."""
    path = host.root / "crontab"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def step(path: Path, line: int = 2, text: str = SEEN) -> dict[str, object]:
    """The step that comments one line out."""
    return {"op": "crontab", "path": str(path), "lines": [{"line": line, "text": text}]}


def asked(path: Path, **more: object) -> dict[str, object]:
    """The request with that step."""
    return {"change": change(), "steps": [step(path)], **more}


def test_a_line_is_commented_out_once_and_comes_back(crontab: Path) -> None:
    assert apply.apply(asked(crontab, dry=True))["changed"] and crontab.read_text() == TEXT
    assert apply.apply(asked(crontab))["changed"]
    after = TEXT.replace(REBOOT, MARK + REBOOT)
    assert crontab.read_text() == after and crontab.stat().st_mode & 0o777 == 0o600
    assert not apply.apply(asked(crontab))["changed"]
    transaction.undo({"change": "change-1"})
    assert crontab.read_text() == TEXT and crontab.stat().st_mode & 0o777 == 0o600


def test_its_change_may_end_committed(crontab: Path) -> None:
    apply.apply(asked(crontab))
    assert transaction.close({"change": "change-1", "status": "COMMITTED"})["changed"]


@pytest.mark.parametrize(("line", "text"), [(2, "@reboot root other"), (3, SEEN), (9, SEEN)])
def test_another_line_than_was_seen_is_not_touched(crontab: Path, line: int, text: str) -> None:
    with pytest.raises(NodeError, match="is not what was seen: it was edited meanwhile"):
        apply.apply({"change": change(), "steps": [step(crontab, line, text)]})
    assert crontab.read_text() == TEXT


def test_a_crontab_that_was_edited_later_is_not_overwritten(crontab: Path) -> None:
    apply.apply(asked(crontab))
    crontab.write_text("mine\n")
    with pytest.raises(NodeError, match="edited after the change"):
        transaction.undo({"change": "change-1"})
    assert crontab.read_text() == "mine\n"


@pytest.mark.parametrize("bad", [
    {"path": "crontab", "lines": []}, {"path": "/etc/crontab", "lines": [{"line": 1}]},
    {"path": "/etc/crontab", "lines": [{"line": 0, "text": "x"}]}, {"path": "/etc/crontab"},
])  # fmt: skip
def test_a_bad_request_is_refused_crontab(bad: dict[str, object]) -> None:
    with pytest.raises(NodeError) as error:
        kinds.parse({"op": "crontab", **bad}, "steps[0]")
    assert error.value.code == "bad_request"


# An engine that somebody started by hand is ended with all of it; its undo tells the command.

KIND = adopt.EngineKind("former_engine")
STEP: Json = {"op": "former_engine", "container": "vllm_ds4"}
# a vLLM server as far as its command line goes, with one worker of its own session
PYTHON = os.path.realpath(sys.executable)
SERVER = f"""\
import os, pathlib, subprocess, sys, time
worker = ["VLLM::Worker_TP0", "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(worker, executable={PYTHON!r},
                         env=dict(os.environ, PYTHONHOME={sys.base_prefix!r}))
pathlib.Path(os.environ["READY"]).write_text(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""


class Rig:
    """A container's processes, real ones of this machine that a stand-in cgroup tells apart."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.ready = folder, folder / "ready"
        (folder / "vllm").write_text(SERVER)
        self.started: list[subprocess.Popen[bytes]] = []
        # what a container starts with, and alone: it only waits
        self.main = self.popen("sleep", "600")
        self.docker = Docker(monkeypatch, box(State__Pid=self.main.pid))
        read = proc.cgroup

        def cgroup(pid: int) -> str:
            mine = f"TEST_BOX={folder}".encode() in (proc.read_bytes(f"/proc/{pid}/environ") or b"")
            return f"/system.slice/docker-{ID}.scope" if mine else read(pid)

        monkeypatch.setattr(proc, "cgroup", cgroup)
        monkeypatch.setattr(adopt, "TERM_S", 2.0)

    def popen(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """A process of the container in a session of its own."""
        known = {"PATH": os.environ["PATH"], "TEST_BOX": str(self.folder), "READY": str(self.ready)}
        self.started.append(subprocess.Popen(words, env={**known, **env}, cwd=self.folder,
                                             start_new_session=True))  # fmt: skip
        return self.started[-1]

    def serve(self, line: str = "SERVE; true", more: str = "", **env: str) -> list[int]:
        """The engine by a script in the container; the pids of shell, server and worker."""
        script = self.folder / "serve.sh"
        words = f"exec -a python {PYTHON} {self.folder}/vllm serve /models/x {more}"
        script.write_text(line.replace("SERVE", f"({words})"))
        shell = self.popen("bash", str(script), **env)
        return [shell.pid, *self.came()]

    def came(self) -> list[int]:
        """The pids of a server and its worker that have come up."""
        wait_for(lambda: self.ready.exists() and len(self.ready.read_text().split()) == 2)
        found = [int(word) for word in self.ready.read_text().split()]
        self.ready.unlink()
        return found

    def alive(self, pids: list[int]) -> list[int]:
        """Those of them that run."""
        for one in self.started:
            one.poll()
        return [pid for pid in pids if adopt.candidate(pid)]

    def close(self) -> None:
        """End what is left."""
        for pid in proc.pids():
            known = proc.read_bytes(f"/proc/{pid}/environ") or b""
            if f"TEST_BOX={self.folder}".encode() in known:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A container that only waits."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    (tmp_path / "state/blobs").mkdir(parents=True)
    made = Rig(tmp_path, monkeypatch)
    yield made
    made.close()


def do(step: Json, rows: list[Json]) -> tuple[bool, str]:
    """The step done, its row in `rows`."""
    return KIND.do(KIND.parse(step, "step"), Steps({"steps": rows}, lambda: None))


@pytest.mark.parametrize("line", [
    "SERVE; true", "SERVE & wait", "while true; do SERVE; done",
])  # fmt: skip
def test_an_engine_by_docker_exec_is_ended_whole_and_its_command_told(rig: Rig, line: str) -> None:
    ran = rig.serve(line, HF_TOKEN="hf_canary")
    assert KIND.plan(KIND.parse(STEP, "step"), Seen()) == (True, f"ends pid {ran[0]}")
    rows: list[Json] = []
    assert do(STEP, rows)[0]
    assert not rig.alive(ran) and rig.alive([rig.main.pid])
    (row,) = rows
    assert row["state"] == "done" and row["by"] == [] and "hf_canary" not in json.dumps(rows)
    assert not KIND.verify(row, POST) and not KIND.verify(row, PRE)
    assert do(STEP, rows) == (False, "none runs")
    assert KIND.quiesce(rows) == []
    command = shlex.join(["docker", "exec", "--detach", f"--user={os.getuid()}:{os.getgid()}",
                          f"--workdir={rig.folder}", "vllm_ds4", "bash",
                          f"{rig.folder}/serve.sh"])  # fmt: skip
    words = f"was started by hand; to start it again: {command}"
    for start in (True, False):
        assert KIND.resume(rows, start) == ([words], False)
    assert transaction.undo_left({"steps": rows}) == [f"the engine in container vllm_ds4: {words}"]
    assert not KIND.verify(row, PRE) and not rig.alive(ran) and rig.docker.asked == []
    # somebody has started it meanwhile
    rig.serve(line)
    assert KIND.resume(rows, True) == ([], False) and transaction.undo_left({"steps": rows}) == []
    assert KIND.verify(row, POST) == ["the engine in container vllm_ds4 runs"]


def test_the_containers_own_engine_and_a_persons_shell_are_left_alone(rig: Rig) -> None:
    person = rig.popen("bash", "-c", "sleep 600; true")
    main = rig.popen("bash", "-c", f"{PYTHON} {rig.folder}/vllm serve x; true")
    server, worker = rig.came()
    rig.docker.boxes["vllm_ds4"]["State"]["Pid"] = main.pid
    assert do(STEP, []) == (False, "none runs")
    assert rig.alive([person.pid, main.pid, server, worker])


def test_ranks_whose_server_is_gone_end_with_the_next_one(rig: Rig) -> None:
    shell, server, worker = rig.serve()
    for pid in (shell, server):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not rig.alive([shell, server]))
    again = rig.serve()
    rows: list[Json] = []
    assert do(STEP, rows)[0] and not rig.alive([worker, *again])


def test_an_engine_that_its_unit_starts_is_left_to_the_unit(rig: Rig) -> None:
    rig.serve()
    rows: list[Json] = [
        {"op": "unit", "unit": name, "active": active, "state": "done",
         "pre": {"active": before, "enabled": "enabled"}}
        for name, active, before in (("vllm-ds4.service", "stop", "active"),
                                     ("was-down.service", "stop", "inactive"),
                                     ("rigbook-engine.service", "start", "inactive"))
    ]  # fmt: skip
    assert do(STEP, rows)[0] and rows[-1]["by"] == ["vllm-ds4.service"]
    assert KIND.resume(rows[-1:], True) == (["vllm-ds4.service starts it"], False)
    assert rig.docker.asked == [] and transaction.undo_left({"steps": rows[-1:]}) == []


def test_after_a_boot_the_container_runs_before_its_unit_starts(rig: Rig) -> None:
    """Its policy and the crontab's line are the change's own: nothing has brought it back."""
    rig.serve()
    rows: list[Json] = []
    assert do(STEP, rows)[0]
    rig.docker.boxes["vllm_ds4"]["State"]["Running"] = False
    assert KIND.quiesce(rows) == ["docker start vllm_ds4"] and KIND.quiesce(rows) == []


@pytest.mark.parametrize(("killed", "state"), [(0, "undone"), (1, "unknown"), (3, "done")])
def test_a_kill_in_the_middle(rig: Rig, killed: int, state: str) -> None:
    """The rest of one that was ended half-way is ended before its command is told."""
    ran = rig.serve("SERVE; sleep 600")
    rows: list[Json] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt, "_end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            do(STEP, rows)
    for pid in ran[1 : 1 + killed] if killed < 3 else ran:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(rig.alive(ran)) == 3 - killed)
    kinds.recover(rows)
    assert rows[0]["state"] == state
    ended = KIND.quiesce(rows)
    assert bool(ended) == (state == "unknown")
    said = KIND.resume(rows, True)[0]
    assert bool(said) == (state != "undone") and not KIND.verify(rows[0], PRE)


def test_what_starts_it_again_by_itself_is_told(rig: Rig) -> None:
    rig.serve()
    rows: list[Json] = []
    end = adopt._end

    def ended(*args: list[adopt.Candidate]) -> None:
        end(*args)
        rig.serve()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt, "_end", ended)
        with pytest.raises(NodeError, match="was started again while it was ended"):
            do(STEP, rows)
    assert rows[0]["state"] == "intent"


def test_a_process_that_is_stuck_in_the_kernel_keeps_no_step_waiting(
    world: World, tmp_path: Path
) -> None:
    """Its command line waits as long as it does, and the host's lock with it."""
    program = tmp_path / "vllm/entrypoints/openai/api_server.py"
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN.read_text())
    pid = world.launch(title="python3", program=program)
    world.stuck()
    ticks = int(world.sh(f"sed 's/.*) //' /proc/{pid}/stat | cut -d' ' -f20"))
    step = {"op": "former_engine", "pid": pid, "start_ticks": ticks}
    done = world.call("apply", {**apply_request(step), "dry": True})
    assert done["steps"][0]["detail"] == f"ends pid {pid}"


def test_the_command_of_an_engine_of_a_shell_of_the_host_is_quoted_and_masked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "--api-key sk-canary --override 'a \"b\" $c'"
    _, server, _ = rig.serve(more=more, HF_TOKEN="hf_x")
    monkeypatch.setattr(proc, "cgroup", lambda pid: "/user.slice/session-3.scope")
    stat = proc.stat(server)
    assert stat is not None
    step = {"op": "former_engine", "pid": server, "start_ticks": stat.start_ticks}
    assert do({**step, "start_ticks": stat.start_ticks + 1}, []) == (False, "none runs")
    rows: list[Json] = []
    assert do(step, rows)[0] and not rig.alive([server])
    assert KIND.resume(rows, True)[0] == [
        f"was started by hand; to start it again: cd {rig.folder} && python {rig.folder}/vllm "
        "serve /models/x --api-key '***' --override 'a \"b\" $c'"
    ]
    assert "canary" not in json.dumps(rows) and "hf_x" not in json.dumps(rows)


def test_a_change_of_0_2_0_names_the_file_that_has_the_command(rig: Rig) -> None:
    row = {"op": "former_engine", "engine": "engine of pid 7", "container": None, "state": "done",
           "processes": [], "servers": [], "by": [], "kept": ["0" * 64]}  # fmt: skip
    (said,) = KIND.resume([row], True)[0]
    assert said.endswith(f"cat {rig.folder}/state/blobs/{'0' * 64}")


@pytest.mark.parametrize("bad", [
    {}, {"container": "a", "pid": 7, "start_ticks": 1}, {"pid": 7}, {"pid": 1, "start_ticks": 1},
    {"container": "a b"}, {"start_ticks": 1},
])  # fmt: skip
def test_a_bad_request_is_refused_engine_step(bad: Json) -> None:
    with pytest.raises(NodeError) as error:
        kinds.parse({"op": "former_engine", **bad}, "steps[0]")
    assert error.value.code == "bad_request"
