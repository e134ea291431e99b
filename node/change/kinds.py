"""The kinds of journalled steps: each a class (node/core/step_kind.py), loaded when it is met."""

from __future__ import annotations

import functools
import importlib
import os

from node.change import journal
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError, OtherProgram, io_reason
from node.core.step_kind import PHASES, POST, PRE, Kind
from node.core.step_state import DONE, INTENT, UNDONE, UNKNOWN, subject

_FILE = "node.change.file_step:FileKind"
_PASSED = "node.change.irreversible:Irreversible"
# a new kind is one row here and one file
KINDS: dict[str, str] = {
    "file": _FILE,
    "absent": _FILE,
    "directory": _FILE,
    "unit": "node.systemd.unit_step:UnitKind",
    "link": "node.change.link_step:LinkKind",
    "tree": "node.change.tree_step:TreeKind",
    "kube": "node.kube.deployment_step:DeploymentKind",
    "grub": "node.kernel.grub_step:GrubKind",
    "hold": "node.kernel.apt_hold_step:AptHoldKind",
    "packages": "node.driver.packages_step:PackagesKind",
    "wol": "node.machine.wol_step:WolKind",
    "sysctl": "node.host.sysctl_step:SysctlKind",
    "reread": "node.host.reread_step:RereadKind",
    "crontab": "node.adopt.crontab_step:CrontabKind",
    "restart_policy": "node.adopt.restart_policy_step:RestartPolicyKind",
    "container": "node.adopt.container_step:ContainerKind",
    "former_engine": "node.adopt.engine_step:EngineKind",
    # these are written by other verbs than apply
    "work": "node.change.work_folder_step:WorkFolderKind",
    "tag": "node.image.tag_step:TagKind",
    "tool": "node.patch.tool_step:ToolKind",
    "weights_set": "node.weights.set_step:SetKind",
    "reap": _PASSED,
    "shm": _PASSED,
    "caches": _PASSED,
    "restart": "node.kube.restart_step:RestartKind",
}


@functools.cache
def _load(op: str, where: str) -> Kind:
    module, _, name = where.partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)(op)
    return kind


def get(op: str) -> Kind:
    """Gives the kind of that name, which must be one."""
    return _load(op, KINDS[op])


def of(entry: Json) -> Kind:
    """Gives the kind of a recorded or parsed step."""
    return get(entry["op"])


def parse(value: object, where: str) -> Json:
    """Gives a step of a request with every value checked. Raises NodeError (`bad_request`)."""
    if not isinstance(value, dict):
        raise validate.bad(f"{where} is not an object")
    kind = get(validate.choice(value.get("op"), f"{where}.op", KINDS))
    if not kind.keys:
        raise validate.bad(f"{where}.op: {kind.op!r} is not asked for in a request")
    step = validate.keys(value, where, ("op", *kind.keys), ("op", *kind.required))
    return kind.parse(step, where)


def require_known(change: Json) -> None:
    """Raise OtherProgram for a change that another version wrote and this one cannot judge."""
    form = change.get("format", journal.FORMAT)
    if form != journal.FORMAT:
        raise _foreign(change, "unknown_format", f"has format {form!r}")
    for entry in change["steps"]:
        if entry.get("op") not in KINDS:
            raise _foreign(change, "unknown_kind", f"has a step of the kind {entry.get('op')!r}")
        if what := of(entry).unknown(entry):
            raise _foreign(change, "unknown_kind", what)


def _foreign(change: Json, code: str, what: str) -> OtherProgram:
    """Gives the error for a change of another version, which names the program that wrote it."""
    identifier, program = change["id"], change.get("program")
    remedy = "use the rignode that wrote it: ls -t /usr/local/lib/rigbook"
    if program:
        what += f", written by {os.path.basename(program)}"
        remedy = f"python3 {program} undo {identifier}"
        if not os.path.exists(program):
            remedy = ("that program is gone: pyinfra INVENTORY deploys/rollback.py -y --data "
                      f"change={identifier}, from the checkout of {change['operator']} that wrote "
                      "it")  # fmt: skip
    text = f"change {identifier} {what}, unknown to this rignode; it is left"
    return OtherProgram(text, code, remedy, program)


def reason(error: Exception) -> str:
    """Gives an error of a step as one line; one that no kind raises is a damaged row's."""
    if isinstance(error, (NodeError, CannotRead)):
        return str(error)
    if isinstance(error, OSError):
        return io_reason(error)
    return f"{type(error).__name__}: {error}"


def failed(step: Json, error: Exception) -> str:
    """Gives what a step met as one line that names the step and its path."""
    why, about = reason(error), subject(step)
    return f"{step['op']} {why}" if why.startswith(about) else f"{step['op']} {about}: {why}"


def recover(rows: list[Json]) -> bool:
    """Find out what became of the steps that a kill left announced; gives whether any state is new.

    Never raises: what cannot be found out is "unknown", with the reason, and is asked again by
    the next one who comes. What a kind says is looked at once more.
    """
    changed = False
    for entry in list(rows):
        if entry["state"] not in (INTENT, UNKNOWN):
            continue
        why = "what lies there is neither what it found nor what it was to leave"
        try:
            kind = of(entry)
            state = kind.recover(entry, rows)
            side = {UNDONE: PRE, DONE: POST}.get(state)
            if lines := kind.verify(entry, side) if side else []:
                state, why = UNKNOWN, "; ".join(lines)
        except Exception as error:
            state, why = UNKNOWN, reason(error)
        if state == UNKNOWN:
            entry["why"] = why
        else:
            entry.pop("why", None)
        changed = changed or state != entry["state"]
        entry["state"] = state
    return changed


def in_undo_order(rows: list[Json]) -> list[Json]:
    """Gives the steps in the order of an undo, without units and what cannot be undone."""
    kept = [row for row in reversed(rows) if not of(row).irreversible]
    return [row for phase in PHASES for row in kept if of(row).phase == phase]
