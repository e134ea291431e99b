"""Gates of systemd units: what a unit starts must exist."""

from __future__ import annotations

from collections.abc import Iterator

from gates.base import known, per_node, pyinfra
from gates.codes import violation
from gates.supervision import watched
from gates.violation import Violation
from schema.engine import UNIT, Plan
from schema.rig import Node
from schema.snapshot import NodeSnapshot, Unit


def missing(unit: Unit) -> list[str]:
    """The files of the host that the unit's commands name and that are not there."""
    paths = [ghost.path for ghost in unit.ghosts if ghost.container is None]
    if unit.exec_start_exists is False and unit.exec_start and unit.exec_start[0] not in paths:
        paths.append(unit.exec_start[0])
    return list(dict.fromkeys(paths))


def mended_by_serve(plan: Plan, node: Node, unit: Unit) -> bool:
    """True when what is missing stands in a unit file of ours that serve writes anew.

    A drop-in outlives that, and a file that our own unit file names stays missing.
    """
    files = {document.path: document.content for document in plan.documents[node.name]}
    ours = files.get(unit.fragment or "")
    if ours is None or unit.drop_ins or not missing(unit):
        return False
    words = ours.split()
    return not any(path in words or f"={path}" in ours for path in missing(unit))


@per_node
def unit_ghost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A unit that names a file that is gone ends with 127 or 203 every 30 s, all day (C13).

    It blocks for our own unit, unless serve's new unit file mends it; another's is a warning.
    """
    for unit in known(snapshot.units, "units"):
        gone = missing(unit)
        if not gone or not watched(snapshot, unit):
            continue
        by_serve = mended_by_serve(plan, node, unit)
        steps = {ghost.path: ghost.step for ghost in unit.ghosts}
        named = ", ".join(f"{steps.get(path, 'ExecStart')} {path}" for path in gone)
        yield violation(
            "unit-ghost",
            node.name,
            f"{unit.name} on {node.name} starts a program that does not exist: {gone[0]}",
            evidence=f"{named}; ExecStart "
            f"{' '.join(unit.exec_start)[:200]}; unit file {unit.fragment}; drop-ins "
            f"{', '.join(unit.drop_ins) or 'none'}; {unit.active_state}, {unit.restarts} "
            f"restarts, last exit status {unit.exit_status}",
            remedy=pyinfra(plan, "serve")
            if by_serve
            else f"on {node.name}: systemctl cat {unit.name}; mend the ExecStart= (a drop-in "
            "needs an empty ExecStart= first), then sudo systemctl daemon-reload",
            severity="block" if unit.name == UNIT and not by_serve else "warn",
        )


GATES = (unit_ghost,)
