"""Looks at the hosts of an inventory that may know nothing of an engine yet."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.cli_guards import own_folder
from deploys.common.load_and_gate import data_of, inventory_name, once_a_run
from facts.former import FormerFact
from facts.rignode.together import Together
from facts.snapshot import Snapshot
from schema.adoption.command_line import parse
from schema.core.errors import SpecError
from schema.inputs.check import COMMAND_LINE, host_data
from schema.inputs.runbook_data import AdoptData
from schema.observed.former import Former, FormerContainer, FormerEngine
from schema.observed.snapshot import NodeSnapshot, Unreadable

# What a rig's inventory has to say and this one need not: enough for the type of --data.
_OPEN = {"role": "head", "lan_address": "127.0.0.1", "rig": "rig", "recipe": "none"}


@dataclass(frozen=True)
class Seen:
    """What every host said, by name; an `Unreadable` says why it could not be asked."""

    formers: Mapping[str, Former | Unreadable]
    snapshots: Mapping[str, NodeSnapshot | Unreadable]

    @property
    def silent(self) -> dict[str, str]:
        """The hosts that could not be asked, with the reason."""
        return {n: f.unreadable for n, f in self.formers.items() if isinstance(f, Unreadable)}

    def former(self, name: str) -> Former:
        """What one host said; DeployError with the reason when it could not be asked."""
        found = self.formers[name]
        if isinstance(found, Unreadable):
            raise DeployError(f"{name} could not be looked at: {found.unreadable}")
        return found

    def snapshot(self, name: str) -> NodeSnapshot:
        """One host's snapshot; DeployError with the reason when it could not be asked."""
        found = self.snapshots[name]
        if isinstance(found, Unreadable):
            raise DeployError(f"{name} could not be looked at: {found.unreadable}")
        return found


@once_a_run
def asked() -> AdoptData:
    """The checked --data; the inventory's own keys are not asked for. DeployError says what not."""
    own_folder()
    typed = state.inventory.get_override_data()
    given = {**_OPEN, "ssh_user": getpass.getuser(), **typed}
    try:
        return host_data("", given, dict.fromkeys(typed, COMMAND_LINE), AdoptData)
    except SpecError as error:
        raise DeployError(str(error).replace("--data: host : ", "--data: ")) from None


@once_a_run
def look() -> Seen:
    """Asks all hosts at the same time; read-only."""
    asked = Together(state, [host.name for host in state.inventory])
    formers, snapshots = asked.add(FormerFact()), asked.add(Snapshot())
    return Seen(formers(), snapshots())


def host_values(name: str) -> dict[str, object]:
    """A host's merged data, as the inventory and group_data in use say it."""
    return data_of(state.inventory.get_host(name))[0]


def chosen(seen: Seen, name: str, port: int | None) -> FormerEngine:
    """The one engine of a host that is meant; DeployError when there is none, or one of several."""
    engines = seen.former(name).engines
    if len(engines) > 1 and port is not None:
        engines = tuple(e for e in engines if e.port == port and e.is_head)
    if len(engines) == 1:
        engine = engines[0]
        try:
            parse(engine.argv)
        except ValueError as error:
            raise DeployError(f"{name}: the command line of pid {engine.pid}: {error}") from None
        return engine
    if not engines:
        raise DeployError(f"no vLLM runs on {name}: start it as you do, then look again")
    told = ", ".join(f"pid {e.pid} at port {e.port}" for e in engines)
    raise DeployError(
        f"{name} runs {len(engines)} engines ({told}): name one, "
        f"pyinfra {inventory_name()} deploys/adopt.py -y --data port={engines[0].port}"
    )


def container_of(former: Former, engine: FormerEngine) -> FormerContainer | None:
    """The container that an engine runs in, or None."""
    return next((box for box in former.containers if box.name == engine.container), None)
