"""What a deploy takes out of a node's snapshot, and how it asks for more in it.

What cannot be read is never taken for what is not there: it ends the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from facts.engine_look import look_at_engine
from facts.rignode.context import real
from gates.drift.launch_files import running_profile
from gates.engine.state import engine_unit
from schema.desired.plan import Plan
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit


def files_in(snapshot: NodeSnapshot) -> dict[str, FileState]:
    """The files that were asked for, by path; DeployError when they cannot be read."""
    if isinstance(snapshot.files, Unreadable):
        raise DeployError(f"the files cannot be read: {snapshot.files.unreadable}")
    return {file.path: file for file in snapshot.files}


def units_in(snapshot: NodeSnapshot) -> dict[str, Unit]:
    """The units that systemd knows, by name; DeployError when they cannot be read."""
    if isinstance(snapshot.units, Unreadable):
        raise DeployError(f"the units cannot be read: {snapshot.units.unreadable}")
    return {unit.name: unit for unit in snapshot.units if unit.load_state != "not-found"}


def wider(
    plan: Plan, nodes: Collection[str], files: Iterable[str] = (), units: Iterable[str] = ()
) -> Plan:
    """The plan with more files and units in the snapshots of `nodes`."""
    more_files, more_units = tuple(files), tuple(units)
    asked = {
        name: request.model_copy(
            update={
                "files": tuple(dict.fromkeys((*request.files, *more_files))),
                "units": tuple(dict.fromkeys((*request.units, *more_units))),
            }
        )
        if name in nodes
        else request
        for name, request in plan.requests.items()
    }
    return dataclasses.replace(plan, requests=asked)


def live_profile(plan: Plan) -> str:
    """The profile that the head runs now, for a line: never the one that this run would ask for."""
    head = plan.rig.head
    seen = look_at_engine(real(state), (head.name,))[head.name]
    return "profile not seen" if isinstance(seen, Unreadable) else running_profile(plan, head, seen)


def is_up(unit: Unit | None) -> bool:
    """Whether the unit runs, or is about to."""
    return unit is not None and unit.active_state not in ("inactive", "failed")


def engine_may_run(snapshot: NodeSnapshot) -> bool:
    """Whether the engine's unit is up; also where the units cannot be read: unknown is not down."""
    return isinstance(snapshot.units, Unreadable) or is_up(engine_unit(snapshot))
