"""A vLLM command line read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from node.rules.secret import API_KEY, MASK, holds_secret
from schema.core import SpecError, argument, public

# Placeholders in a recipe's text: what differs per node comes from the inventory.
#
# `{node.lan_address}` is replaced; `{{` and `}}` stand for a brace. Anything else in braces is
# an error, so a typing slip never reaches the engine.

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


# vllm_serve values and the arguments that they become.

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


# A `vllm serve` command line as a recipe's flags: the way back of schema.vllm.

# vLLM's short names (vllm/engine/arg_utils.py; -O in vllm/utils/argparse_utils.py).
SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dpn": "data_parallel_rank",
    "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local",
    "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend",
    "-dph": "data_parallel_hybrid_lb",
    "-dpe": "data_parallel_external_lb",
    "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-q": "quantization",
    "-n": "nnodes",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-ac": "attention_config",
    "-O": "optimization_level",
}
_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")


def flags_of(words: Sequence[str]) -> tuple[dict[str, JsonValue], list[str]]:
    """The flags of the words behind `vllm serve`, `model` first, and those that stand twice.

    Of a flag that stands twice the last one counts, as in vLLM. Rendered again they are the same
    arguments to vLLM: a short name becomes the long one, `--a=b` becomes two words, JSON is
    written without blanks. ValueError: a word that no flag can take.
    """
    flags: dict[str, JsonValue] = {}
    twice: list[str] = []
    for name, values in _groups(words):
        if name in flags:
            twice.append(name)
        if not values and name.startswith("no_") and "." not in name:
            flags[name.removeprefix("no_")] = False
        else:
            flags[name] = _value(name, values)
    return flags, twice


def _groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag's name with its values."""
    name = "model"
    values: list[str] = []
    for at, word in enumerate(words):
        if not word.startswith("-") or _NUMBER.match(word):
            if name == "model" and values:
                raise ValueError(f"the word {word!r} stands behind the model; allowed: a flag")
            values.append(word)
            continue
        if at:
            yield name, values
        name, values = _flag(word)
    if words:
        yield name, values


def _flag(word: str) -> tuple[str, list[str]]:
    """A flag's name and the value that stands in the same word."""
    if re.match(r"-O=?\w", word):
        return SHORT["-O"], [word[2:].removeprefix("=")]
    named, equals, value = word.partition("=")
    root, dot, key = named.partition(".")
    if root.startswith("--") and root != "--":
        name = root.removeprefix("--").replace("-", "_")
    elif root in SHORT:
        name = SHORT[root]
    else:
        raise ValueError(f"{root} is no short flag of vLLM's; allowed: its long name")
    return name + dot + key, [value] if equals else []


def _value(name: str, values: list[str]) -> JsonValue:
    """The value as a recipe has it: true for a flag alone, a list for several words."""
    if not values:
        return True
    if len(values) > 1:
        return [_scalar(value) for value in values]
    text = values[0]
    if "." in name and text in ("true", "false"):
        return text == "true"
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return _scalar(text)
        assert isinstance(found, dict)
        return found
    return _scalar(text)


def _scalar(text: str) -> int | float | str:
    """A number where it is written as we would write it; else text, its braces doubled."""
    if _NUMBER.match(text):
        for kind in (int, float):
            try:
                if str(number := kind(text)) == text:
                    return number
            except ValueError:
                continue
    return text.replace("{", "{{").replace("}", "}}")


# A live `vllm serve` command line: program, flags, what follows from the rig, secrets.

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


def parse_command_line(argv: Sequence[str]) -> CommandLine:
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
