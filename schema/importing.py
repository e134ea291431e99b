"""A recipe made of a neighbour's (`python -m schema.importing`)."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from node.rules.secret import API_KEY, SECRET_NAME, has_credentials, holds_secret
from schema.core import SpecError, build_parse, plain_name, shown
from schema.load import WORDS, Launcher, check_engine, launcher_of, read_file, section
from schema.recipe import OF_THE_HUB, Recipe
from schema.vllm import DERIVED, flags_of

# Recipes of eugr's spark-vllm-docker and of sparkrun (spark-arena), made into ours.

# What an import gives: the recipe as plain data, and the words about what nothing here took.


@dataclass
class Imported:
    """A recipe of ours as plain data, with what is to be said about it. `file` is the
    neighbour's, as errors name it.
    """

    name: str
    file: str
    launcher: Launcher
    data: dict[str, Any]
    needs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def without(self, key: str, value: object) -> None:
        """Names a key that has no counterpart, with its value where that is one that all may read:
        the text goes into a file of the project."""
        plain = isinstance(value, str | int | float) and not holds_secret(key.rpartition(".")[2])
        told = f": {shown(value)}" if plain and not has_credentials(str(value)) else ""
        self.needs.append(f"{key}: has no counterpart{told}")

    def recipe(self) -> Recipe:
        """The same as the loader takes it; SpecError names what it does not take."""
        return build_parse(Recipe, self.data, lambda key: self.file, given={"name": self.name})


# The command line that a neighbour's launcher runs: its template filled, and split as bash does.
#
# eugr's run-recipe.py fills with str.format and runs without Ray unless it is asked for Ray.
# sparkrun
# replaces {key} where `defaults` has the key, again until nothing changes, and leaves the rest.

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


def command_words(data: Mapping[str, object], launcher: Launcher, file: str) -> list[str]:
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


# The container and the environment that a neighbour's launcher gives the engine.
#
# Sources: launch-cluster.sh of eugr/spark-vllm-docker; orchestration/primitives.py,
# runtimes/base.py,
# _util.py, vllm_distributed.py and RECIPES.md (Executor Config) of spark-arena/sparkrun.

# A host folder below the login user's home and its place in the container.
_VOLUMES: dict[Launcher, dict[str, str]] = {
    "eugr": {
        "~/.cache/huggingface": "/root/.cache/huggingface",
        "~/.cache/vllm": "/root/.cache/vllm",
        "~/.cache/flashinfer": "/root/.cache/flashinfer",
        "~/.triton": "/root/.triton",
        "~/.tilelang": "/root/.tilelang",
    },
    "sparkrun": {"~/.cache/huggingface": "/cache/huggingface"},
}
_ENV: dict[Launcher, dict[str, str]] = {
    "eugr": {
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    },
    "sparkrun": {
        "HF_HOME": "/cache/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    },
}
_CLUSTER_ENV: dict[Launcher, dict[str, str]] = {
    "eugr": {},
    "sparkrun": {"NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "4"},
}
# Both launchers give each rank its own addresses and devices; with us they are the rig's.
_RIG_ENV = {
    "VLLM_HOST_IP": "{node.fabric_address}",
    "NCCL_SOCKET_IFNAME": "{fabric.device}",
    "GLOO_SOCKET_IFNAME": "{fabric.device}",
    "NCCL_IB_DISABLE": "0",
}
# Values that mean the same in a recipe of ours.
_SAME: dict[str, tuple[object, ...]] = {
    "ipc": ("host", "private"), "privileged": (True, False)
}  # fmt: skip
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?")
_SIZE = re.compile(r"([1-9][0-9]*)([kmg])b?\Z", re.IGNORECASE)


def container_of(data: Mapping[str, Any], made: Imported) -> dict[str, Any]:
    """The container as ours has it; what has no counterpart is named in `made`."""
    image = data.get("container")
    if not isinstance(image, str) or not image:
        raise SpecError(f"{made.file}: container: is {shown(image)}; allowed: an image")
    given = data.get("build_args") or []
    args = " ".join(map(_public, given if isinstance(given, list) else [given]))
    if "/" not in image:
        build = f"./build-and-copy.sh -t {image} {args}".rstrip()
        made.needs.append(f"the image {image}, which eugr's `{build}` builds")
    elif "@" not in image:
        made.needs.append(f"{image} by digest, name@sha256:…: two nodes may have pulled two builds")
    if args and "/" in image:
        made.needs.append(f"build_args: {args}: of eugr's build-and-copy.sh")
    box: dict[str, Any] = {
        "image": image,
        "gpus": "all",
        "ipc": "host",
        "privileged": True,
        "volumes": [{"source": s, "target": t} for s, t in _VOLUMES[made.launcher].items()],
    }
    for key, value in section(data, "executor_config", made.file).items():
        size = _SIZE.match(str(value)) if key == "shm_size" else None
        if key in ("auto_remove", "restart_policy", "entrypoint"):
            made.left.append(f"executor_config.{key}: the unit starts, restarts and removes it")
        elif size:
            box["shm_size"] = size[1] + size[2].lower()
        elif key == "network" and value == "host":
            continue  # as every engine of ours
        elif value in _SAME.get(key, ()) or (key == "gpus" and value):
            box[key] = value
        else:
            made.without(f"executor_config.{key}", value)
    return box


def _public(argument: object) -> str:
    """An argument of a build, without the value of a secret."""
    name, equals, _ = str(argument).partition("=")
    return f"{name}=***" if equals and holds_secret(name.lstrip("-")) else str(argument)


def environment_of(
    given: Mapping[str, Any], nodes: int, made: Imported
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The variables of `given`, and the secrets by their sources; the launcher's own stand first.

    Values of a secret are not taken, nor those that name a variable of somebody's shell.
    """
    env = dict(_ENV[made.launcher])
    env |= {**_CLUSTER_ENV[made.launcher], **_RIG_ENV} if nodes > 1 else {}
    secrets: dict[str, dict[str, str]] = {}
    for name, value in given.items():
        text = str(value)
        if holds_secret(name):
            secrets[name] = {"env": name}
            made.needs.append(f"{name} in your shell: its value was not taken")
        elif value is None or _VARIABLE.search(text):
            told = "is empty" if value is None else "names a variable of the launcher's shell"
            made.needs.append(f"env.{name}: {told}")
        else:
            env[name] = text.replace("{", "{{").replace("}", "}}")
    if nodes > 1 and "NCCL_IB_HCA" not in env:
        made.needs.append("env.NCCL_IB_HCA, where NCCL is to use RDMA: `rdma link` shows the names")
    return env, secrets


