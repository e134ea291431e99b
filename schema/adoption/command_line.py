"""A live `vllm serve` command line: program, flags, what follows from the rig, secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from node.rules.secret import MASK
from schema.recipe.arguments import flags_of
from schema.recipe.flags import DERIVED

_SERVER = re.compile(r"vllm[./]entrypoints[./]openai[./]api_server(?:\.py)?$")
# a flag that takes no value, so that a word behind it is the model
_ALONE = re.compile(
    r"(?:enable|disable|no|use|return|skip|allow)_\w+$"
    r"|(?:trust_remote_code|enforce_eager|headless|async_scheduling|language_model_only)$"
)


@dataclass
class CommandLine:
    """`program`: what stands before the flags. `flags` keep their order, the model is `model`;
    a dotted one is a key in its map, as in vLLM. `join` are those that follow from the rig;
    `secret` are flags whose value was masked. `twice` were given more than once: vLLM takes the
    last value. Texts are as they were given, without a recipe's doubled braces.
    """

    program: tuple[str, ...]
    flags: dict[str, JsonValue] = field(default_factory=dict)
    join: dict[str, JsonValue] = field(default_factory=dict)
    secret: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


def parse(argv: Sequence[str]) -> CommandLine:
    """The command line of a live engine; of `python -m vllm.entrypoints.openai.api_server`, too.

    ValueError: a word that no flag can take.
    """
    at = next(
        (n + 1 for n, arg in enumerate(argv) if arg == "serve" or _SERVER.search(arg)), len(argv)
    )
    found = CommandLine(tuple(argv[:at]))
    flags, found.twice = flags_of(argv[at:])
    for name, written in _with_model(flags).items():
        value = _as_given(written)
        if value == MASK or (isinstance(value, list) and MASK in value):
            found.secret.append(name)
        elif "." in name:
            _put_dotted(found.flags, name, value)
        else:
            (found.join if name in DERIVED else found.flags)[name] = value
    return found


def _with_model(flags: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The flags with the model that stands behind a flag without a value."""
    if "model" in flags:
        return flags
    for name, value in flags.items():
        if isinstance(value, str) and _ALONE.match(name) and value not in ("true", "false"):
            return {**flags, name: True, "model": value}
    return flags


def _as_given(value: JsonValue) -> JsonValue:
    """A text without the doubled braces of a recipe; JSON has none."""
    if isinstance(value, list):
        return [_as_given(item) for item in value]
    if isinstance(value, str):
        return value.replace("{{", "{").replace("}}", "}")
    return value


def _put_dotted(flags: dict[str, JsonValue], name: str, value: JsonValue) -> None:
    """Puts `a.b.c VALUE` into the map of the flag `a`; with `+` behind it a list, as vLLM does."""
    head, *keys = name.removesuffix("+").split(".")
    at = flags.setdefault(head, {})
    for key in keys[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else {}
    if isinstance(at, dict):
        at[keys[-1]] = list(str(value).split(",")) if name.endswith("+") else value
