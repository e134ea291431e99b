"""Runs the real pyinfra command line against stand-in hosts, and reads what came of it.

Each run is a fork of a process that has imported pyinfra and the project: 0.15 s in place of 1 s.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploys.plans.rig import files_in
from schema import render_engine, render_unit
from schema.host import KernelFacts
from schema.load import plan
from schema.plan import Plan
from schema.snapshot import NodeSnapshot, Unreadable
from tests.forkserver import Forkserver, shared
from tests.plans.support.doubles import EngineDouble, Reply, Sent, loopback, sent
from tests.plans.support.fakehost import DOWN, RECORD, SCENARIO, VARIABLE
from tests.unit.builders import rigs
from tests.unit.builders.engine_parts import written_file
from tests.unit.builders.host_parts import BASE as host_parts_BASE
from tests.unit.builders.host_parts import change, unit
from tests.unit.builders.mxfp4 import BASE, PATH, diff
from tests.unit.builders.rigs import healthy, put

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
from deploys.plans import startup_speed
for part in ("schema", "facts", "gates", "operations", "deploys.plans"):
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
    seen = dict(rigs.serving(plan))
    for name, snapshot in seen.items():
        assert isinstance(snapshot.units, tuple)
        there = {found.name for found in snapshot.units}
        others = tuple(unit(name=n) for n in plan.requests[name].units if n not in there)
        seen[name] = rigs.put(snapshot, "units", (*snapshot.units, *others))
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


# A runbook's table: each scenario, what it sends, what it says, and how it ends.

# Steps in order; those of a set come in any order, as two hosts at the same time.
Steps = Sequence[Collection[str]]


@dataclass(frozen=True)
class Ends:
    """How a run is to end.

    `status` is the exit status (None: any but 0), `steps` what changes in order (None: whatever),
    `asks` all that is asked, sorted (None: whatever); `says` stands in the output, `never` does
    not; `last` stands in the error that the run ends with.
    """

    status: int | None = 0
    steps: Steps | None = None
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    asks: Sequence[str] | None = None

    def check(self, run: Ran) -> None:
        """Asserts all of it; no run ends with a traceback."""
        assert run.status == self.status if self.status is not None else run.status, run.output
        for part in self.says:
            assert part in run.output, (part, run.output)
        for part in (*self.never, "Traceback"):
            assert part not in run.output, (part, run.output)
        for part in self.last:
            assert part in run.last_words, (part, run.last_words, run.output)
        if run.status:
            # what matters stands last, without a place in the code, and pyinfra's own is no verdict
            assert run.stderr.rstrip().endswith(run.last_words) and run.last_words, run.output
            assert " line " not in run.stderr.rpartition("--> ")[2].partition(": ")[0], run.output
            assert "No hosts remaining" not in run.last_words, run.output
        if self.steps is not None:
            assert _grouped(run.steps, self.steps) == list(self.steps), (run.steps, run.output)
            assert self.steps or run.changing == ()
        elif self.status == 1:
            assert not any("COMMITTED" in step for step in run.steps), run.steps
        if self.asks is not None:
            assert sorted(command.what for command in run.commands) == list(self.asks)


def _grouped(steps: list[str], like: Steps) -> list[Collection[str]]:
    """The steps, with those taken together that `like` takes together."""
    left = list(steps)
    made: list[Collection[str]] = []
    for group in like:
        size = len(group) if isinstance(group, set) else 1
        made.append(set(left[:size]) if isinstance(group, set) else "".join(left[:1]))
        del left[:size]
    return [*made, *left]


def done(*says: str, steps: Steps | None = None, never: tuple[str, ...] = ()) -> Ends:
    """It works."""
    return Ends(0, steps, says, never)


def quiet(*says: str, never: tuple[str, ...] = (), asks: Sequence[str] | None = None) -> Ends:
    """It works, and nothing is changed."""
    return Ends(0, (), says, never, asks=asks)


def failed(*says: str, steps: Steps | None = None, never: tuple[str, ...] = ()) -> Ends:
    """It fails, with exit status 1; no change is blessed that `steps` does not name."""
    return Ends(1, steps, says, never)


def refused(*last: str, says: tuple[str, ...] = ()) -> Ends:
    """A clean refusal: a clear line at the end, nothing changed."""
    return Ends(None, (), says, last=last)


Table = Mapping[str, tuple[Scenario, Ends]]


def each_row(table: Table | Mapping[str, Ends]) -> Callable[[Runs, str], None]:
    """The test that each run of a module (its fixture `ran`) ends as its row says."""

    @pytest.mark.parametrize("name", table)
    def test_each_run_ends_as_its_row_says(ran: Runs, name: str) -> None:
        row = table[name]
        (row if isinstance(row, Ends) else row[1]).check(ran[name])

    return test_each_run_ends_as_its_row_says


# Rigs that the plan tests meet, each as a function from the plan to its nodes' snapshots.

Seen = Callable[[Plan], Snapshots]
OPEN_ID = "20260530T065800Z-serve-1a2b"
PROGRAM, FORMER = (
    render_unit.program_path(),
    f"{render_unit.PROGRAM_LIBRARY}/rignode-0123456789ab.pyz",
)
BLESSED_ID = "20260529T065800Z-serve-3c4d"


def broken(base: Seen, *changes: tuple[str, str, object]) -> Seen:
    """`base` with (host, path, value) replaced."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(base(plan))
        for name, path, value in changes:
            seen[name] = put(seen[name], path, value)
        return seen

    return make


