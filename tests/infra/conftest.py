"""`pytest tests/infra --rig inventory/lab.py`: the rig, its connections, one snapshot a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testinfra.host import Host

from schema.core import SpecError
from schema.plan import Node
from schema.snapshot import NodeSnapshot, Unreadable
from tests.infra.observe import Observation, observe, reached
from tests.infra.plugin import Connections, Rig, load_rig

_RIG = pytest.StashKey[Rig]()
_OBSERVATION = pytest.StashKey[Observation]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --rig and --rig-data."""
    group = parser.getgroup("rigbook")
    group.addoption("--rig", metavar="INVENTORY", help="pyinfra inventory of the rig to test")
    group.addoption(
        "--rig-data",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as pyinfra's --data: the recipe or profile that the rig was told to serve",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Loads the rig before any test is collected; wrong input is one line and exit status 4."""
    if config.getoption("help", False):
        return
    inventory = config.getoption("--rig", None)
    if not inventory:
        raise pytest.UsageError(
            "tests/infra needs a rig: pytest tests/infra --rig inventory/lab.py"
        )
    try:
        config.stash[_RIG] = load_rig(inventory, config.getoption("--rig-data"))
    except SpecError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `node` runs once a node, in rank order."""
    if "node" in metafunc.fixturenames:
        nodes = metafunc.config.stash[_RIG].plan.rig.nodes
        metafunc.parametrize("node", nodes, ids=[node.name for node in nodes])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says which boot of which host was tested."""
    observation = config.stash.get(_OBSERVATION, None)
    if observation is None:
        return
    terminalreporter.section(f"rig {config.stash[_RIG].plan.rig.name}")
    for name, seen in observation.snapshots.items():
        if isinstance(seen, Unreadable):
            terminalreporter.line(f"{name}: not reached: {seen.unreadable}")
        else:
            who = seen.identity
            up = f"up {who.uptime_s / 60:.0f} min"
            terminalreporter.line(f"{name}: boot_id {who.boot_id}, {up}, kernel {who.kernel}")


@pytest.fixture(scope="session")
def rig(pytestconfig: pytest.Config) -> Rig:
    """The rig under test."""
    return pytestconfig.stash[_RIG]


@pytest.fixture(scope="session")
def connections(rig: Rig) -> Iterator[Connections]:
    """The ssh connections, closed at the end."""
    try:
        made = Connections(rig)
    except SpecError as error:
        pytest.exit(str(error), returncode=4)
    yield made
    made.close()


@pytest.fixture(scope="session")
def observation(pytestconfig: pytest.Config, rig: Rig, connections: Connections) -> Observation:
    """One snapshot a node, taken at the same time, shared by all tests."""
    seen = observe(rig, connections)
    pytestconfig.stash[_OBSERVATION] = seen
    return seen


@pytest.fixture
def snapshot(node: Node, observation: Observation) -> NodeSnapshot:
    """The node's snapshot; a node that gave none fails here, in one line."""
    return reached(observation, node)


@pytest.fixture
def host(node: Node, connections: Connections, snapshot: NodeSnapshot) -> Host:
    """The node as a testinfra host, commands as root; only for a node that answers."""
    return connections.host(node.name)
