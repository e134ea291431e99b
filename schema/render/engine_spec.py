"""The engine of one node: its command line and environment, from rig, node, recipe and profile."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath

from pydantic import JsonValue

from schema.core.errors import SpecError, unknown
from schema.desired.plan import EngineSpec
from schema.desired.rig import Node, Rig
from schema.recipe.flags import flag_arguments
from schema.recipe.placeholders import fill
from schema.recipe.recipe import MultiNode, Recipe, Volume
from schema.recipe.secrets import SecretSource
from schema.render import jit_caches


def engine_spec(rig: Rig, node: Node, recipe: Recipe, profile: str) -> EngineSpec:
    """What `node` has to run for `recipe` in `profile`. Pure.

    The flags keep the recipe's order; a flag that only the profile has comes after them, and the
    rendezvous flags come last. SpecError: an unknown profile, a rig whose number of nodes is not
    the recipe's, a placeholder without a value on this rig.
    """
    flags = merged_flags(recipe, profile)
    values = node_values(rig, node)
    file = f"recipe {recipe.name}"
    venv = on_node(recipe.venv.path, node) if recipe.venv else None
    program = f"{venv}/bin/vllm" if venv else "vllm"
    argv = [program, "serve", fill(str(flags["model"]), values, f"{file}: vllm_serve.model")]
    for name, value in flags.items():
        if name != "model":
            filled = partial(fill, values=values, key=f"{file}: vllm_serve.{name}")
            argv += flag_arguments(name, value, filled)
    argv += _rendezvous(rig, node, recipe)
    volumes = tuple((on_node(v.source, node), v.target, v.read_only) for v in _volumes(recipe))
    caches = jit_caches.added(recipe, volumes)
    return EngineSpec(
        node=node.name,
        argv=tuple(argv),
        environ={**_environ(recipe, node, values), **caches.environ},
        volumes=volumes + caches.volumes,
        weights=on_node(recipe.weights.path, node),
        cache_folders=_cache_folders(recipe, node),
        jit_folders=caches.folders,
        flags={name: value for name, value in flags.items() if value is not None},
        venv=venv,
        user=(recipe.venv.user or node.ssh_user) if recipe.venv else None,
        secrets={name: _source(source, node) for name, source in recipe.secrets.items()},
    )


def _environ(recipe: Recipe, node: Node, values: dict[str, str]) -> dict[str, str]:
    """The recipe's variables; the node's own RDMA devices win, where the inventory names them.

    NCCL reads `=` as exact names, else `mlx5_1` is `mlx5_10` as well (NCCL's manual, NCCL_IB_HCA).
    """
    filled = {
        name: fill(value, values, f"recipe {recipe.name}: env.{name}")
        for name, value in recipe.env.items()
    }
    return {**filled, "NCCL_IB_HCA": f"={','.join(node.hcas)}"} if node.hcas else filled


def _source(source: SecretSource, node: Node) -> SecretSource:
    """The same with the node's file as an absolute path."""
    if source.node_file is None:
        return source
    return source.model_copy(update={"node_file": on_node(source.node_file, node)})


def _volumes(recipe: Recipe) -> tuple[Volume, ...]:
    """The bind mounts of the engine's container; a venv has none."""
    return recipe.container.volumes if recipe.container else ()


def _cache_folders(recipe: Recipe, node: Node) -> tuple[str, ...]:
    """The mounted folders below the home that do not hold the weights, parents first."""
    weights = PurePosixPath(on_node(recipe.weights.path, node))
    home = PurePosixPath(node.home)
    folders: dict[str, None] = {}
    for volume in _volumes(recipe):
        source = PurePosixPath(on_node(volume.source, node))
        if home not in source.parents or source == weights or source in weights.parents:
            continue
        chain = [source, *source.parents]
        below = [str(path) for path in chain if home in path.parents]
        folders.update(dict.fromkeys(reversed(below)))
    return tuple(folders)


def merged_flags(recipe: Recipe, profile: str) -> dict[str, JsonValue]:
    """The recipe's vllm_serve with the profile's overrides; null marks a dropped flag."""
    if profile not in recipe.profiles:
        raise SpecError(f"recipe {recipe.name}: {unknown('profile', profile, recipe.profiles)}")
    return {**recipe.vllm_serve, **recipe.profiles[profile].vllm_serve}


def _rendezvous(rig: Rig, node: Node, recipe: Recipe) -> list[str]:
    """The flags that join the nodes; none for a recipe of one node."""
    wanted = recipe.multi_node.nnodes if recipe.multi_node else 1
    if wanted != len(rig.nodes):
        names = ", ".join(n.name for n in rig.nodes)
        raise SpecError(
            f"recipe {recipe.name}: multi_node.nnodes: the recipe wants {wanted} node(s), rig "
            f"{rig.name} has {len(rig.nodes)} ({names}); allowed: as many nodes as the rig has"
        )
    if recipe.multi_node is None:
        return []
    return [*_join_flags(recipe.multi_node, rig, node), *(["--headless"] if node.rank else [])]


def _join_flags(multi_node: MultiNode, rig: Rig, node: Node) -> list[str]:
    return [
        *("--nnodes", str(multi_node.nnodes), "--node-rank", str(node.rank)),
        *("--master-addr", str(rig.head.fabric_address)),
        *("--master-port", str(multi_node.master_port)),
    ]


def on_node(path: str, node: Node) -> str:
    """A path with `~` as the login user's home on the node."""
    return node.home + path.removeprefix("~") if path.startswith("~") else path


def node_values(rig: Rig, node: Node) -> dict[str, str]:
    """What each placeholder stands for on `node`; those that the rig does not have are absent."""
    values = {
        "node.lan_address": str(node.lan_address),
        "node.name": node.name,
        "node.rank": str(node.rank),
        "node.home": node.home,
    }
    if node.fabric_address is not None:
        values["node.fabric_address"] = str(node.fabric_address)
    if node.fabric_device is not None:
        values["fabric.device"] = node.fabric_device
    return values
