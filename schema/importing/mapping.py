"""A neighbour's recipe as one of ours: what has a counterpart, and the words about what has none.

What nothing here takes is named: `needs` is what a person has to look at before the first serve,
`left` is what a rig of ours has no use for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from node.rules.secret import API_KEY, holds_secret
from schema.core.errors import SpecError, shown
from schema.importing import command
from schema.importing.container import container_of, environment_of
from schema.importing.neighbour import check_engine, launcher_of, section
from schema.importing.result import Imported
from schema.recipe.arguments import flags_of
from schema.recipe.flags import DERIVED
from schema.recipe.recipe import OF_THE_HUB

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
        flags, twice = flags_of(command.words(data, launcher, shown_as))
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
    unused = set(data.get("defaults") or {}) - command.used(data)
    made.left += [f"defaults.{key}: the command does not take it" for key in unused]
    about = sorted(key for key in metadata if key != "description")
    made.left += [f"metadata ({', '.join(about)})"] if about else []
    made.left.sort()
    made.needs.append(
        "expect: measure the first start and set start_budget_s; reasoning and tools, where the "
        "model gives them"
    )
