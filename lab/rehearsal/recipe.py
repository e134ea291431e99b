"""A rig's recipe for the lab's small engine: the same image name, profiles, paths and ports.

What the small engine cannot take is left out, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.core.settings import ENGINE_VERSION, LabError
from lab.engine import stand_ins
from schema.recipe.recipe import Recipe

# The longest context of the lab's model; the recipe's lengths shrink in proportion.
LENGTH = 512
SHORTEST = 64
# What the small engine does as the recipe says it.
KEPT = frozenset({
    "model", "served_model_name", "host", "port", "max_num_seqs", "enable_prefix_caching",
    "enable_chunked_prefill", "max_model_len",
})  # fmt: skip
ENV = {
    "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
ENV_OF_A_RIG = {"GLOO_SOCKET_IFNAME": "{fabric.device}", "VLLM_HOST_IP": "{node.fabric_address}"}
# A start on the cores of one machine that all hosts share.
START_BUDGET_S = 900


def name_of(recipe: Recipe) -> str:
    """The twin's recipe has a name of its own: two recipes of one name are refused."""
    return f"{recipe.name}-twin"


def image_of(recipe: Recipe) -> str:
    """The image's name on the twin: a digest cannot be given to another image, so it has a tag."""
    image = recipe.container.image if recipe.container else ""
    name, digest, _ = image.partition("@")
    return f"{name}:twin" if digest else image


def twin_recipe(recipe: Recipe, nodes: int) -> tuple[dict[str, Any], list[str]]:
    """The recipe of the twin of `nodes` hosts, as YAML's data, and what was left out of the rig's.

    LabError for a recipe that the small engine cannot stand in for.
    """
    if recipe.weights.format != "safetensors":
        raise LabError(f"recipe {recipe.name}: the small engine reads no {recipe.weights.format}")
    out: list[str] = []
    longest = longest_of(recipe)
    serve = _flags(recipe.vllm_serve, longest)
    dropped = set(recipe.vllm_serve) - set(serve)
    profiles = {}
    for name, profile in recipe.profiles.items():
        kept = _flags(profile.vllm_serve, longest)
        dropped |= set(profile.vllm_serve) - set(kept)
        profiles[name] = {"description": f"twin: {profile.description}", "vllm_serve": kept}
    serve |= {"enforce_eager": True, "dtype": "float32", "override_generation_config":
              {"temperature": 0}}  # fmt: skip
    serve |= {"tensor_parallel_size": nodes if nodes > 1 else 2}
    if nodes == 1:
        serve |= {"distributed_executor_backend": "mp"}
    if dropped - set(serve):
        out.append(f"flags of {recipe.name}: {', '.join(sorted(dropped - set(serve)))}")
    made: dict[str, Any] = {
        "model": recipe.model,
        "description": f"TWIN of {recipe.name}: a 2-layer model on the CPU build of vLLM",
        "weights": {"source": "made by the lab", "path": recipe.weights.path},
        "env": ENV | ({name: _own(recipe, name) for name in ENV_OF_A_RIG} if nodes > 1 else {}),
        "vllm_serve": serve,
        "profiles": profiles,
        "default_profile": recipe.default_profile,
        "forbidden_env": [one.model_dump(exclude_none=True) for one in recipe.forbidden_env],
        "expect": {"start_budget_s": max(START_BUDGET_S, recipe.expect.start_budget_s),
                   "needs_nvidia": False, "tolerance": 0.7},
    }  # fmt: skip
    made |= _runtime(recipe, nodes) | _parts(recipe)
    out += _left_out(recipe, made)
    return made, out


def longest_of(recipe: Recipe) -> int:
    """The longest context that the recipe or a profile asks for."""
    rows: Sequence[Mapping[str, Any]] = [
        recipe.vllm_serve, *(one.vllm_serve for one in recipe.profiles.values())
    ]  # fmt: skip
    return max([int(row["max_model_len"]) for row in rows if row.get("max_model_len")] or [LENGTH])


def _flags(flags: Mapping[str, Any], longest: int) -> dict[str, Any]:
    kept = {name: value for name, value in flags.items() if name in KEPT}
    if kept.get("max_model_len"):
        kept["max_model_len"] = scaled(int(kept["max_model_len"]), longest)
    return kept


def scaled(length: int, longest: int) -> int:
    """A length of the rig's in proportion to the small engine's, of which `longest` is LENGTH."""
    return max(SHORTEST, LENGTH * length // longest)


def _own(recipe: Recipe, name: str) -> str:
    """The recipe's own value where it follows from the inventory."""
    value = recipe.env.get(name, "")
    return value if value.startswith("{") else ENV_OF_A_RIG[name]


def _runtime(recipe: Recipe, nodes: int) -> dict[str, Any]:
    box, venv = recipe.container, recipe.venv
    made: dict[str, Any] = {}
    if box is not None:
        volumes = [volume.model_dump() for volume in box.volumes]
        made["container"] = {"image": image_of(recipe), "ipc": box.ipc,
                             "volumes": volumes, "jit_caches": box.jit_caches}  # fmt: skip
    if venv is not None:
        made["venv"] = {"path": venv.path, "version": f"{ENGINE_VERSION}+cpu",
                        "wheels": venv.wheels}  # fmt: skip
        made["wheels"] = {"package": "vllm", "torch_variant": "cpu"}
    if nodes > 1:
        port = recipe.multi_node.master_port if recipe.multi_node else 29501
        made["multi_node"] = {"nnodes": nodes, "master_port": port}
    return made


def _parts(recipe: Recipe) -> dict[str, Any]:
    """The patches and modules that a container's image is told by, of any version: their stand-ins
    are in the twin's image.
    """
    if recipe.container is None:
        return {}
    patches = [
        {"id": row.id, "path": row.path, "contains": row.contains, "count": row.count,
         "required": row.required, "reason": row.reason}
        for row in recipe.patches if stand_ins.place(row.path)
    ]  # fmt: skip
    modules = [
        {"name": row.name, "files": [*row.files], "reason": row.reason} for row in recipe.modules
        if not any("*" in name for name in row.files)
    ]  # fmt: skip
    parts = {"patches": patches, "modules": modules}
    return {name: rows for name, rows in parts.items() if rows}


def _left_out(recipe: Recipe, made: Mapping[str, Any]) -> list[str]:
    """Other parts of the rig's recipe that the twin's has not."""
    box = recipe.container
    patches = {row["id"] for row in made.get("patches", ())}
    modules = {row["name"] for row in made.get("modules", ())}
    parts = {
        "env": ", ".join(sorted(set(recipe.env) - set(made["env"]))),
        "secrets": ", ".join(sorted(recipe.secrets)),
        "gpus": box and box.gpus,
        "runtime": box and box.runtime,
        "privileged": "true" if box and box.privileged else "",
        "digest": box and box.image.partition("@")[2],
        "patches": ", ".join(one.id for one in recipe.patches if one.id not in patches),
        "file_patches": ", ".join(one.id for one in recipe.file_patches),
        "patch_tools": ", ".join(one.id for one in recipe.patch_tools),
        "modules": ", ".join(one.name for one in recipe.modules if one.name not in modules),
        "baselines": ", ".join(sorted({one.profile for one in recipe.expect.baselines})),
    }
    rows = [f"{key} of {recipe.name}: {value}" for key, value in parts.items() if value]
    if patches | modules:
        named = ", ".join(sorted(patches | modules))
        rows.append(f"files of {recipe.name}'s image: stand-ins for {named}")
    if recipe.expect.reasoning or recipe.expect.tools:
        rows.append(f"expect of {recipe.name}: reasoning or tools: a random model has neither")
    return rows
