"""A live `vllm serve` command line as a recipe's flags: names with `_`, values with their types.

Short names and dotted ones are vLLM's (vllm/engine/arg_utils.py, vllm/utils/argparse_utils.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from node.rules.secret import MASK
from schema.recipe.flags import DERIVED

SHORT = {
    "ac": "attention_config", "cc": "compilation_config", "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size", "dpa": "data_parallel_address", "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb", "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local", "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port", "dpr": "data_parallel_start_rank",
    "ep": "enable_expert_parallel", "n": "nnodes", "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size", "q": "quantization", "r": "node_rank",
    "sc": "speculative_config", "tp": "tensor_parallel_size",
}  # fmt: skip
_FLAG = re.compile(r"--?[A-Za-z]")
_SERVER = re.compile(r"vllm[./]entrypoints[./]openai[./]api_server(?:\.py)?$")
# a flag that takes no value, so that a model may stand behind it
_ALONE = re.compile(
    r"(?:enable|disable|no|use|return|skip|allow)_\w+$"
    r"|(?:trust_remote_code|enforce_eager|headless|async_scheduling|language_model_only)$"
)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?\Z")


@dataclass
class CommandLine:
    """`program`: what stands before the flags. `flags` keep their order, the model is `model`;
    `join` are those that follow from the rig; `secret` are flags whose value was masked. `twice`
    were given more than once: vLLM takes the last value.
    """

    program: tuple[str, ...]
    flags: dict[str, JsonValue] = field(default_factory=dict)
    join: dict[str, JsonValue] = field(default_factory=dict)
    secret: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


def parse(argv: Sequence[str]) -> CommandLine:
    """The command line of a live engine; of `python -m vllm.entrypoints.openai.api_server`, too."""
    at = next(
        (n + 1 for n, arg in enumerate(argv) if arg == "serve" or _SERVER.search(arg)), len(argv)
    )
    found = CommandLine(tuple(argv[:at]))
    for name, values in _pairs(argv[at:]):
        if MASK in values:
            found.secret.append(name)
        elif "." in name:
            _put_dotted(found.flags, name, values)
        else:
            value = _value(name, values)
            name = name.removeprefix("no_") if value is False else name
            into = found.join if name in DERIVED else found.flags
            if name in into:
                found.twice.append(name)
            into[name] = value
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(name, values) of each flag in order; the model that stands alone is `model`."""
    name, values, model = "model", list[str](), False
    for word in words:
        if _FLAG.match(word):
            if values or name != "model":
                yield name, values
            option, equals, value = word.partition("=")
            name, values = _name(option), [value] if equals else []
            if option.startswith("-O") and option != "-O":
                name, values = "optimization_level", [value if equals else option[2:]]
        elif not model and _ALONE.match(name) and word.lower() not in ("true", "false"):
            yield name, values
            name, values = "model", [word]
        else:
            values.append(word)
        model = model or (name == "model" and bool(values))
    if values or name != "model":
        yield name, values


def _name(option: str) -> str:
    """A flag's name: `-tp` and `--tensor-parallel-size` are one; a dotted one keeps its keys."""
    if option == "-O":
        return "optimization_level"
    head, dot, keys = option.lstrip("-").partition(".")
    if not option.startswith("--"):
        return SHORT.get(head, head) + dot + keys
    return head.replace("-", "_") + dot + keys


def _value(name: str, values: list[str]) -> JsonValue:
    """A flag's value: true or false for one that stands alone, a list for several."""
    if not values:
        return not name.startswith("no_")
    typed = [_typed(value) for value in values]
    return typed[0] if len(typed) == 1 else typed


def _typed(text: str) -> JsonValue:
    """A JSON map, a number that is written as it reads, or the text."""
    if text.startswith("{"):
        try:
            value: JsonValue = json.loads(text)
        except ValueError:
            return text
        return value
    if _NUMBER.match(text):
        number = float(text) if "." in text else int(text)
        return number if str(number) == text else text
    return text


def _put_dotted(flags: dict[str, JsonValue], name: str, values: list[str]) -> None:
    """Puts `a.b.c VALUE` into the map of the flag `a`, as vLLM does."""
    head, *keys = name.removesuffix("+").split(".")
    text = values[0] if values else "true"
    value: JsonValue
    if name.endswith("+"):
        value = list(text.split(","))
    else:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
    at = flags.setdefault(head, {})
    for key in keys[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else {}
    if isinstance(at, dict):
        at[keys[-1]] = value
