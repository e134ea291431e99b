"""vllm_serve values and the arguments that they become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from pydantic import JsonValue

from node.rules.secret import API_KEY, holds_secret
from schema.core.strings import argument, public
from schema.recipe.placeholders import check_placeholders

# These follow from multi_node and the inventory; set by hand they would differ from the rig.
DERIVED = ("nnodes", "node_rank", "master_addr", "master_port", "headless")


def check_flag(value: JsonValue) -> JsonValue:
    """The value, when it can become a flag's arguments; else ValueError.

    A text must be one argument (one line, no leading `-`); a list needs texts or numbers.
    """
    if isinstance(value, str):
        check_placeholders(argument(public(value)))
    elif isinstance(value, list):
        if not value:
            raise ValueError(
                "is an empty list; allowed: one value or more, or null to drop the flag"
            )
        for item in value:
            if type(item) not in (str, int, float):
                raise ValueError("holds a list with something else than text and numbers in it")
            check_flag(item)
    return value


def check_flags(flags: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The flags, when none of them is one that rigbook sets itself; else ValueError."""
    wrong = [name for name in DERIVED if name in flags]
    if wrong:
        raise ValueError(
            f"sets {', '.join(wrong)}; allowed: any other flag (these follow from multi_node, "
            "the nodes' roles and their fabric addresses)"
        )
    for path in (found for name, value in flags.items() for found in _secrets(name, value)):
        variable = API_KEY if path == "api_key" else path.upper()
        way = f"secrets: {{{variable}: {{env: NAME}}}}" if "." not in path else "another way to it"
        raise ValueError(f"{path} would stand in serve.sh and in ps; allowed: {way}")
    return flags


def _secrets(path: str, value: JsonValue, inside: bool = False) -> Iterator[str]:
    """The keys, as dotted paths, that hold the text of a secret."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets(f"{path}.{key}", inner, inside=True)
        return
    rows = value if isinstance(value, list) else [value]
    if any(isinstance(row, str) for row in rows) and holds_secret(path.rpartition(".")[2], inside):
        yield path
    for row in rows:
        if isinstance(row, dict | list):
            yield from _secrets(path, row, inside=True)


def flag_arguments(name: str, value: JsonValue, fill: Callable[[str], str]) -> list[str]:
    """The arguments of one vllm_serve entry; none for null.

    true → `--a-b`, false → `--no-a-b`, a map → one compact JSON argument, a list → the flag and
    its values. `fill` replaces the placeholders in texts; JSON is passed as it is written.
    A name with dots is one key of a JSON argument, which vLLM takes as it is written after the
    first dot (FlexibleArgumentParser of vllm/utils/argparse_utils.py); true is the value `true`.
    """
    root, dot, key = name.partition(".")
    flag = "--" + root.replace("_", "-") + dot + key
    if value is None:
        return []
    if isinstance(value, bool) and dot:
        return [flag, json.dumps(value)]
    if isinstance(value, bool):
        return [flag] if value else ["--no-" + flag.removeprefix("--")]
    if isinstance(value, dict):
        return [flag, json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    items = value if isinstance(value, list) else [value]
    return [flag, *(fill(item) if isinstance(item, str) else str(item) for item in items)]
