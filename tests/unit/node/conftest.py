"""A host made of folders for each test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from schema import render_unit
from tests.unit.node.support import host as support_host
from tests.unit.node.support import trees
from tests.unit.node.support.host import Host, compiled
from tests.unit.node.support.reap_world import World
from tests.unit.node.support.transfers import Ends


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it is installed."""
    path = tmp_path_factory.mktemp("pyz") / f"rignode-{render_unit.program_version()}.pyz"
    path.write_bytes(compiled(pack.zipapp_bytes()))
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
def ends(tmp_path: Path, pyz: Path) -> Ends:
    """A giver and a taker of a transfer, with folders of their own."""
    hosts = []
    for name in ("giver", "taker"):
        root = tmp_path / name
        (root / "bin").mkdir(parents=True)
        hosts.append(Host(root, pyz))
    return Ends(hosts[0], hosts[1], tmp_path / "source", tmp_path / "target")


@pytest.fixture
def world(tmp_path: Path, pyz: Path) -> Iterator[World]:
    """A world of its own for real processes: nothing is in it but its init."""
    root = tmp_path / "world"
    (root / "bin").mkdir(parents=True)
    made = World(root, pyz)
    made.open()
    yield made
    made.close()


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real venv with a stand-in of vllm 0.27.0, made once; `wheels` lies beside it."""
    folder = tmp_path_factory.mktemp("venv")
    (folder / "wheels").mkdir()
    trees.make(folder / "venv", folder / "wheels")
    return folder / "venv"


@pytest.fixture
def engine(host: Host, venv: Path) -> trees.Engine:
    """A host with that venv at host/engine/venv; its scripts name that path."""
    tree = host.root / "engine" / "venv"
    tree.parent.mkdir()
    trees.moved(venv, tree)
    return trees.Engine(host, tree, venv.parent / "wheels")


@pytest.fixture
def show(record_property: Callable[[str, object], None]) -> support_host.Show:
    """Shows a line in the summary of the run, also when the test passed."""
    return lambda line: record_property(support_host.KEY, line)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tables of the fault tests: cells, and how many lost something."""
    stats = terminalreporter.stats
    rows = support_host.shown([*stats.get("passed", []), *stats.get("failed", [])])
    if rows:
        terminalreporter.section("fault tables")
        for line in rows:
            terminalreporter.write_line(line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)
