"""The command line that a neighbour's launcher runs: its template filled, and split as bash does.

eugr's run-recipe.py fills with str.format and runs without Ray unless it is asked for Ray. sparkrun
replaces {key} where `defaults` has the key, again until nothing changes, and leaves the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from node.rules.secret import SECRET_NAME
from schema.core.errors import SpecError, shown
from schema.importing.neighbour import Launcher, section

# A command without a template: the keys of `defaults` that sparkrun makes flags of, in its order
# (VLLM_FLAG_MAP and VLLM_BOOL_FLAGS of runtimes/_vllm_common.py).
_FLAGS = {
    "tensor_parallel": "-tp",
    "port": "--port",
    "host": "--host",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_model_len": "--max-model-len",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "served_model_name": "--served-model-name",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "enforce_eager": "--enforce-eager",
    "enable_prefix_caching": "--enable-prefix-caching",
    "trust_remote_code": "--trust-remote-code",
    "pipeline_parallel": "-pp",
    "data_parallel": "--data-parallel-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "otlp_traces_endpoint": "--otlp-traces-endpoint",
    "api_key": "--api-key",
}
_SWITCHES = ("enforce_eager", "enable_prefix_caching", "trust_remote_code")
_FORMAT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
_SUBSTITUTE = re.compile(r"\{(.*?)\}")
_ROUNDS = 20
_CONTINUED = re.compile(r"\\[ \t]*(\n|\Z)")
_OPERATORS = ";|&<>()"


def words(data: Mapping[str, object], launcher: Launcher, file: str) -> list[str]:
    """What `vllm serve` gets, one element an argument: the model, then the flags.

    SpecError names what is no single `vllm serve` command: variables of a shell, several commands,
    a placeholder without a value.
    """
    defaults = section(data, "defaults", file)
    if launcher == "eugr" and data.get("solo_only"):
        defaults = {**defaults, "tensor_parallel": 1}  # whatever the recipe says
    template = data.get("command")
    if template is None and launcher == "sparkrun":
        return _without_template(data, defaults)
    if not isinstance(template, str):
        raise SpecError(f"{file}: command: is {shown(template)}; allowed: the text of a command")
    if launcher == "eugr":
        text = _formatted(template, defaults, file)
    else:
        text = _substituted(template.strip(), {"model": data.get("model"), **defaults}, file)
        name = defaults.get("served_model_name")
        if name is not None and "--served-model-name" not in text:
            text = f"{text.rstrip()} --served-model-name {name}"
    found = _split(text, file)
    if found[:2] != ["vllm", "serve"]:
        raise SpecError(
            f"{file}: command: begins with {shown(' '.join(found[:2]))}; allowed: vllm serve"
        )
    return found[2:]


def used(data: Mapping[str, object]) -> set[str]:
    """The keys of `defaults` that the command takes."""
    template = data.get("command")
    if not isinstance(template, str):
        return set(_FLAGS)
    names = {name for name in _FORMAT.findall(template) if name}
    values = "\n".join(str(value) for value in section(data, "defaults", "").values())
    return names | set(_FORMAT.findall(values)) | {"served_model_name"}


def _without_template(data: Mapping[str, object], defaults: Mapping[str, object]) -> list[str]:
    found = [str(data.get("model"))]
    for key, flag in _FLAGS.items():
        value = defaults.get(key)
        if key in _SWITCHES:
            found += [flag] if value else []
        elif value is not None:
            found += [flag, str(value)]
    return found


def _formatted(text: str, values: Mapping[str, object], file: str) -> str:
    """`text` as str.format fills it."""

    def replacement(match: re.Match[str]) -> str:
        token, name = match.group(), match.group(1)
        if token in ("{{", "}}"):
            return token[0]
        if name not in values:
            raise SpecError(
                f"{file}: command: {shown(token)} has no value; allowed: a key of defaults, and "
                "{{ or }} for a brace itself"
            )
        return str(values[name])

    return _FORMAT.sub(replacement, text)


def _substituted(text: str, values: Mapping[str, object], file: str) -> str:
    """`text` as sparkrun fills it: what has no value stays, and so does what follows it up to the
    next `}` (arg_substitute of its library vpd)."""

    def replacement(match: re.Match[str]) -> str:
        value = values.get(match.group().strip("{}"))
        return match.group() if value is None else str(value)

    for _ in range(_ROUNDS):
        filled = _SUBSTITUTE.sub(replacement, text)
        if filled == text:
            return text
        text = filled
    raise SpecError(f"{file}: command: a key of defaults stands for itself; allowed: a value")


def _split(text: str, file: str) -> list[str]:
    """The words of one command, as bash splits them; SpecError where bash would do more."""
    try:
        return shlex.split(_one_command(text.strip().rstrip("\\\n "), file))
    except ValueError as error:
        raise SpecError(f"{file}: command: {error}; allowed: closed quotes") from None


def _one_command(text: str, file: str) -> str:
    """`text` on one line and without comments. SpecError: variables, several commands, pipes.

    A blank between a backslash and the end of its line is no part of the command: sparkrun mends
    it, and for bash it would be the end.
    """
    kept, at, quote = [], 0, ""
    while at < len(text):
        char, next_line = text[at], None if quote == "'" else _CONTINUED.match(text, at)
        if next_line is not None:
            kept.append(" ")
            at = next_line.end()
            continue
        if not quote and char == "#" and (not kept or kept[-1].isspace()):
            at = (text + "\n").index("\n", at)
            continue
        if char == "\\" and quote != "'":
            kept.append(text[at : at + 2])
            at += 2
            continue
        if (char in "$`" and quote != "'") or (not quote and char in _OPERATORS):
            raise _script(text[: at + 40].splitlines()[text.count("\n", 0, at)], file)
        if char == "\n" and not quote:
            follows = [row.strip() for row in text[at:].splitlines()]
            if rest := [row for row in follows if row and not row.startswith("#")]:
                raise _script(rest[0], file)
        if char in ("'", '"'):
            quote = "" if char == quote else quote or char
        kept.append(char)
        at += 1
    return "".join(kept)


def _script(line: str, file: str) -> SpecError:
    told = shown(line.strip(), SECRET_NAME.search(line) is not None)
    return SpecError(
        f"{file}: command: is a shell script ({told}); allowed: one vllm serve "
        "command without variables"
    )
