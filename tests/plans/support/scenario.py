"""Runs the real pyinfra command line against stand-in hosts, and reads what came of it.

Each run is a fork of a process that has imported pyinfra and the project: 0.15 s in place of 1 s.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from schema.desired.plan import Plan
from schema.inputs.load import plan
from schema.observed.kernel import KernelFacts
from schema.observed.snapshot import NodeSnapshot
from tests.forkserver import Forkserver, shared
from tests.plans.support.commands import Sent, sent
from tests.plans.support.engine_double import EngineDouble, Reply, loopback
from tests.plans.support.fakehost import DOWN, RECORD, SCENARIO, VARIABLE
from tests.unit.builders import snapshots as builders_snapshots
from tests.unit.builders.host_parts import unit

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = "tests/plans/support/inventory.py"
HEAD, WORKER = "@fake/lab1", "@fake/lab2"
# A run that hangs is a failure, not a wait.
TIMEOUT_S = 60
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Snapshots = dict[str, NodeSnapshot]
# The runbooks themselves are read anew by each run, as pyinfra does it.
PRELOAD = f"""\
import importlib, pkgutil, sys
sys.path.insert(0, {str(ROOT)!r})
import pyinfra_cli.main, pyinfra.connectors.fake
from deploys.common import startup_speed
for part in ("schema", "facts", "gates", "operations", "deploys.common", "deploys.procedures"):
    found = pkgutil.walk_packages(importlib.import_module(part).__path__, part + ".")
    for module in found:
        importlib.import_module(module.name)
for needed in startup_speed.NEEDED:
    module, _, kind = needed.partition(":")
    if kind:
        getattr(importlib.import_module(module), kind).model_rebuild()
import tests.plans.support.fakehost
sys.path[0] = ""
"""
PYINFRA = "from pyinfra_cli.main import main; main()"


def data(*pairs: str) -> tuple[str, ...]:
    """The words of these --data."""
    return tuple(word for pair in pairs for word in ("--data", pair))


def host(number: int, address: str, **changes: object) -> dict[str, object]:
    """Host `number`'s whole data (1 is the head); a change to `...` leaves the key out."""
    head = number == 1
    data: dict[str, object] = {
        "role": "head" if head else "worker",
        "lan_address": address if head else f"127.0.0.{number + 1}",
        "fabric_address": f"10.0.0.{number}",
        "fabric_device": "bond0",
        "ssh_user": "milo",
        "rig": "lab",
        "recipe": "tiny",
        **changes,
    }
    return {key: value for key, value in data.items() if value is not ...}


def tiny_plan(address: str = "127.0.0.2", **changes: object) -> Plan:
    """The plan of the two stand-in hosts with the same changes on both."""
    hosts = {HEAD: host(1, address, **changes), WORKER: host(2, address, **changes)}
    return plan(hosts, None, ROOT)


def serving(plan: Plan) -> Snapshots:
    """Both nodes as serve leaves them: the engine's unit, and each other unit that it set up."""
    seen = dict(builders_snapshots.serving(plan))
    for name, snapshot in seen.items():
        assert isinstance(snapshot.units, tuple)
        there = {found.name for found in snapshot.units}
        others = tuple(unit(name=n) for n in plan.requests[name].units if n not in there)
        seen[name] = builders_snapshots.put(snapshot, "units", (*snapshot.units, *others))
    return seen


@dataclass(frozen=True)
class Scenario:
    """A command line, and the rig that it meets.

    `seen` makes the snapshots from the plan; `data` changes both hosts' data; `hosts` replaces
    the inventory (called with the endpoint's address, when it is a function); `faults` are
    FakeNode's; `answers` None: nobody listens at the endpoint; `kernels` is what a node would boot
    (none: a container, which has no boot of its own); `key` is what the engine wants; `folder` is
    where pyinfra starts, `inventory` and `deploy` what it is told; `env` is added.
    """

    arguments: tuple[str, ...]
    seen: Callable[[Plan], Snapshots] = serving
    data: Mapping[str, object] = field(default_factory=dict)
    hosts: list[Any] | Callable[[str], list[Any]] | None = None
    faults: Mapping[str, object] = field(default_factory=dict)
    kernels: Mapping[str, KernelFacts] = field(default_factory=dict)
    answers: Callable[[], Reply] | None = None
    metrics: str | None = "vllm:up 1\n"
    key: str | None = None
    folder: Path = ROOT
    inventory: str = INVENTORY
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """What a run came to: exit status, stdout, stderr without colours, the commands in order, and
    the Authorization of each request at the endpoint.
    """

    status: int
    stdout: str
    stderr: str
    commands: tuple[Sent, ...]
    keys: tuple[str | None, ...] = ()

    @property
    def output(self) -> str:
        """Everything that the operator sees."""
        return self.stderr + self.stdout

    @property
    def changing(self) -> tuple[Sent, ...]:
        """The commands that may have changed something on a host."""
        return tuple(command for command in self.commands if command.changes)

    @property
    def steps(self) -> list[str]:
        """The commands for change in order, as `lab1 apply start`; looks into the journal aside."""
        return [
            f"{command.host.removeprefix('@fake/')} {command.what}"
            for command in self.changing
            if command.verb != "journal"
        ]

    def of(self, name: str) -> list[str]:
        """The verbs that one host was asked, in order."""
        return [command.what for command in self.commands if command.host == name]

    @property
    def last_words(self) -> str:
        """The error that pyinfra ends with: all behind its `--> … error …: `."""
        found = re.findall(
            r"^\s*--> [^\n]*error[^\n]*?: (.+?)(?=\n\n|\n-->|\Z)", self.stderr, re.M | re.S
        )
        return str(found[-1]).strip() if found else ""

    def refused(self, *parts: str) -> None:
        """Asserts a clean refusal: exit status, a clear line with `parts`, nothing changed."""
        assert self.status != 0, self.output
        assert "Traceback" not in self.output, self.output
        for part in parts:
            assert part in self.last_words, (part, self.last_words, self.output)
        assert self.changing == ()


