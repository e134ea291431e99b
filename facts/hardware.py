"""Each node's hardware: a command of its own, at the same time as the snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import gevent
from pydantic import ValidationError
from pyinfra.api import FactBase, State
from pyinfra.api.exceptions import FactProcessError

from facts.observe import real
from facts.rignode import pack
from facts.rignode.call import AskFailed, ask_node
from facts.snapshot import bounded
from schema.desired.plan import Plan
from schema.observed.hardware import HardwareFacts, MachineSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable

HARDWARE_TIMEOUT_S = 60
Looks = Mapping[str, NodeSnapshot | Unreadable]


class Hardware(FactBase[HardwareFacts]):
    """The host's HardwareFacts."""

    def command(self) -> str:
        """The one command that runs `node hardware` on the host, read-only."""
        return bounded(pack.inline_command("hardware", {}), HARDWARE_TIMEOUT_S)

    def process(self, output: list[str]) -> HardwareFacts:
        """The typed facts; FactProcessError says in one line what the host answered instead."""
        try:
            document = json.loads(output[-1])
        except (IndexError, ValueError):
            document = None
        if not isinstance(document, dict):
            raise FactProcessError(f"the host answered no hardware but: {' '.join(output)[:300]!r}")
        if not document.pop("ok", False):
            raise FactProcessError(f"node hardware failed: {document.get('error')}")
        return typed(document)


def typed(document: dict[str, object]) -> HardwareFacts:
    """HardwareFacts from node's document; FactProcessError says where it does not fit."""
    try:
        return HardwareFacts.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FactProcessError(
            f"the host's hardware does not fit at {where}: {first['msg']}"
        ) from None


def hardware_of(state: State, plan: Plan) -> dict[str, HardwareFacts | Unreadable]:
    """Each node's hardware by name, all asked at the same time."""
    state = real(state)
    jobs = {node.name: gevent.spawn(_look, state, node.name) for node in plan.rig.nodes}
    gevent.joinall(list(jobs.values()))
    return {name: job.get() for name, job in jobs.items()}


def observe_machines(state: State, plan: Plan, look: Callable[[], Looks]) -> Looks:
    """What `look` sees, with each node's hardware; both at the same time."""
    job = gevent.spawn(hardware_of, state, plan)
    seen = look()
    return with_hardware(seen, job.get())


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


def _look(state: State, name: str) -> HardwareFacts | Unreadable:
    host = state.inventory.get_host(name)
    if host not in state.active_hosts or not state.is_host_in_limit(host):
        return Unreadable(unreadable="no connection")
    try:
        return typed(ask_node(state, host, "hardware", {}, HARDWARE_TIMEOUT_S))
    except (AskFailed, FactProcessError) as error:
        return Unreadable(unreadable=str(error))
    except Exception as error:  # whatever went wrong: unknown, not fine
        return Unreadable(unreadable=f"{type(error).__name__}: {error}")
