"""A host made of folders for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node import pack
from tests.node.reap_world import World
from tests.node.support import Host


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it is installed."""
    path = tmp_path_factory.mktemp("pyz") / f"rignode-{pack.version()}.pyz"
    path.write_bytes(pack.zipapp_bytes())
    path.chmod(0o755)
    return path


@pytest.fixture
def host(tmp_path: Path, pyz: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with nothing on it; node's functions called in this process use its state too."""
    root = tmp_path / "host"
    (root / "bin").mkdir(parents=True)
    monkeypatch.setenv("RIGBOOK_STATE", str(root / "state"))
    return Host(root, pyz)


@pytest.fixture
def world(tmp_path: Path, pyz: Path) -> Iterator[World]:
    """A world of its own for real processes: nothing is in it but its init."""
    root = tmp_path / "world"
    (root / "bin").mkdir(parents=True)
    made = World(root, pyz)
    made.open()
    yield made
    made.close()
