"""Steps of a change about no single path and no unit: GRUB's default, apt's holds, Wake-on-LAN.

Each kind is a module with checked, plan, do, settle, undo and KEYS. `undo` takes them
back after the paths: grub.cfg may have to be made anew from files that go back first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from node.core.errors import Json

_MODULES = {
    "grub": "node.kernel.grub_step",
    "hold": "node.kernel.apt_hold_step",
    "wol": "node.machine.wol_step",
}
OPS = tuple(_MODULES)


def _of(op: str) -> Any:
    return importlib.import_module(_MODULES[op])


def keys(op: str) -> tuple[str, ...]:
    """Gives the keys that a step of this kind takes."""
    found: tuple[str, ...] = _of(op).KEYS
    return found


def checked(step: Json, where: str) -> Json:
    """Gives a step with every value checked."""
    out: Json = _of(step["op"]).checked(step, where)
    return out


def plan(step: Json) -> bool:
    """Gives whether a step would change something."""
    return bool(_of(step["op"]).plan(step))


def do(step: Json, records: list[Json], record: Callable[[], None]) -> tuple[bool, str]:
    """Do a step; gives whether it changed something, and what in words."""
    changed, detail = _of(step["op"]).do(step, records, record)
    return bool(changed), str(detail)


def settle(entry: Json) -> str | None:
    """Gives what became of an announced step: done, undone, or None."""
    found: str | None = _of(entry["op"]).settle(entry)
    return found


def undo(entry: Json) -> str:
    """Take a step back; gives what was done in words."""
    return str(_of(entry["op"]).undo(entry))


def describe(entry: Json) -> str:
    """Gives a step in words; here, because the snapshot tells the journal without the modules."""
    if entry["op"] == "hold":
        return f"{'hold' if entry['held'] else 'unhold'} {' '.join(entry['packages'])}"
    if entry["op"] == "wol":
        return f"wol {entry['letters']} on {entry['nic']}"
    if entry.get("next"):
        return f"grub next boot {entry['next']}"
    return f"grub default {entry['saved']}" if entry.get("saved") else "grub.cfg"
