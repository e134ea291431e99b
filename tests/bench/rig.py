"""`python -m tests.bench rig`: how fast a rig that is as it should be is found to be so.

On a lab that serves; exit status 1 when something was not as it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version

from gates.drift.compare import drift
from gates.engine.state import own_container
from schema.core.errors import SpecError
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit
from tests.bench.ansible import AnsibleRun
from tests.bench.measure import Bench, timed
from tests.bench.page import Part, machine
from tests.bench.report import Figures, document, rows
from tests.infra.observe import observe
from tests.infra.plugin import Connections, Rig, load_rig

State = Mapping[str, Mapping[str, object]]


def state_of(rig: Rig, connections: Connections) -> State:
    """What a change would change on each node; RuntimeError when a node is not as planned."""
    found: dict[str, dict[str, object]] = {}
    for name, seen in observe(rig, connections).snapshots.items():
        if isinstance(seen, Unreadable):
            raise RuntimeError(f"{name}: {seen.unreadable}")
        differences = [d.text for d in drift(rig.plan, rig.plan.rig.node(name), seen)]
        container = own_container(seen)
        if container is None or container.state != "running":
            differences.append("the engine's container does not run")
        if differences:
            serve = f"pyinfra {rig.inventory} deploys/serve.py -y"
            raise RuntimeError(f"{name}: {differences[0]}; bring it up first: {serve}")
        found[name] = {
            "container": container,
            "files": seen.files,
            "journal": seen.journal,
            # Not the time of the start: the host computes it anew each time, to the microsecond.
            "restarts": [unit.restarts for unit in known_units(seen)],
        }
    return found


def known_units(seen: NodeSnapshot) -> tuple[Unit, ...]:
    """The units of a snapshot; none where systemd was not read, which drift names."""
    return seen.units if isinstance(seen.units, tuple) else ()


def different(before: State, after: State) -> str:
    """The first thing that is not what it was, with both values; empty when all is the same."""
    for name, parts in before.items():
        for part, value in parts.items():
            if after[name][part] != value:
                return f"{part} of {name}: {value!s:.300} became {after[name][part]!s:.300}"
    return ""


def measured(rig: Rig, connections: Connections, rounds: int) -> Figures:
    """All figures, interleaved, so that a busy minute of the machine meets all of them."""
    bench, figures = Bench(rig, connections), Figures()
    ansible = AnsibleRun(rig, connections)
    try:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", flush=True)
            # Before each: serve would mend what somebody changed meanwhile.
            state_of(rig, connections)
            seconds, commands = bench.serve()
            figures.serve.append(seconds)
            figures.commands.append(max(commands.values()))
            figures.cli_start.append(bench.cli_start())
            figures.connect.append(bench.connect())
            figures.snapshot.append(bench.snapshot())
            figures.ansible.append(timed(lambda: ansible.run(tuned=False)))
            figures.tuned.append(timed(lambda: ansible.run(tuned=True)))
            figures.script.append(bench.script())
            figures.completion.append(bench.completion())
            on_host, size = bench.on_host()
            figures.doctor.append(bench.doctor())
            figures.host_seconds.append(on_host)
            figures.host_bytes.append(size)
    finally:
        ansible.close()
    return figures


def restarted(bench: Bench, figures: Figures, rounds: int) -> None:
    """The restarts, which do change the rig: it serves again at the end."""
    for number in range(1, rounds + 1):
        print(f"restart {number} of {rounds}", flush=True)
        figures.by_hand.append(bench.by_hand())
        figures.restart.append(bench.restart())


def part(inventory: str, pairs: list[str], rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when not measured."""
    try:
        rig = load_rig(inventory, pairs)
        connections = Connections(rig)
    except SpecError as error:
        raise RuntimeError(str(error)) from None
    where = f"{machine()}, two nspawn hosts"
    try:
        before = state_of(rig, connections)
        figures = measured(rig, connections, rounds)
        changed = different(before, state_of(rig, connections))
        if changed:
            raise RuntimeError(f"the rig is not what it was before: {changed}")
        restarted(Bench(rig, connections), figures, rounds)
    finally:
        connections.close()
    listed = rows(figures)
    used = ", ".join(f"{name} {version(name)}" for name in ("pyinfra", "ansible-core"))
    versions = f"Python {sys.version.split()[0]}, {used}"
    return Part("A rig that is as it should be", document(listed, rounds, versions, where), listed)
