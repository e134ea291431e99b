"""Hostile and wrong values: one clear line, exit 1, nothing changed, no canary."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from node import gpus, processes, snapshot, units
from node.change.tree_step import inspect_tree
from node.core import files, proc
from node.core.errors import CannotRead, NodeError
from node.core.owner import Owner
from node.core.run import Done, each, run
from node.kernel import packages_step
from node.rules import secret
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step, unit_step

HOSTILE = ["'; touch CANARY; #", "a\nb", "$(touch CANARY)", "`touch CANARY`", "-rf", "\0", "",
           "x" * 5000, 7, None, True, [], {}, "\ud800"]  # fmt: skip


def replaced(request: dict[str, Any], where: tuple[str | int, ...], value: object) -> Any:
    """The request with one value put in another's place."""
    out = copy.deepcopy(request)
    at: Any = out
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    return out


PLACES = [("change", "id"), ("change", "deploy"), ("change", "operator"), ("steps", 0, "path"),
          ("steps", 0, "mode"), ("steps", 0, "owner"), ("steps", 0, "group"),
          ("steps", 0, "expect_sha256"), ("steps", 0, "validate"), ("steps", 0, "sensitive"),
          ("steps", 0, "content"), ("steps", 0, "op"), ("steps", 1, "unit"),
          ("steps", 1, "enabled"), ("steps", 1, "active"), ("steps", 1, "daemon_reload"),
          ("dry",), ("steps",), ("change",)]  # fmt: skip
