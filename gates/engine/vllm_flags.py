"""Two `vllm serve` command lines, compared flag by flag."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from node.rules.secret import MASK
from schema.recipe.arguments import SHORT

# A flag's values, or True/False for a flag that stands alone (`--x`, `--no-x`).
Value = tuple[str, ...] | bool

_FLAG = re.compile(r"--?[A-Za-z]")
_LEVEL = re.compile(r"-O=?(\w+)\Z")
_JSON_MARKS = re.compile(r"""[\s"'{}\[\],]""")
NOT_SET = "not set"
LOST_QUOTES = "(lost its JSON quotes on the way)"


def serves(argv: Sequence[str]) -> bool:
    """True for a command line of `vllm serve`."""
    return "serve" in argv


def flags_of(argv: Sequence[str]) -> dict[str, Value]:
    """The flags of a `vllm serve` command line by name, `-` as `_`; of a repeated one the last.

    The model may stand without a flag, as `vllm serve MODEL`.
    """
    found: dict[str, Value] = {}
    name, values = "model", list[str]()
    for token in argv[argv.index("serve") + 1 :]:
        if not _FLAG.match(token):
            values.append(token)
            continue
        _keep(found, name, values)
        flag, equals, value = token.partition("=")
        if level := _LEVEL.match(token):
            flag, equals, value = "-O", "=", level[1]
        name = SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
        values = [value] if equals else []
    _keep(found, name, values)
    return found


def _keep(found: dict[str, Value], name: str, values: list[str]) -> None:
    if values:
        found[name] = tuple(values)
    elif name.startswith("no_"):
        found[name.removeprefix("no_")] = False
    elif name != "model":
        found[name] = True


def compare(want: Sequence[str], have: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(flag, wanted, had) of every flag that differs; JSON and numbers by value."""
    wanted, had = flags_of(want), flags_of(have)
    for name in (*wanted, *(n for n in had if n not in wanted)):
        one, other = wanted.get(name), had.get(name)
        if _canonical(one) != _canonical(other) and not _masked(other):
            note = f" {LOST_QUOTES}" if lost_quotes(one, other) else ""
            yield name, shown(one), shown(other) + note


def lost_quotes(want: Value | None, have: Value | None) -> bool:
    """True when `have` is the JSON of `want` without its quotes: a shell ate them (C7)."""
    if not isinstance(want, tuple) or not isinstance(have, tuple):
        return False
    if not isinstance(_parsed(" ".join(want)), (dict, list)):
        return False
    whole = " ".join(have)
    readable = isinstance(_parsed(whole), (dict, list))
    return not readable and _bare(whole) == _bare(" ".join(want))


def shown(value: Value | None) -> str:
    """A flag's value for a line of text."""
    if value is None:
        return NOT_SET
    return str(value).lower() if isinstance(value, bool) else " ".join(value)


def _bare(text: str) -> str:
    return _JSON_MARKS.sub("", text)


def _masked(value: Value | None) -> bool:
    return isinstance(value, tuple) and MASK in value


def _canonical(value: Value | None) -> object:
    return [_parsed(part) for part in value] if isinstance(value, tuple) else value


def _parsed(text: str) -> object:
    """JSON maps, lists and numbers as values; everything else as its text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, (dict, list)):
        return value
    return float(value) if type(value) in (int, float) else text
