"""What leaves for a file on this machine, with every secret masked: by value, by name, by form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from facts.local.secret_values import SecretMissing, value_of
from node.rules.secret import MASK, SECRET_FLAG, SECRET_NAME, holds_secret, masked_text
from schema.desired.plan import Plan

# A variable that a command line or a unit sets; the quotes may be before its name or its value.
_SET = re.compile(
    r"(?P<q>['\"])(?P<quoted>[A-Z][A-Z0-9_]*)=[^'\"]*(?=(?P=q))"
    r"|(?<![\w-])(?P<name>[A-Z][A-Z0-9_]*)=(?:'[^']*'|\"[^\"]*\"|(?!/)[^\s'\"]{6,})"
)


def values(plan: Plan) -> list[str]:
    """The values of the recipe's secrets that this machine has: no text may hold one."""
    found = []
    for name, source in plan.recipe.secrets.items():
        try:
            secret = value_of(name, source)
        except SecretMissing:
            continue
        found += [secret.reveal()] if secret is not None else []
    return found


def text(line: str, known: Sequence[str]) -> str:
    """A text without the known values and without what looks like a secret."""
    for value in known:
        line = line.replace(value, MASK)
    return masked_text(_SET.sub(_assigned, line))


def _assigned(found: re.Match[str]) -> str:
    """An assignment, its value masked where its name says that it is a secret."""
    name = found["quoted"] or found["name"]
    if not SECRET_NAME.search(name):
        return found[0]
    return f"{found['q'] or ''}{name}={MASK}"


def as_text(value: object, known: Sequence[str]) -> str:
    """Plain data as JSON text, its secrets masked."""
    return json.dumps(data(value, known), indent=1, sort_keys=True) + "\n"


def data(value: object, known: Sequence[str], name: str = "") -> object:
    """Plain data with its texts masked, and those under a secret's name wholly."""
    if isinstance(value, Mapping):
        return {str(key): data(one, known, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        before = [None, *value]
        return [
            MASK if isinstance(flag, str) and SECRET_FLAG.match(flag) else data(one, known, name)
            for flag, one in zip(before, value, strict=False)
        ]
    if isinstance(value, str):
        # a variable's name is written in capitals; `max_tokens` and its like are no secrets
        whole = name.isupper() and SECRET_NAME.search(name) and len(value) > 5
        return MASK if whole or holds_secret(name, inside=True) else text(value, known)
    return value
