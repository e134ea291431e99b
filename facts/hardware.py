"""Each node's hardware: alone, or asked in the command of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api import State

from facts.kernels import observe_kernels
from facts.observe import Looks
from facts.rignode.fact import NodeFact, ask_each
from facts.rignode.together import Together
from schema.desired.plan import Plan
from schema.observed.hardware import HardwareFacts, MachineSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable


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
