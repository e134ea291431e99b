"""What a unit starts: files that are missing on the host or in a container, drop-ins, its log."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node import processes, units
from node.core.errors import CannotRead
from node.docker import api
from tests.unit.node.support.host import Host


def shown(line: str, may_fail: bool = False) -> str:
    """An Exec property's value as `systemctl show` prints it."""
    ignore = "yes" if may_fail else "no"
    return (f"{{ path={line.split()[0]} ; argv[]={line} ; ignore_errors={ignore} ; "
            "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }")  # fmt: skip


def ghosts(line: str, step: str = "ExecStart", may_fail: bool = False) -> list[tuple[str, Any]]:
    found = units.ghosts_of(units.shown_commands(step, [shown(line, may_fail)]))
    return [(row["path"], row["container"]) for row in found]


def test_files_that_are_there_are_no_ghosts(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("")
    for line in ("/bin/sh -c x", f"/bin/bash {script}", f"/usr/bin/env A=1 {script}", "/bin/true"):
        assert ghosts(line) == []


@pytest.mark.parametrize(("line", "path"), [
    ("/opt/gone/bin/vllm serve", "/opt/gone/bin/vllm"),
    ("/bin/bash /opt/gone/run.sh --x", "/opt/gone/run.sh"),
    ("/bin/bash -eu /opt/gone/run.sh", "/opt/gone/run.sh"),
    ("/usr/bin/env /opt/gone/run", "/opt/gone/run"),
])  # fmt: skip
def test_a_ghost_of_the_host(line: str, path: str) -> None:
    assert ghosts(line) == [(path, None)]
    assert ghosts(line, may_fail=True) == [], "a command with `-` before it stops no start"


def test_what_an_interpreter_gets_as_text_is_no_file() -> None:
    assert ghosts("/bin/bash -c /opt/gone/x") == [] and ghosts("/bin/sh x /opt/gone") == []


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Stand-in for docker's answer about one container."""
    return lambda row: monkeypatch.setattr(api, "get", lambda path, absent_ok=False: row)


EXEC = "/bin/docker exec -u root -i box bash /workspace/run.sh"


@pytest.fixture(autouse=True)
def no_docker_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself is not looked for: this machine need not have it."""
    real = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda p: p == "/bin/docker" or real(p))


def appears(script: Path) -> None:
    """EXEC's script is missing until this file is there."""
    assert ghosts(EXEC) == [("/workspace/run.sh", "box")]
    script.write_text("")
    assert ghosts(EXEC) == []


def test_inside_a_stopped_container(tmp_path: Path, docker: Callable[[Any], None]) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    upper.mkdir()
    (lower / "workspace").mkdir(parents=True)
    data = {"UpperDir": str(upper), "LowerDir": f"{tmp_path}/none:{lower}"}
    docker({"State": {"Pid": 0}, "GraphDriver": {"Data": data}, "Config": {}})
    appears(lower / "workspace" / "run.sh")


def test_inside_a_mount(tmp_path: Path, docker: Callable[[Any], None]) -> None:
    docker({"Mounts": [{"Source": str(tmp_path), "Destination": "/workspace"}], "Config": {},
            "GraphDriver": {"Data": {"UpperDir": str(tmp_path / "upper")}}})  # fmt: skip
    appears(tmp_path / "run.sh")


def test_inside_a_running_container(docker: Callable[[Any], None]) -> None:
    docker({"State": {"Pid": os.getpid()}, "Config": {}})
    assert ghosts("/bin/docker exec box bash /no/such/run.sh") == [("/no/such/run.sh", "box")]
    assert ghosts("/bin/docker exec box bash /etc/passwd") == []


def test_what_cannot_be_told_is_not_missing(
    docker: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(path: str, absent_ok: bool = False) -> Any:
        raise CannotRead("docker did not answer in 8 s")

    monkeypatch.setattr(api, "get", silent)
    assert ghosts(EXEC) == []
    docker(None)
    assert ghosts(EXEC) == []
    docker({"Config": {}})
    assert ghosts(EXEC) == [], "its store keeps layers packed"


def test_a_link_is_followed_inside_the_container(
    tmp_path: Path, docker: Callable[[Any], None]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "workspace").symlink_to("/elsewhere")
    docker({"Config": {}, "GraphDriver": {"Data": {"UpperDir": str(tmp_path)}}})
    appears(tmp_path / "elsewhere" / "run.sh")


def test_drop_ins() -> None:
    text = "# x\n[Service]\nExecStart=\nExecStart=/bin/a \\\n  b\n"
    assert units.override("/d", text) == {
        "path": "/d", "exec_start": ["/bin/a b"], "resets": True}  # fmt: skip
    torn = units.override("/d", "[Service]\nExecStart=/bin/a\n")
    assert torn is not None and torn["resets"] is False
    assert units.override("/d", "[Service]\nRestart=no\n[Unit]\nExecStart=/x\n") is None


def test_units_of_others_that_run_docker_or_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "FOLDERS", (str(tmp_path),))
    files = {
        "old.service": "ExecStart=/usr/bin/docker exec box bash /x.sh\n",
        "venv.service": "ExecStart=/opt/vllm/bin/python -m x\n",
        "torn.service": "ExecStart=/usr/bin/docker \\\n  start box\n",
        "docker.service": "ExecStart=/usr/bin/dockerd -H fd://\n",
        "at@.service": "ExecStart=/usr/bin/docker start %i\n",
        "mine.service": "ExecStart=/usr/bin/docker run x\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(f"[Service]\n{text}")
    (tmp_path / "alias.service").symlink_to("old.service")
    (tmp_path / "web.service.d").mkdir()
    (tmp_path / "web.service.d" / "x.conf").write_text("[Service]\nExecStart=vllm serve\n")
    found = units.others(["mine.service"])
    assert found == ["old.service", "torn.service", "venv.service", "web.service"]


def test_errors_of_a_log_are_kept_and_secrets_masked() -> None:
    gone = "bash: /rigbook/serve.sh: No such file or directory"
    lines = [
        "INFO loading weights", '  File "/x.py", line 3, in error_handler',
        "RuntimeError: --api-key sk-123 is not valid, token: abc", gone, gone,
        "x.service: Main process exited, code=exited, status=127/n/a",
    ]  # fmt: skip
    first, *others = units.error_lines(lines)
    assert others == [gone]
    assert first.startswith("RuntimeError") and "sk-123" not in first and "abc" not in first


def test_connections_with_the_peers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "  sl  local_address rem_address   st ...\n"
    tail = "00000000:00000000 00:00000000 00000000 0 0"
    table = head + (
        f" 0: 0100630A:733D 0200630A:9C40 01 {tail} 71 1\n"
        f" 1: 0100630A:733D 0300630A:9C41 01 {tail} 72 1\n"
        f" 2: 0100630A:733D 0200630A:9C42 06 {tail} 73 1\n"
        f" 3: 00000000:733D 00000000:0000 0A {tail} 74 1\n"
    )
    mapped = "0000000000000000FFFF00000"
    table6 = head + f" 0: {mapped}100630A:733D {mapped}200630A:9C43 01 {tail} 75 1\n"
    tables = collections.defaultdict(lambda: table6, {"/proc/net/tcp": table})
    monkeypatch.setattr(processes.proc, "read_text", tables.__getitem__)
    found = processes.connections([], ["10.99.0.2"])
    ends = [(c["local_address"], c["local_port"], c["peer_address"], c["peer_port"]) for c in found]
    assert ends == [("10.99.0.1", 29501, "10.99.0.2", port) for port in (40000, 40003)]
    assert all(c["pid"] is None and "unit" not in c for c in found)


def test_lines_of_each_start_that_works_name_no_error() -> None:
    """As pytorch#159007 has the first, and an H200 without network the others (2026-11-22)."""
    lines = [
        "[W724 18:22:38.909218572 socket.cpp:200] [c10d] The hostname of the client socket cannot "
        "be retrieved. err=-3",
        "WARNING 11-22 10:00:00 [network_utils.py:38] Failed to get the IP address, using 0.0.0.0 "
        "by default.",
        "WARNING 11-22 10:00:01 [system_utils.py:279] Found ulimit of 1024 and failed to "
        "automatically increase with error current limit exceeds maximum limit.",
    ]
    assert units.error_lines([*lines, "RuntimeError: failed"]) == ["RuntimeError: failed"]


def test_a_log_that_was_late_is_not_one_without_an_error(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.double("journalctl", "#!/bin/sh\n# rigbook stand-in\nexec sleep 60\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    monkeypatch.setattr(units, "LOG_TIMEOUT_S", 0.2)
    told = units.log_trouble("x.service")
    assert told == ("its log was not read: journalctl did not answer in 0.2 s", [], [])
    assert units.log_between("x.service", 0, 1) == []
