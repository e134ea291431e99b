"""Names of the cluster and of variables, and texts of a command line, checked."""

from __future__ import annotations

import re
from typing import Any

from node.core import validate

VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
LABEL = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


def name(value: Any, where: str) -> str:
    """Gives a name of the cluster. Raises NodeError for anything that is none."""
    found = validate.text(value, where, 253)
    if not LABEL.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a Kubernetes name")
    return found


def variable(value: Any, where: str) -> str:
    """Gives an environment variable's name."""
    found = validate.text(value, where, 200)
    if not VARIABLE.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a variable's name")
    return found


def values_of(value: Any, where: str) -> dict[str, str | None]:
    """Gives variables to set: name to text."""
    return {variable(key, where): text for key, text in _texts(value, where).items()}


def edits_of(value: Any, where: str) -> dict[str, str]:
    """Gives texts of a command line to replace: old to new. None is a variable's name, which is
    the key of a value.
    """
    found = _texts(value, where)
    for old, new in found.items():
        validate.text(old, where, 8192)
        if not old or not new or old == new or VARIABLE.match(old):
            raise validate.bad(f"{where}: {old[:60]!r} is no text with another one in its place")
    return found


def _texts(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > 50:
        raise validate.bad(f"{where} is not an object of at most 50 rows")
    return {key: validate.text(text, f"{where}.{key}", 8192) for key, text in value.items()}