# A neighbour's recipe as one of ours: what has a counterpart, and the words about what has none.
#
# What nothing here takes is named: `needs` is what a person has to look at before the first serve,
# `left` is what a rig of ours has no use for.

MASTER_PORT = 29501  # eugr's launch-cluster.sh
_TAKEN = {
    "recipe_version", "sparkrun_version", "name", "description", "model", "runtime", "container",
    "defaults", "env", "command", "mods", "build_args", "executor_config", "metadata",
    "min_nodes", "max_nodes", "mode", "solo_only", "cluster_only",
}  # fmt: skip
# They say something about the recipe and nothing about how it runs.
_ABOUT = {"benchmark", "maintainer", "runtime_version", "notes", "specs", "stop_after_post"}


def imported(data: Mapping[str, Any], file: Path, name: str) -> Imported:
    """The neighbour's recipe `data`, read from `file`, as one of ours called `name`.

    SpecError, one line a problem: no recipe of a neighbour, another engine, a command that is more
    than `vllm serve`, a value that rigbook refuses.
    """
    shown_as, launcher = str(file), launcher_of(data)
    if launcher is None:
        raise SpecError(f"{shown_as}: is no recipe of eugr's run-recipe.py or of sparkrun")
    check_engine(data, shown_as)
    try:
        flags, twice = flags_of(command_words(data, launcher, shown_as))
    except ValueError as error:
        raise SpecError(f"{shown_as}: command: {error}") from None
    if type(flags.get("model")) is not str:
        raise SpecError(f"{shown_as}: command: names no model behind vllm serve")
    made = Imported(name, shown_as, launcher, {})
    made.needs += [f"{_flag(key)} stands twice; the last one counts" for key in twice]
    secrets = _without_secrets(flags, made)
    _without_rendezvous(flags, made)
    nodes = _nodes(data, flags, made)
    model = str(data.get("model") or flags["model"])
    metadata = section(data, "metadata", shown_as)
    described = data.get("description") or metadata.get("description") or f"vLLM serves {model}"
    made.data |= {
        "model": model.rstrip("/").rpartition("/")[2],
        "description": " ".join(str(described).split()),
        "container": container_of(data, made),
    }
    made.data["weights"] = _weights(model, flags, made)
    made.data["env"], more = environment_of(section(data, "env", shown_as), nodes, made)
    if secrets or more:
        made.data["secrets"] = {**secrets, **more}
    made.data["vllm_serve"] = flags
    if nodes > 1:
        made.data["multi_node"] = {"nnodes": nodes, "master_port": MASTER_PORT}
    _name_the_rest(data, metadata, flags, made)
    made.recipe()
    return made


