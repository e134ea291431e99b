"""Placeholders in a recipe's text: what differs per node comes from the inventory.

`{node.lan_address}` is replaced; `{{` and `}}` stand for a brace. Anything else in braces is
an error, so a typing slip never reaches the engine.
"""

from __future__ import annotations

import re

from schema.core.errors import SpecError

PLACEHOLDERS = (
    "node.lan_address",
    "node.fabric_address",
    "node.name",
    "node.rank",
    "node.home",
    "fabric.device",
)
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check_placeholders(text: str) -> str:
    """The text, when all its braces are known placeholders or doubled; else ValueError."""
    wrong = [
        match.group()
        for match in _BRACES.finditer(text)
        if match.group() not in ("{{", "}}") and match.group(1) not in PLACEHOLDERS
    ]
    if wrong:
        known = " ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(
            f"holds {', '.join(wrong)}; allowed: {known}, and {{{{ or }}}} for a brace itself"
        )
    return text


def fill(text: str, values: dict[str, str], key: str) -> str:
    """`text` with its placeholders replaced.

    SpecError names `key` when the rig has no value for a placeholder (no fabric, for instance).
    """

    def replacement(match: re.Match[str]) -> str:
        token = match.group()
        if token in ("{{", "}}"):
            return token[0]
        name = match.group(1)
        if name not in values:
            raise SpecError(
                f"{key}: {token} has no value on this rig; allowed here: "
                + " ".join(f"{{{known}}}" for known in values)
            )
        return values[name]

    return _BRACES.sub(replacement, text)
