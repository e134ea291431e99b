"""Two hosts on loopback with an open change under a lease."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.node.support.host import Host
from tests.unit.node.support.keepers import HEAD, LINE, WORKER, Line, Pair


@pytest.fixture
def pair(tmp_path: Path, pyz: Path) -> Iterator[Pair]:
    """Both have the change, and no keeper runs yet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((LINE[HEAD], 0))
        port = free.getsockname()[1]
    hosts = {}
    for name in (HEAD, WORKER):
        root = tmp_path / name
        (root / "bin").mkdir(parents=True)
        engine = str(root / "node.json")
        hosts[name] = Host(root, pyz, env={"RIGBOOK_ENGINE": engine, "RIGBOOK_CANDIDATE": engine})
    made = Pair(hosts, port)
    made.lines = {name: Line(name, port, seed) for seed, name in enumerate(hosts)}
    made.begin()
    yield made
    made.close()
