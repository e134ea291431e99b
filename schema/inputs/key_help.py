"""The keys that a runbook takes with --data, for a person: type, unit, default, purpose."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from schema.core.host_keys import HostKeys
from schema.desired.kubernetes import ClusterData
from schema.inputs.host_data import HostData
from schema.inputs.runbooks import RUNBOOKS, kind_of, rigs_of, taken


def key_lines(runbook: str) -> list[str]:
    """The keys of `runbook`, its own first, then those of every runbook; one a line.

    Those on a Kubernetes rig follow, where it is one of both kinds of rig; a runbook that is none
    of ours takes what any of ours takes.
    """
    rigs = [rigs_of(kind) for kind in RUNBOOKS.get(runbook, ())] or [HostData, ClusterData]
    return [line for one in rigs for line in _of_rigs(runbook, one)]


def _of_rigs(runbook: str, rigs: type[HostKeys]) -> list[str]:
    """The keys on one kind of rig."""
    kind, name = kind_of((runbook,), rigs), f"{runbook}{rigs.rigs}"
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    shared = [key for key in taken(kind) if key in rigs.model_fields]
    own = [key for key in taken(kind) if key not in shared]
    return [
        f"{name}: keys of its own" if own else f"{name}: no keys of its own",
        *(_line(key, fields[key]) for key in own),
        f"{name}: keys of every runbook; those of the rig belong in inventory and group_data",
        *(_line(key, fields[key]) for key in shared),
    ]


def _line(key: str, field: FieldInfo) -> str:
    """`key: purpose (type, limits and unit; default)`."""
    says, _, none = str(field.description).partition("; none: ")
    extra: Any = field.json_schema_extra
    bounds = {name: getattr(m, name) for m in field.metadata for name in ("ge", "le")
              if hasattr(m, name)}  # fmt: skip
    limits = f", {bounds['ge']} to {bounds['le']}" if bounds else ""
    unit = f" {extra['unit']}" if extra["unit"] else ""
    default = "required" if field.is_required() else f"default: {none or _shown(field.default)}"
    return f"  {key}: {says} ({_words(field.annotation)}{limits}{unit}; {default})"


def _shown(value: object) -> str:
    """A default as one would type it."""
    if value in (None, (), {}):
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(kind: Any) -> str:
    """A field's type, in words."""
    inner = [arg for arg in get_args(kind) if arg is not type(None)]
    if hasattr(kind, "__metadata__"):
        return _words(inner[0])
    if get_origin(kind) is Literal:
        return " | ".join(map(str, inner))
    if get_origin(kind) is tuple:
        return "list"
    if get_origin(kind) is dict:
        return "JSON map"
    if inner:
        return " or ".join(dict.fromkeys(_words(arg) for arg in inner))
    return {bool: "true|false", int: "whole number"}.get(kind, "text")