# values that are good ones in their place
GOOD = {
    "deploy": [HOSTILE[0], HOSTILE[2], HOSTILE[3], "-rf", ""],
    "operator": [HOSTILE[0], HOSTILE[2], HOSTILE[3], "-rf", ""],
    "content": [v for v in HOSTILE if isinstance(v, str) and v != "\ud800"],
    "expect_sha256": [None], "validate": [None], "enabled": [None, True], "active": [None],
    "dry": [True], "sensitive": [True], "daemon_reload": [True], "steps": [[]],
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_hostile_values_are_refused(
    host: Host, place: tuple[str | int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.__main__ import dispatch
    from node.core.errors import NodeError

    units = host.systemctl()
    monkeypatch.chdir(host.root)
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    step = file_step(host.root / "f", owner="root", group="root", validate=["true"],
                     expect_sha256=None, sensitive=False)  # fmt: skip
    request = {**apply_request(step, unit_step("start", enabled=True)), "dry": False}
    for value in HOSTILE:
        if any(value is good or (value == good and type(value) is type(good))
               for good in GOOD.get(str(place[-1]), [])):  # fmt: skip
            continue
        with pytest.raises(NodeError) as caught:
            dispatch(["apply", json.dumps(replaced(request, place, value))])
        assert caught.value.code == "bad_request", (value, caught.value)
        assert "\n" not in str(caught.value) and str(place[-1]) in str(caught.value)
    assert not host.state.exists() and not (units / "log").exists()
    assert sorted(path.name for path in host.root.iterdir()) == ["bin"]


@pytest.mark.parametrize("path", ["etc/x", "/etc/../x", "/etc//x", "/", "//x", "/x/", "/etc/./x"])
def test_paths_must_be_absolute_and_normalised(host: Host, path: str) -> None:
    answer = host.call("apply", apply_request(file_step(Path("/f")) | {"path": path}))
    assert answer["code"] == "bad_request" and "absolute, normalised" in answer["error"]


@pytest.mark.parametrize("request_", [{"x": 1}, {"files": "/etc/passwd"}, {"files": ["etc"]},
    {"units": ["-x.service"]}, {"units": ["x"]}, {"peers": ["::g"]}, {"peers": ["-c"]},
    {"fabric_device": "-i"}, {"fabric_device": "a b"}, {"fabric_mtu": "9000"}, {"fabric_mtu": True},
    {"deep": 1}, {"sysctls": ["../etc/passwd"]}, {"sysctls": ["a/../../x"]}, {"images": ["-x"]},
    {"images": ["a b"]}, {"images": ["x?y"]}])  # fmt: skip
def test_a_bad_snapshot_request_is_refused(host: Host, request_: dict[str, object]) -> None:
    answer = host.call("snapshot", request_)
    assert answer["code"] == "bad_request" and next(iter(request_)) in answer["error"]


def test_setuid_and_unknown_owner_are_refused(host: Host) -> None:
    path = host.root / "f"
    assert "setuid" in host.call("apply", apply_request(file_step(path, mode="4755")))["error"]
    answer = host.call("apply", apply_request(file_step(path, owner="nobody-here")))
    assert "no user 'nobody-here'" in answer["error"] and not path.exists()


@pytest.mark.parametrize(("args", "stdin", "words"), [
    (["fly"], "", "unknown verb"), ([], "", "no verb"), (["apply"], "", "no JSON object"),
    (["apply"], "[1]", "not a JSON object"), (["apply"], "{", "not JSON"),
    (["snapshot", "--deep"], "", "unknown argument"), (["status", "x"], "", "unknown argument"),
    (["undo", "-f"], "", "unknown argument"),
    (["lock", "--", "sh", "-c", "id"], "", "unknown argument"),
])  # fmt: skip
def test_bad_usage_is_exit_2_and_one_line(
    host: Host, args: list[str], stdin: str, words: str
) -> None:
    done = host.run([host.python, "-I", str(host.pyz), *args], stdin)
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, answer["code"]) == (2, "", "usage")
    assert words in answer["error"]


@pytest.mark.parametrize("text", ["'; touch CANARY; #", "$(touch CANARY)", "`touch CANARY`",
                                  "\n touch CANARY\n", '"; touch CANARY; "', "\\"])  # fmt: skip
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_hostile_request_reaches_the_program_as_text(host: Host, shell: str, text: str) -> None:
    line = pack.inline_command("snapshot", {"files": [text]})
    done = host.run([shell, "-c", f"cd {host.root} && {line}"])
    assert json.loads(done.stdout)["code"] == "bad_request"
    assert not (host.root / "CANARY").exists()


@pytest.mark.parametrize("verb", ["snapshot; touch x", "", "$(x)", "a'b", "--help"])
def test_a_hostile_verb_never_becomes_a_command(verb: str) -> None:
    with pytest.raises(ValueError, match="not a verb"):
        pack.inline_command(verb, {})


# What other programs print, read: nvidia-smi, systemctl show, /proc, bonding, secrets.

FIXTURES = Path(__file__).parent / "fixtures"


def rows(name: str, cells: int) -> str:
    """The lines of a fixture that have this many cells (the H200's query had 14: cut to ours)."""
    lines = (FIXTURES / name).read_text().splitlines()
    kept = [line.split(", ") for line in lines if line and not line.startswith("#")]
    return "\n".join(", ".join(line[:9]) for line in kept if (len(line) >= 9) == (cells == 9))


def test_h200() -> None:
    idle, busy = gpus.parse_gpus(rows("nvidia-smi-h200.txt", 9))
    assert (idle["memory_total_mib"], idle["memory_used_mib"], idle["memory_free_mib"]) == (
        143771, 0, 143156)  # fmt: skip
    assert busy["memory_used_mib"] == 15979 and busy["name"] == "NVIDIA H200"
    assert (busy["driver_version"], busy["compute_cap"]) == ("580.159.04", "9.0")
    app = gpus.parse_apps("GPU-d6cbe0ae, 4194305, /opt/a, b/python3, 15970")[0]
    assert (app["pid"], app["process_name"], app["used_mib"]) == (
        4194305, "/opt/a, b/python3", 15970)  # fmt: skip
    assert app["start_ticks"] is None and app["container_id"] is None


def test_gb10_reports_no_memory_but_its_processes() -> None:
    gpu = gpus.parse_gpus(rows("nvidia-smi-gb10.txt", 9))[0]
    assert [gpu[f"memory_{key}_mib"] for key in ("total", "used", "free")] == [None, None, None]
    assert (gpu["name"], gpu["compute_cap"]) == ("NVIDIA GB10", "12.1")
    app = gpus.parse_apps(rows("nvidia-smi-gb10.txt", 4))[0]
    assert (app["process_name"], app["used_mib"]) == ("VLLM::EngineCore", 97280)


@pytest.mark.parametrize(("value", "wanted"), [
    ("[N/A]", None), ("Not Supported", None), ("[Not Supported]", None), ("0", 0), ("12", 12),
])  # fmt: skip
def test_not_reported_is_a_value(value: str, wanted: int | None) -> None:
    assert gpus.mib(value) == wanted


@pytest.mark.parametrize("value", ["[GPU requires reset]", "[Unknown Error]", "ERR!", "much"])
def test_a_fault_is_not_a_value(value: str) -> None:
    with pytest.raises(CannotRead, match="nvidia-smi"):
        gpus.mib(value)


@pytest.mark.parametrize("text", ["0, GPU-1, NVIDIA", "No devices were found", "a,b,c,d,e,f"])
def test_an_unknown_line_is_unreadable(text: str) -> None:
    with pytest.raises(CannotRead, match="unknown line"):
        gpus.parse_gpus(text)


GHOST = "{ path=/no/such ; argv[]=/no/such ; ignore_errors=no }"


def test_systemctl_show() -> None:
    text = (
        "Id=a.service\nLoadState=loaded\nActiveState=active\nMainPID=7\nNRestarts=2\n"
        "ExecStart={ path=/bin/sh ; argv[]=/bin/sh -c x ; ignore_errors=no ; start_time=[n/a] }\n"
        "DropInPaths=/a.conf /b.conf\nNeedDaemonReload=yes\nExecMainStatus=203\n\n"
        "Id=b.service\nLoadState=not-found\nActiveState=inactive\nMainPID=0\n"
    )
    first, second = units.blocks(text)
    row = units.unit("a.service", first)
    assert (row["exec_start"], row["exec_start_exists"]) == (["/bin/sh", "-c", "x"], True)
    assert (row["main_pid"], row["restarts"], row["exit_status"]) == (7, 2, 203)
    assert row["drop_ins"] == ["/a.conf", "/b.conf"] and row["needs_reload"] is True
    other = units.unit("b.service", second)
    assert (other["load_state"], other["exec_start_exists"]) == ("not-found", None)
    ghost = units.unit("g", {"ExecStart": [GHOST]})
    assert ghost["exec_start_exists"] is False
    assert ghost["ghosts"] == [{"step": "ExecStart", "path": "/no/such", "container": None}]


def test_an_answer_about_fewer_units_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one unit's state would be told as another's."""
    done = Done(0, "Id=b.service\nActiveState=active\n", "")
    monkeypatch.setattr(units, "run", lambda *_: done)
    assert len(units.show(["b.service"])) == 1
    with pytest.raises(CannotRead, match="systemctl show"):
        units.show(["a.service", "b.service"])


def test_shared_memory_is_no_page_cache_that_could_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {"MemTotal": 9000, "MemFree": 100, "MemAvailable": 700, "Shmem": 300, "Cached": 1000,
            "Buffers": 50, "Dirty": 7, "SwapTotal": 0, "SwapFree": 0}  # fmt: skip
    text = "".join(f"{name}: {kib} kB\n" for name, kib in rows.items())
    monkeypatch.setattr(proc, "read_text", lambda path: text)
    seen = gpus.read_memory()
    assert (seen["page_cache"], seen["shmem"]) == (750 * 1024, 300 * 1024)


def test_bond_slaves() -> None:
    text = ("MII Status: up\n\nSlave Interface: enp1s0f0\nMII Status: up\n\n"
            "Slave Interface: enp1s0f1\nMII Status: down\n")  # fmt: skip
    assert snapshot.bond_slaves_down(text) == ("enp1s0f1",)


def test_links() -> None:
    rows = [
        {"ifname": "bond0", "flags": ["LOWER_UP"], "mtu": 9000, "operstate": "UP",
         "linkinfo": {"info_kind": "bond"}, "address": "00:11:22:33:44:55",
         "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}]},
        {"ifname": "enx", "flags": [], "mtu": 1500, "operstate": "DOWN", "master": "bond0"},
    ]  # fmt: skip
    bond, slave = snapshot.links(rows)
    assert (bond["kind"], bond["slaves"], bond["addresses"]) == ("bond", ["enx"], ["10.0.0.1/24"])
    assert (bond["carrier"], slave["carrier"], slave["master"]) == (True, False, "bond0")


def test_listening_ports() -> None:
    head = "  sl  local_address rem_address   st ...\n"
    row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1\n"
    established = row.replace(" 0A ", " 01 ")
    assert processes.listening(head + row + established) == [("127.0.0.1", 8080, 77)]
    assert processes.address("00000000000000000000000001000000") == "::1"


@pytest.mark.parametrize(("path", "unit", "container"), [
    ("/system.slice/vllm.service", "vllm.service", None),
    ("/system.slice/docker-" + "a" * 64 + ".scope", None, "a" * 64),
    ("/docker/" + "b" * 64, None, "b" * 64),
    ("/kubepods.slice/pod1.slice/cri-containerd-" + "c" * 64 + ".scope", None, "c" * 64),
    ("/user.slice/user-1000.slice/session-3.scope", None, None),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/e.service",
     "user@1000.service", None),
    ("/user.slice/user-1000.slice/user@1000.service/docker-" + "d" * 64 + ".scope",
     "user@1000.service", None),
    ("/system.slice/own.service/x;curl evil.service/docker-" + "d" * 64 + ".scope",
     "own.service", None),
    ("/init.scope", None, None), ("", None, None),
])  # fmt: skip
def test_supervisors(path: str, unit: str | None, container: str | None) -> None:
    assert (proc.unit_of(path), proc.container_of(path)) == (unit, container)


@pytest.mark.parametrize(("argv", "wanted"), [
    (["VLLM::EngineCore"], True), (["VLLM::Worker_TP0_EP1"], True),
    (["/v/bin/python3", "/v/bin/vllm", "serve", "m"], True), (["vllm", "serve", "m"], True),
    (["python3.12", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server"], True),
    (["python", "-m", "vllm.entrypoints.cli.main", "serve"], True),
    (["python", "/x/vllm/entrypoints/openai/api_server.py"], True),
    (["bash", "-c", "vllm serve m"], False), (["docker", "run", "i", "vllm", "serve"], False),
    (["/sbin/docker-init", "--", "vllm", "serve"], False), (["pgrep", "-f", "VLLM::"], False),
    (["python", "-c", "x", "vllm"], False), (["vim", "vllm"], False), ([], False),
    (["python", "-m", "vllmx"], False), (["grep", "VLLM::Worker"], False),
])  # fmt: skip
def test_what_is_an_engine(argv: list[str], wanted: bool) -> None:
    assert processes.is_engine(argv) is wanted


def test_a_kernels_command_line_tells_no_secret() -> None:
    line = "ro  kho=off systemd.set_credential=a:b nfs.password=x rd.luks.key=/k root=UUID=1-2"
    assert secret.masked_cmdline(line) == (
        "ro kho=off systemd.set_credential=*** nfs.password=*** rd.luks.key=*** root=UUID=1-2"
    )


def test_secrets_stay() -> None:
    environ = {"HF_TOKEN": "t", "VLLM_API_KEY": "k", "VLLM_X": "1", "PATH": "/", "AWS_SECRET": "s"}
    seen = secret.watched_environ(environ)
    assert seen == {"HF_TOKEN": "***", "VLLM_API_KEY": "***", "VLLM_X": "1"}
    argv = ["serve", "--api-key", "a", "b", "--port", "1", "--api-key=c", "--hf-token", "d",
            "--tokenizer", "e", "--max-num-batched-tokens", "5"]  # fmt: skip
    assert secret.masked_argv(argv) == (
        "serve", "--api-key", "***", "***", "--port", "1", "--api-key=***", "--hf-token", "***",
        "--tokenizer", "e", "--max-num-batched-tokens", "5")  # fmt: skip


def test_a_private_file_is_told_only_as_an_environment_file() -> None:
    text = "# c\nVLLM_X=1\n\nHF_TOKEN=t\n"
    assert secret.masked_env_file(text) == "# c\nVLLM_X=1\n\nHF_TOKEN=***\n"
    assert secret.masked_env_file("hunter2\n") is None
    assert secret.masked_env_file("-----BEGIN KEY-----\nabc=\n") is None


# A limit is one: for a program's grandchildren, and for a wait that dpkg's own words ask for.


def test_a_grandchild_in_a_session_of_its_own_does_not_outlast_the_limit(tmp_path: Path) -> None:
    """It held the pipes, and with them pip, patch tools and the host's lock."""
    started = time.monotonic()
    with pytest.raises(NodeError, match="did not end in 1 s"):
        Owner(str(tmp_path)).run(["/bin/sh", "-c", "setsid sleep 12 & sleep 12"], 1.0, {})
    assert time.monotonic() - started < 6


def test_docker_is_the_one_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's own docker command may be set to another host, or to a rootless docker."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho $DOCKER_HOST\n")
    docker.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    assert run([str(docker), "info"], 5.0).out == "unix:///var/run/docker.sock\n"


def test_an_undo_waits_for_a_lock_in_dpkgs_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real dpkg, an empty folder for its state, and a lock that is free after a moment."""
    for name in ("status", "available"):
        (tmp_path / name).touch()
    for name in ("updates", "info", "triggers"):
        (tmp_path / name).mkdir()
    hold = (
        "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(1.5)"
    )
    argv = [sys.executable, "-c", hold, str(tmp_path / "lock-frontend")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        monkeypatch.setattr(packages_step, "POLL_S", 0.2)
        done = packages_step._dpkg(f"--admindir={tmp_path}", "--configure", "--pending")
    assert done.rc == 0, done.err


# Work at the same time: all of it, in order, and never more at once than is said.


def test_results_keep_the_order_of_the_items() -> None:
    assert each(lambda n: n * n, range(50), 4) == [n * n for n in range(50)]
    assert each(str, [], 4) == [] and each(str, [1], 0) == ["1"]


def test_as_many_at_once_as_are_allowed() -> None:
    together = threading.Barrier(3)
    # passed only when three wait in it at the same time, twice
    assert len(each(lambda _: together.wait(5), range(6), 3)) == 6


def test_never_more_at_once_than_are_allowed() -> None:
    now, most, lock = [0], [0], threading.Lock()

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    each(work, range(12), 2)
    assert most[0] == 2


def test_the_first_error_is_raised_when_all_is_done() -> None:
    done: list[int] = []

    def work(n: int) -> None:
        done.append(n)
        if n in (1, 3):
            raise ValueError(str(n))

    with pytest.raises(ValueError, match=r"^1$"):
        each(work, range(5), 2)
    assert sorted(done) == [0, 1, 2, 3, 4]


# One lock a host: a second one is refused by name or waits, and a dead holder holds nothing.


@pytest.fixture
def holder(host: Host) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its stdin ends."""
    child = host.holding()
    yield child
    child.kill()
    child.communicate()


def test_a_held_lock_refuses_and_names_the_holder(
    host: Host, holder: subprocess.Popen[str]
) -> None:
    path, started = host.file(), time.monotonic()
    answer = host.call("apply", apply_request(file_step(path)))
    assert answer["code"] == "locked" and f"pid {holder.pid} (a test" in answer["error"]
    assert path.read_text() == OLD and time.monotonic() - started < 10
    seen = host.call("lock")
    assert seen["held"] is True and f"pid {holder.pid}" in seen["holder"]
    assert f"lock: held by pid {holder.pid}" in host.run(host.argv("status")).stdout


def test_the_lock_ends_with_its_holder(host: Host, holder: subprocess.Popen[str]) -> None:
    holder.communicate("")
    assert host.call("lock") == {"ok": True, "held": False, "holder": None}


def test_a_killed_holder_holds_nothing(host: Host, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (host.state / "lock").read_text() != ""
    assert host.call("lock") == {"ok": True, "held": False, "holder": None}
    assert host.call("apply", apply_request(file_step(host.file())))["changed"] is True


@pytest.mark.parametrize(("wrong", "known"), [
    ({}, True), ({"start_ticks": 1}, False), ({"boot_id": "x"}, False), ({"pid": 0}, False),
])  # fmt: skip
def test_a_holder_is_a_process_of_this_boot_with_its_start_time(
    host: Host, wrong: dict[str, object], known: bool
) -> None:
    """A pid alone is soon another process's."""
    own = proc.stat(os.getpid())
    assert own is not None
    text = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": proc.boot_id(),
            "verb": "apply", "since_unix_s": 0, **wrong}  # fmt: skip
    host.state.mkdir()
    (host.state / "lock").write_text(json.dumps(text))
    assert (files.lock_holder() is not None) is known


def test_the_lock_is_not_taken_through_a_link(host: Host) -> None:
    """Its text would be written into whatever the link names."""
    host.call("apply", apply_request(file_step(host.file())))
    victim = host.file("victim")
    (host.state / "lock").unlink()
    (host.state / "lock").symlink_to(victim)
    answer = host.call("apply", apply_request(file_step(host.file("other"))))
    assert answer["ok"] is False and victim.read_text() == OLD


def test_two_applies_at_once_end_as_one_after_the_other(host: Host) -> None:
    paths = [host.file(f"f{n}") for n in range(6)]
    procs = []
    for name in ("change-a", "change-b"):
        request = json.dumps(apply_request(*(file_step(p, f"{name}\n") for p in paths), name=name))
        procs.append(subprocess.Popen(host.argv("apply", request), env=host.environ(),
                                      stdout=subprocess.PIPE, text=True))  # fmt: skip
    answers = [json.loads(proc.communicate(timeout=60)[0]) for proc in procs]
    assert sorted(answer["ok"] for answer in answers) == [False, True]
    (refused,) = [answer for answer in answers if not answer["ok"]]
    assert refused["code"] in ("change_open", "locked")
    assert len({path.read_text() for path in paths}) == 1 and paths[0].read_text() != NEW


# Which file it is: by handle, by time of birth, or by the inode alone.


@pytest.mark.parametrize("gone", [[], ["_handle"], ["_handle", "_birth"]])
def test_a_folder_keeps_its_identity_over_a_rename_and_another_has_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: list[str]
) -> None:
    for name in gone:
        monkeypatch.setattr(files, name, lambda _: None)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    before = inspect_tree(str(one))
    words = [None if len(gone) == 2 else ["handle", "birth"][len(gone)]]
    assert [(before["mark"] or "").split(" ")[0] or None] == words
    one.rename(tmp_path / "moved")
    assert inspect_tree(str(tmp_path / "moved")) == before != inspect_tree(str(other))
