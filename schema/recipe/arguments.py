"""A `vllm serve` command line as a recipe's flags: the way back of schema.recipe.flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

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
