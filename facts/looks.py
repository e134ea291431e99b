"""What single runbooks ask: kernels, hardware, drivers, growth, former engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pyinfra.api import State

from facts.node import Looks, NodeFact, Together, ask_each, observe
from schema.artifact import VenvPlace
from schema.hardware import DriverFacts, DriverSnapshot, Former, HardwareFacts, MachineSnapshot
from schema.host import HostFacts, KernelFacts, KernelSnapshot
from schema.plan import Plan
from schema.snapshot import Growth, NodeSnapshot, Unreadable

# What each node of a rig would boot next: asked in the command of the snapshot.


class Kernels(NodeFact[KernelFacts]):
    """The host's KernelFacts. `module` of the request: the driver's kernel module; null: none."""

    verb = "kernel"
    kind = KernelFacts


def observe_kernels(
    state: State,
    plan: Plan,
    module: str | None,
    fresh: bool = False,
    asked: Together | None = None,
) -> Looks:
    """As `observe`, each node's snapshot a KernelSnapshot, by the same command."""
    asked = asked or Together(state, plan.requests)
    request = json.dumps({"module": module})
    kernels = asked.add(Kernels(), dict.fromkeys(plan.requests, request))
    seen = observe(state, plan, fresh, asked)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
            found[name] = KernelSnapshot.model_construct(**values, kernel=kernels()[name])
    return found


# Each node's hardware: alone, or asked in the command of the snapshot.


class Hardware(NodeFact[HardwareFacts]):
    """The host's HardwareFacts."""

    verb = "hardware"
    kind = HardwareFacts


def hardware_of(state: State, plan: Plan) -> dict[str, HardwareFacts | Unreadable]:
    """Each node's hardware by name, all asked at the same time."""
    return ask_each(state, plan, Hardware())


def observe_machines(
    state: State,
    plan: Plan,
    module: str | None,
    fresh: bool = False,
    asked: Together | None = None,
) -> Looks:
    """As `observe_kernels`, each node's snapshot a MachineSnapshot, by the same command."""
    asked = asked or Together(state, plan.requests)
    hardware = asked.add(Hardware())
    seen = observe_kernels(state, plan, module, fresh, asked)
    return with_hardware(seen, hardware())


def with_hardware(seen: Looks, found: Mapping[str, HardwareFacts | Unreadable]) -> Looks:
    """The snapshots as MachineSnapshots; a node that did not answer stays what it is."""
    out: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        if isinstance(snapshot, Unreadable):
            out[name] = snapshot
            continue
        values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
        kernel = getattr(snapshot, "kernel", Unreadable(unreadable="nobody asked for it"))
        out[name] = MachineSnapshot.model_construct(**values, kernel=kernel, hardware=found[name])
    return out


# Each node's driver and what apt would do: asked in the command of the snapshot.


class Drivers(NodeFact[DriverFacts]):
    """The host's DriverFacts. The request names the module and the version that is wanted."""

    verb = "driver"
    kind = DriverFacts
    # three simulations and the lists of a distribution, on a slow disk
    timeout_s = 180


def observe_drivers(
    state: State, plan: Plan, request: Mapping[str, str | None], fresh: bool = False
) -> Looks:
    """The rig with each node's kernels, hardware and driver, by one command a node."""
    asked = Together(state, plan.requests)
    drivers = asked.add(Drivers(), dict.fromkeys(plan.requests, json.dumps(dict(request))))
    seen = observe_machines(state, plan, request["module"], fresh, asked)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in type(snapshot).model_fields}
            found[name] = DriverSnapshot.model_construct(**values, driver=drivers()[name])
    return found


# How each host is kept alive: watchdog, panics, journal, guard, boots and kills; read-only.


class Hosts(NodeFact[HostFacts]):
    """node's `host`."""

    verb = "host"
    kind = HostFacts


# What runs a vLLM on a host by other means than rigbook, and what would start it again.
#
# `pyinfra inventory/NAME.py fact facts.looks.FormerFact` prints it.


class FormerFact(NodeFact[Former]):
    """node's `former`."""

    verb = "former"
    kind = Former


# What a reap would end on a host and what it would spare, and why: node's dry run, read-only.


class Orphans(NodeFact[dict[str, Any]]):
    """Lists `ended` and `spared`, each with pid, argv0 and why; of a reap request."""

    verb = "reap"
    kind = dict
    always: ClassVar = {"dry": True, "change": None}


# What rigbook itself keeps on the hosts, with counts and bytes; read-only.


class Growths(NodeFact[Growth]):
    """node's `growth`."""

    verb = "growth"
    kind = Growth
    # A walk over a displaced venv of 100,000 files on a cold disk.
    timeout_s = 120


# An engine's files on a host: where a version of its venv lies, what a recipe patches in it;
# read-only.


class Place(NodeFact[VenvPlace]):
    """node's `venv look`: where a version of the venv lies or would lie."""

    verb = "venv look"
    kind = VenvPlace


class PatchedFiles(NodeFact[dict[str, Any]]):
    """node's `patch look`."""

    verb = "patch look"
    kind = dict
    # a file is read out of an image's layers on a cold disk
    timeout_s = 180


# Whether a unit would be sound with another drop-in: node's `dropin`, read-only.


class DropInCheck(NodeFact[dict[str, Any]]):
    """`problems`, a line each, and `exec_start`, what the unit would start; of a request
    `{"unit", "path", "content"}`.

    A unit that cannot be extended (masked, not there) is a problem, too.
    """

    verb = "dropin"
    kind = dict