def run(scenario: Scenario) -> Ran:
    """Runs one scenario in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="rigbook-plan-") as text:
        folder, address = Path(text), loopback()
        answers = scenario.answers
        if answers is None:
            return _run(scenario, folder, address)

        def reply() -> Reply:
            if (folder / DOWN).exists():
                return Reply("stand-in engine is loading", status=503)
            return answers()

        with EngineDouble(reply, address, 8000, scenario.metrics, scenario.key) as engine:
            ran = _run(scenario, folder, address)
            return replace(ran, keys=tuple(engine.keys))


def _run(scenario: Scenario, folder: Path, address: str) -> Ran:
    prepare(scenario, folder, address)
    done = _warm().run(
        ["pyinfra", scenario.inventory, *scenario.arguments],
        env=environ(scenario, folder),
        cwd=scenario.folder,
        timeout=TIMEOUT_S,
    )
    return Ran(done.returncode, done.stdout, _COLOUR.sub("", done.stderr), commands(folder))


def prepare(scenario: Scenario, folder: Path, address: str) -> None:
    """Writes what the stand-in hosts are to be into the run's folder."""
    # The rig as it is does not depend on what this run asks for.
    snapshots = scenario.seen(tiny_plan(address))
    hosts = scenario.hosts
    if callable(hosts):
        hosts = hosts(address)
    if hosts is None:
        names = enumerate((HEAD, WORKER), start=1)
        hosts = [(name, host(n, address, **scenario.data)) for n, name in names]
    document = {
        "hosts": hosts,
        "snapshots": {name: shot.model_dump(mode="json") for name, shot in snapshots.items()},
        "faults": dict(scenario.faults),
        "kernels": {n: k.model_dump(mode="json") for n, k in scenario.kernels.items()},
    }
    (folder / SCENARIO).write_text(json.dumps(document))


def environ(scenario: Scenario, folder: Path) -> dict[str, str]:
    """What a scenario's run gets."""
    return {**_environ(), VARIABLE: str(folder), "XDG_STATE_HOME": str(folder), **scenario.env}


def commands(folder: Path) -> tuple[Sent, ...]:
    """What a run in this folder has sent so far."""
    record = folder / RECORD
    lines = record.read_text().splitlines() if record.exists() else []
    return tuple(sent(*json.loads(line)) for line in lines)


def _environ() -> dict[str, str]:
    """What every run of pyinfra gets."""
    return {**os.environ, "PYINFRA_PROGRESS": "off", "PYTHONDONTWRITEBYTECODE": "1"}


def _warm() -> Forkserver:
    """pyinfra with the project's modules behind it, one for all runs of this pytest process."""
    python = [sys.executable]
    return shared("pyinfra", lambda: Forkserver(python, PRELOAD, PYINFRA, _environ()))


class Runs:
    """Scenarios by name, all started at once (three at a time), each read once it is done."""

    def __init__(self, scenarios: Mapping[str, Scenario]) -> None:
        with ThreadPoolExecutor(max_workers=3) as pool:
            futures: dict[str, Future[Ran]] = {
                name: pool.submit(run, scenario) for name, scenario in scenarios.items()
            }
        self._ran = {name: future.result() for name, future in futures.items()}

    def __getitem__(self, name: str) -> Ran:
        return self._ran[name]

    def each(self, names: Iterable[str]) -> list[Ran]:
        """The runs of these names."""
        return [self._ran[name] for name in names]
