"""Doctor's finding about a launch script that is not there, on the host or in the container."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gates.artifact.venv import venv_entry, venv_there
from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.failure_signatures import from_log, last_exit
from gates.engine.state import engine_unit, own_container
from gates.unit.supervision import repoint, watched
from schema.desired.plan import UNIT, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit
from schema.render.engine_files import SCRIPT_IN_CONTAINER, SCRIPT_PATH

# The shell's and docker's exit statuses for what cannot be run, or is not there.
NOT_RUN = (126, 127)
_NAMED = re.compile(r"(/[\w./@+-]+): (?:No such file or directory|Is a directory|not found)")


@per_node
def script_ghost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The launch script is there, in the container, too: one that lives only in a container's
    writable layer is the ghost of the next reboot (the third seed's status 127, all day).
    """
    serve = deploy_command(plan, "serve")
    for unit in require(snapshot.units, "units"):
        for ghost in unit.ghosts:
            if ghost.container is not None and watched(snapshot, unit):
                yield _ghost(
                    node,
                    f"{unit.name} on {node.name} starts {ghost.path}, which is not in container "
                    f"{ghost.container}",
                    f"{ghost.step} of {unit.fragment}: {' '.join(unit.exec_start)[:200]}; "
                    f"{unit.active_state}/{unit.sub_state}, last exit: {last_exit(unit)}",
                    serve if unit.name == UNIT else f"{repoint(plan, node, unit.name)}; or, for "
                    f"rigbook's own engine, on {node.name}: sudo systemctl disable --now "
                    f"{shlex.quote(unit.name)}; then {serve}",
                    warn=unit.name != UNIT,
                )  # fmt: skip
    own = engine_unit(snapshot)
    if own is not None:
        yield from _own(plan, node, snapshot, own)


def _own(plan: Plan, node: Node, snapshot: NodeSnapshot, unit: Unit) -> Iterator[Violation]:
    """The same about our own unit, whose script serve bind-mounts from the host."""
    serve, script = deploy_command(plan, "serve"), _script(snapshot)
    container = own_container(snapshot) if plan.recipe.container else None
    if script is not None and script.kind != "file":
        yield _ghost(
            node,
            f"the launch script of {node.name} is not there: {SCRIPT_PATH}",
            f"{SCRIPT_PATH} is {script.kind}; "
            + (
                "docker mounts an empty folder in the place of a missing file, and bash in the "
                "container ends with 126 or 127"
                if plan.recipe.container
                else "the unit starts it, and ends with 203"
            ),
            serve,
        )
    elif container is not None and not _mounted(container):
        yield _ghost(
            node,
            f"{container.argv[-1]} in container {container.name} of {node.name} is no mount of the "
            "host's: it is gone with the container",
            f"argv {' '.join(container.argv)}; mounts: "
            f"{', '.join(m.target for m in container.mounts) or 'none'}",
            serve,
            warn=container.state == "running",
        )
    elif _not_run(unit) and (plan.recipe.container or not _venv_broken(plan, node, snapshot)):
        which = "container" if plan.recipe.container else "unit"
        named = _NAMED.search("\n".join(unit.errors))
        yield _ghost(
            node,
            f"what the {which} of {node.name} has to start is not there: "
            f"{named[1] if named else 'exit status ' + str(unit.exit_status)}",
            f"last exit: {last_exit(unit)}; log: {'; '.join(unit.errors[-2:]) or 'none'}",
            serve,
            cause=from_log(unit.errors) or "",
        )


def _venv_broken(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """True where a finding of gates.artifact.venv already names the missing piece."""
    pieces = (*venv_there(plan, {node.name: snapshot}), *venv_entry(plan, {node.name: snapshot}))
    return bool(pieces)


def _script(snapshot: NodeSnapshot) -> FileState | None:
    if isinstance(snapshot.files, Unreadable):
        return None
    return next((state for state in snapshot.files if state.path == SCRIPT_PATH), None)


def _mounted(container: Container) -> bool:
    """True when the script that the container runs (its last word) comes from the host."""
    path = container.argv[-1] if container.argv else ""
    if path != SCRIPT_IN_CONTAINER and not path.endswith(".sh"):
        return True
    targets = [mount.target.rstrip("/") for mount in container.mounts]
    return any(path == target or path.startswith(f"{target}/") for target in targets)


def _not_run(unit: Unit) -> bool:
    ended = unit.active_state in ("failed", "activating") or unit.sub_state == "auto-restart"
    there = unit.exec_start_exists is not False and not unit.ghosts
    return ended and there and unit.exit_kind != "killed" and unit.exit_status in NOT_RUN


def _ghost(
    node: Node, summary: str, evidence: str, remedy: str, *, warn: bool = False, cause: str = ""
) -> Violation:
    return violation(
        "script-ghost",
        node.name,
        summary,
        evidence=evidence,
        remedy=remedy,
        severity="warn" if warn else None,
        cause=cause,
    )


GATES = (script_ghost,)