def _flag(key: str) -> str:
    """A key of vllm_serve as a person types it."""
    return "--" + key.replace("_", "-")


def _without_secrets(flags: dict[str, JsonValue], made: Imported) -> dict[str, Any]:
    """The secrets that stood in the command line; their flags are taken out."""
    found = {}
    for name in [name for name in flags if holds_secret(name)]:
        flags.pop(name)
        variable = API_KEY if name == "api_key" else name.upper()
        found[variable] = {"env": variable}
        made.needs.append(f"{variable} in your shell: the value in the command was not taken")
    return found


def _without_rendezvous(flags: dict[str, JsonValue], made: Imported) -> None:
    """Takes out what joins the nodes: ours are joined by vLLM's own rendezvous, without Ray."""
    ray = flags.get("distributed_executor_backend")
    if ray is not None and (made.launcher == "eugr" or ray == "ray"):
        flags.pop("distributed_executor_backend")
        made.left.append(f"--distributed-executor-backend {ray}: vLLM joins the nodes itself")
    for name in DERIVED:
        if name in flags:
            made.left.append(f"{_flag(name)} {flags.pop(name)}: follows from the rig")


def _nodes(data: Mapping[str, Any], flags: Mapping[str, JsonValue], made: Imported) -> int:
    """How many nodes serve it: a rank each, as on DGX Spark (RECIPES.md, Topology)."""
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        count = flags.get(name, 1)
        if type(count) is not int or count < 1:
            raise SpecError(
                f"{made.file}: {_flag(name)}: is {shown(count)}; allowed: a whole number"
            )
        ranks *= count
    replicas = flags.get("data_parallel_size", 1)
    if replicas != 1:
        made.needs.append(
            f"data_parallel_size {replicas}: rigbook starts no data-parallel ranks on other nodes"
        )
    for key in ("min_nodes", "max_nodes"):
        if type(data.get(key) or 1) is not int:
            raise SpecError(f"{made.file}: {key}: is {shown(data[key])}; allowed: a whole number")
    most = 1 if data.get("solo_only") or data.get("mode") == "solo" else data.get("max_nodes")
    least = max(data.get("min_nodes") or 1, 2 if data.get("cluster_only") else 1)
    if most == 1 or ranks == 1:
        if least > 1:
            made.needs.append(f"it wants {least} nodes or more, its parallel sizes say {ranks}")
        return 1
    if ranks < least or (most and ranks > most):
        made.needs.append(
            f"multi_node.nnodes: {ranks} follows from the parallel sizes, a GPU a node; the "
            f"original says {least} to {most or 'any number of'} nodes"
        )
    if made.launcher == "eugr" and least == 1:
        made.needs.append(
            f"it is for {ranks} nodes; for one take multi_node out and set tensor_parallel_size to "
            "1, as run-recipe.py does without a cluster"
        )
    return ranks


def _weights(model: str, flags: Mapping[str, JsonValue], made: Imported) -> dict[str, Any]:
    """Where the weights lie: in the hub's cache for a model OWNER/NAME."""
    served = str(flags["model"])
    draft = flags.get("speculative_config")
    if isinstance(draft, dict) and draft.get("model") not in (None, served):
        made.needs.append(f"the draft model {draft['model']} in the hub cache of each node, too")
    for volume in made.data["container"]["volumes"]:
        below = served.removeprefix(volume["target"] + "/")
        if below != served:
            return {"source": model, "path": f"{volume['source']}/{below}"}
    if OF_THE_HUB.match(served):
        if served != model:
            made.needs.append(f"it names {model} as its model and serves {served}")
        return {"source": served}
    made.needs.append(f"weights.path and a volume for it: the engine reads {served}")
    return {"source": model, "path": "~/models/" + served.rstrip("/").rpartition("/")[2]}


