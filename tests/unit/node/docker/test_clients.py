"""Which units hold a container by a docker client: a real process, its unit a stand-in."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from node.core import proc
from node.docker import clients

ID = "badbad1111111111111111111111111111111111111111111111111111111111"
SEED = "vllm-ds4-head.service"


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that calls itself docker with the words of the row, and is of the seed's unit."""
    argv = ["docker", *request.param]
    started = subprocess.Popen(
        ["bash", "-c", 'exec -a docker python3 -c "import sys; sys.stdin.read()" "$@"', *argv],
        stdin=subprocess.PIPE,
    )
    real = proc.cgroup
    monkeypatch.setattr(
        proc, "argv", lambda pid, of=proc.argv: tuple(argv) if pid == started.pid else of(pid)
    )
    monkeypatch.setattr(
        proc, "cgroup", lambda pid: f"/system.slice/{SEED}" if pid == started.pid else real(pid)
    )
    yield
    started.communicate()


@pytest.mark.parametrize(("client", "held"), [
    (["exec", "vllm_ds4", "/workspace/vllm-head.sh"], [SEED]),
    (["exec", ID[:12], "bash"], [SEED]), (["start", "--attach", "vllm_ds4"], [SEED]),
    (["logs", "-f", "vllm_ds4"], []), (["exec", "vllm_ds4_other", "x"], []),
], indirect=["client"])  # fmt: skip
def test_a_docker_exec_of_a_unit_holds_the_container(client: None, held: list[str]) -> None:
    """By its name or its id; one that only reads holds nothing."""
    assert clients.units_of(clients.read(), "vllm_ds4", ID) == held
