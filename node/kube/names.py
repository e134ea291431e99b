"""Names of the cluster, of variables and of flags, checked."""

from __future__ import annotations

import re
from typing import Any

from node.core import validate
from node.kube import flags

LABEL = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


def name(value: Any, where: str) -> str:
    """Gives a name of the cluster. Raises NodeError for anything that is none."""
    found = validate.text(value, where, 253)
    if not LABEL.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a Kubernetes name")
    return found


def variable(value: Any, where: str) -> str:
    """Gives an environment variable's name, or a flag's."""
    found = validate.text(value, where, 200)
    if not flags.is_flag(found) and not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", found):
        raise validate.bad(f"{where}: {found[:60]!r} is not a variable's or a flag's name")
    return found


def values_of(value: Any, where: str) -> dict[str, str | None]:
    """Gives variables and flags to set: name to text."""
    if not isinstance(value, dict) or not value or len(value) > 50:
        raise validate.bad(f"{where} is not an object of 1 to 50 variables")
    return {
        variable(key, where): validate.text(text, f"{where}.{key}", 8192)
        for key, text in value.items()
    }