def _name_the_rest(
    data: Mapping[str, Any],
    metadata: Mapping[str, Any],
    flags: Mapping[str, JsonValue],
    made: Imported,
) -> None:
    """Names each key that nothing took."""
    for name, value in flags.items():
        if isinstance(value, str) and value.startswith("{"):
            made.needs.append(f"{_flag(name)} is no JSON, as in the original")
    if "gpu_memory_utilization_gb" in flags:
        made.needs.append(
            "gpu_memory_utilization_gb is a mod's: rigbook's look at the memory reckons with "
            "gpu_memory_utilization 0.9"
        )
    mods = data.get("mods") or []
    made.needs += [
        f"{mod}: its run.sh changes the image: build one with it by hand (docs/runbooks/image.md) "
        "and name that in container.image"
        for mod in (mods if isinstance(mods, list) else [mods])
    ]
    for key in data.keys() - _TAKEN:
        if key in _ABOUT:
            made.left.append(key)
        elif data[key] not in (None, {}, [], ""):
            made.without(key, data[key])
    unused = set(data.get("defaults") or {}) - used(data)
    made.left += [f"defaults.{key}: the command does not take it" for key in unused]
    about = sorted(key for key in metadata if key != "description")
    made.left += [f"metadata ({', '.join(about)})"] if about else []
    made.left.sort()
    made.needs.append(
        "expect: measure the first start and set start_budget_s; reasoning and tools, where the "
        "model gives them"
    )


# The text of an imported recipe: what it comes from, what needs a person, and the recipe.

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes values out: the loader takes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text(made: Imported, file: str) -> str:
    """The YAML of catalog/recipes/NAME.yaml."""
    lines = [f"from {file}, a recipe of {WORDS[made.launcher]}, by python -m schema.importing"]
    lines += [f"needs you: {line}" for line in made.needs]
    lines += [f"left out: {line}" for line in made.left]
    body = yaml.dump(made.data, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "\n".join(map(_comment, lines)) + "\n" + body


def _comment(line: str) -> str:
    """A line of text as a comment of 100 characters a line; control characters escaped."""
    plain = line if line.isprintable() else ascii(line)
    return textwrap.fill(
        plain, _WIDTH, initial_indent="# ", subsequent_indent="#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


# `python -m schema.importing FILE`: a recipe of eugr's or sparkrun's, printed as one of ours.
#
# --write        into catalog/recipes/NAME.yaml
# --name NAME    another name than the file's

ROOT = Path(__file__).resolve().parents[1]


def converted(file: Path, name: str) -> Imported:
    """The recipe in `file` as one of ours called `name`."""
    try:
        plain_name(name)
    except ValueError as error:
        raise SpecError(f"--name: {name!r} {error}") from None
    data, twice = read_file(file)
    made = imported(data, file, name)
    made.needs[:0] = [f"{key} stands twice in the file; the last one counts" for key in twice]
    return made


def write(made: Imported, file: Path, root: Path) -> str:
    """Writes the recipe; gives its path below `root`. SpecError where one is there already.

    A neighbour's file that lies where the recipe goes is kept as NAME.yaml.original.
    """
    recipe = f"catalog/recipes/{made.name}.yaml"
    target, kept = root / recipe, root / f"{recipe}.original"
    own = target.exists() and target.samefile(file)
    if (kept if own else target).exists():
        there = (kept if own else target).relative_to(root)
        raise SpecError(f"{there}: is there already; allowed: --name OTHER")
    body = text(made, str(kept.relative_to(root) if own else file))
    if own:
        target.rename(kept)
    target.write_text(body)
    return recipe


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit status; 1 with one line a problem."""
    parser = argparse.ArgumentParser(prog="python -m schema.importing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        made = converted(asked.file, asked.name or asked.file.stem)
        if not asked.write:
            print(text(made, str(asked.file)), end="")
            return 0
        written = write(made, asked.file, root)
        lines = [f"wrote {written}", *(f"needs you: {row}" for row in made.needs)]
        print("\n".join(lines))
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