def with_changes(base: Seen, *of: tuple[str, str, str]) -> Seen:
    """`base` with (host, status, id) in the journals."""
    rows = {
        name: tuple(change(status, id=id_) for at, status, id_ in of if at == name)
        for name in (HEAD, WORKER)
    }
    return broken(base, *((name, "journal.changes", found) for name, found in rows.items()))


image_missing = broken(healthy, (WORKER, "docker.images", ()))
docker_silent = broken(healthy, (WORKER, "docker", Unreadable(unreadable="dockerd: no answer")))
# of a runbook that nobody takes up
change_open = broken(
    healthy, (HEAD, "journal.changes", (change("OPEN", id=OPEN_ID, deploy="patch"),))
)
locked = broken(healthy, (HEAD, "journal.lock_held", True), (HEAD, "journal.lock_holder", "pid 7"))
_MTU = "network.links.0.mtu"
short_mtu = broken(healthy, (HEAD, _MTU, 1500), (WORKER, _MTU, 1500))
unit_disabled = broken(serving, (WORKER, "units.0.enabled", "disabled"))


def former_program(plan: Plan) -> Snapshots:
    """A serving rig whose units a former version of rigbook wrote: they name its program."""
    seen = dict(serving(plan))
    for name, documents in plan.documents.items():
        former = {
            state.path: state
            for d in documents
            for state in [written_file(replace(d, content=d.content.replace(PROGRAM, FORMER)))]
        }
        files = tuple(former.get(file.path, file) for file in files_in(seen[name]).values())
        seen[name] = put(seen[name], "files", files)
    return seen


one_forgotten = with_changes(healthy, (HEAD, "COMMITTED", BLESSED_ID), (WORKER, "OPEN", OPEN_ID))


# A stand-in Kubernetes rig for the plan tests: its data, its host, its library folder.

ADDRESS = "127.0.0.2"
DATA: dict[str, object] = {
    "lan_address": ADDRESS, "ssh_user": "olares", "rig": "olares", "namespace": "ai",
    "deployment": "lucebox", "kubectl": "kubectl",
}  # fmt: skip


def one(**changes: object) -> list[Any]:
    """The inventory: one host, with its data changed."""
    return [(HEAD, {**DATA, **changes})]


def bare(plan: Plan) -> Snapshots:
    """A host on which rigbook has left nothing; docker and driver are not asked for."""
    seen = rigs.healthy(plan)[HEAD]
    paths = (*render_engine.LIBRARY_FILES, *render_engine.LIMIT_FILES[1:])
    absent = {"sha256": None, "size": None, "mode": None, "uid": None, "gid": None, "content": None}
    files = [{"path": path, "kind": "absent", **absent} for path in paths]
    values = seen.model_dump(mode="json")
    return {HEAD: NodeSnapshot.model_validate({**values, "files": files, "units": []})}


def scenario(*arguments: str, faults: dict[str, object] | None = None, **more: Any) -> Scenario:
    """A run against the stand-in; `faults` are the host's."""
    return Scenario(
        arguments, more.pop("seen", bare), hosts=more.pop("hosts", one()),
        faults={f"{HEAD}:{key}": value for key, value in (faults or {}).items()}, **more,
    )  # fmt: skip


def said(look: Any) -> Any:
    """A typed answer as the host sends it."""
    return look.model_dump(mode="json")


def mapped(sha256: str, inode: int = 7) -> dict[str, object]:
    """What a fresh process maps."""
    return {"path": host_parts_BASE, "inode": inode, "sha256": sha256, "said": ""}


# A venv as far as its files go, and recipes that patch it, for the plan tests.


def make_venv(folder: Path, text: str = BASE) -> Path:
    """A venv with the file that the patch is about."""
    venv = folder / "venv"
    library = venv / "lib/python3.11/site-packages"
    target = library / PATH
    target.parent.mkdir(parents=True)
    target.write_text(text)
    (library / "vllm/_version.py").write_text("__version__ = version = '0.20.2+g1234567ab'\n")
    (library / "torch").mkdir()
    (library / "torch/version.py").write_text("__version__ = '2.10.0+cpu'\ncuda = None\n")
    info = library / "vllm-0.20.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.20.2\n\nText\n")
    (venv / "bin").mkdir()
    return venv


def target(venv: Path) -> Path:
    """The file that the patch is about."""
    return venv / "lib/python3.11/site-packages" / PATH


def make_recipe(folder: Path, name: str = "patched", **more: object) -> Path:
    """A recipe like tiny with the seed's patch; gives its folder, for `recipes_dir`."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    recipe["file_patches"] = [
        {
            "id": "mxfp4-gpu-cache",
            "path": PATH,
            "diff": diff(),
            "contains": "empty_cache",
            "count": 2,
            "reason": "without it the firmware hangs",
        }
    ]
    recipes = folder / "recipes"
    recipes.mkdir(exist_ok=True)
    (recipes / f"{name}.yaml").write_text(yaml.safe_dump({**recipe, **more}, sort_keys=False))
    return recipes
