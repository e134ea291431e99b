"""Gates of systemd units: what a unit starts must exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.unit.supervision import OWN_UNITS, repoint, watched
from schema.desired.plan import UNIT, Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.observed.units import Unit
from schema.render import node_program
from schema.render.drop_in import drop_in_path

# A drop-in's name that can be typed as it is.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


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
    # What serve itself writes, and its program, is there again before the unit starts.
    gone = [path for path in missing(unit) if path not in files and path != node_program.path()]
    return not any(path in words or f"={path}" in ours for path in gone)


def repointed(plan: Plan, node: Node, unit: Unit, steps: Mapping[str, str]) -> str:
    """The command that mends a unit which names a file that is not there.

    `steps` says which Exec line names each file. A unit of others is repointed by a drop-in; from
    ours the drop-in that does it is taken away, because serve writes the unit file whole.
    """
    if not unit.name.startswith(OWN_UNITS):
        if set(steps.values()) <= {"ExecStart"}:
            return repoint(plan, node, unit.name)
    elif torn := [o.path for o in unit.overrides if o.exec_start and _ours_to_remove(o.path, unit)]:
        name = torn[-1].rpartition("/")[2].removesuffix(".conf")
        keys = (f"unit={unit.name}", f"drop_in={name}", "remove=true", f"only={node.name}")
        return f"{deploy_command(plan, 'unit', *keys)}, then {deploy_command(plan, 'restart')}"
    return (
        f"on {node.name}: systemctl cat {shlex.quote(unit.name)}; mend the line, then sudo "
        "systemctl daemon-reload"
    )


def _ours_to_remove(path: str, unit: Unit) -> bool:
    name = path.rpartition("/")[2].removesuffix(".conf")
    return drop_in_path(unit.name, name) == path and NAME.match(name) is not None


@per_node
def unit_ghost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A unit that names a file that is gone ends with 127 or 203 every 30 s, all day (C13).

    It blocks for our own unit, unless serve's new unit file mends it; another's is a warning.
    """
    for unit in require(snapshot.units, "units"):
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
            remedy=deploy_command(plan, "serve")
            if by_serve
            else repointed(plan, node, unit, steps),
            severity="block" if unit.name == UNIT and not by_serve else "warn",
        )


GATES = (unit_ghost,)
