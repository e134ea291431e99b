"""What a run wants: the plan of a rig, and each node's engine in it.

Pure data; `schema.plan` makes an EngineSpec, `schema.render_engine` the files
that land on a node, `schema.load` the whole plan.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, Field, JsonValue, model_validator

from schema.cluster import ClusterData
from schema.core import Address, Device, Frozen, Hca, HostName, Name, SpecError, mount_path, unknown
from schema.recipe import MultiNode, Recipe, SecretSource, Volume
from schema.snapshot import SnapshotRequest
from schema.vllm import fill, flag_arguments

# A rig: the machines that together serve one model, and the links between them.


class Fabric(Frozen):
    """The private link between the nodes: its MTU in bytes. Each node has its own device on it."""

    mtu: Annotated[int, Field(ge=1280, le=65535)] = 9000


class Node(Frozen):
    """One machine of a rig. `rank` 0 is the head, which answers clients.

    `fabric_device` and `fabric_address` are None on a rig of one node. `hcas` are the RDMA devices
    that its engine is to use, in the form of NCCL_IB_HCA; empty: as the recipe says. `uncabled` are
    links that never have a cable. `home` is the login user's home on the node, the meaning of `~`
    in a recipe's volumes.
    """

    name: HostName
    role: Literal["head", "worker"]
    rank: Annotated[int, Field(ge=0, le=63)]
    lan_address: Address
    fabric_address: Address | None = None
    fabric_device: Device | None = None
    hcas: tuple[Hca, ...] = ()
    uncabled: tuple[Device, ...] = ()
    ssh_user: Name
    home: Annotated[str, AfterValidator(mount_path)]


class Rig(Frozen):
    """All nodes of a rig, in rank order, with what is common to them."""

    name: Name
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    fabric: Fabric | None = None

    @model_validator(mode="after")
    def _one_head_and_a_rank_each(self) -> Rig:
        heads = [node.name for node in self.nodes if node.role == "head"]
        if len(heads) != 1:
            listed = ", ".join(heads) or "none"
            raise ValueError(f"has {len(heads)} heads ({listed}); allowed: one host of role head")
        if [node.rank for node in self.nodes] != list(range(len(self.nodes))):
            ranks = ", ".join(f"{node.name} {node.rank}" for node in self.nodes)
            raise ValueError(f"ranks are {ranks}; allowed: 0, 1, 2 … one each, without a gap")
        if self.nodes[0].role != "head":
            raise ValueError(
                f"{self.nodes[0].name} has rank 0; allowed: rank 0 for {heads[0]}, the head"
            )
        for what in ("name", "lan_address", "fabric_address"):
            seen = [getattr(n, what) for n in self.nodes if getattr(n, what) is not None]
            if len(seen) != len(set(seen)):
                raise ValueError(
                    f"two nodes share a {what}: {', '.join(map(str, seen))}; allowed: one each"
                )
        if len(self.nodes) > 1:
            if self.fabric is None:
                raise ValueError("fabric_device: is missing in group_data; several nodes need one")
            for what in ("fabric_device", "fabric_address"):
                bare = [n.name for n in self.nodes if getattr(n, what) is None]
                if bare:
                    raise ValueError(f"{', '.join(bare)}: {what}: is missing in the inventory")
        return self

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes of rank 1 and up, in rank order."""
        return self.nodes[1:]

    def node(self, name: str) -> Node:
        """The node called `name`; KeyError when the rig has none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


C = TypeVar("C", bound=ClusterData)
UNIT = "rigbook-engine.service"
CONTAINER = "rigbook-engine"
ENGINE_DIR = "/etc/rigbook/engine"
# Looks every 15 s whether the ranks are still joined; only on rigs of several nodes.
PAIR_SERVICE = "rigbook-pair.service"
PAIR_TIMER = "rigbook-pair.timer"
ENGINE_FOLDERS = ("/etc/rigbook", ENGINE_DIR)
# Where the engine runs: docker on each node, a venv under systemd, a pod of somebody else's chart.
Runtime = Literal["container", "venv", "deployment"]


@dataclass(frozen=True)
class EngineSpec:
    """What one node's engine is to be.

    `argv` is the whole command line from `vllm serve` on, one element an argument, JSON arguments
    as one element each; in a venv its first word is the program's path. `venv` and `user` are the
    venv's path and who runs it, None for a container. `environ` is the engine's environment.
    `volumes` are (source, target, read_only) with `~` resolved. `weights` is the host path of the
    weights. `cache_folders` are the mounted folders below the login user's home, parents first,
    that may be made when absent; the weights' own are not among them. `jit_folders` are those of
    the caches that the recipe does not place, root's. `flags` are the merged vllm_serve values, for
    diffs. `secrets` say where the values of further variables come from, a file of the node as an
    absolute path.
    """

    node: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    volumes: tuple[tuple[str, str, bool], ...]
    weights: str
    cache_folders: tuple[str, ...]
    flags: dict[str, object]
    venv: str | None = None
    user: str | None = None
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    jit_folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """A text file that lands on a node: absolute path, content, octal mode; owner is root."""

    path: str
    content: str
    mode: str


@dataclass(frozen=True)
class Plan:
    """What a run wants on every node of a rig. Maps are keyed by node name.

    `deployment` is set where the engine is a Deployment: its chart writes and starts it, so there
    are no specs and no documents, and the recipe says what may be expected of its answers.
    `former_rig` is the other rig that nodes may be taken from, where it was named.
    """

    rig: Rig
    recipe: Recipe
    profile: str
    specs: dict[str, EngineSpec]
    documents: dict[str, tuple[Document, ...]]
    requests: dict[str, SnapshotRequest]
    deployment: ClusterData | None = None
    former_rig: str | None = None

    @property
    def runtime(self) -> Runtime:
        """Where the engine runs."""
        if self.deployment is not None:
            return "deployment"
        return "venv" if self.recipe.container is None else "container"

    @property
    def chart(self) -> ClusterData:
        """What is known of the Deployment; LookupError on a rig of another runtime."""
        if self.deployment is None:
            raise LookupError(f"{self.rig.name} has no Deployment")
        return self.deployment

    def chart_as(self, kind: type[C]) -> C:
        """The same as the type of the runbook that runs."""
        assert isinstance(self.chart, kind), f"{type(self.chart).__name__} is no {kind.__name__}"
        return self.chart


# The caches of kernels that an engine compiles while it runs, and where the host keeps them.
#
# A container that docker removes after each stop loses what lies in its own layer: the next start
# compiles again, and shapes that a start does not warm are compiled in the middle of a request
# (sparkring#185, DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65).

ROOT = "/var/cache/rigbook/jit"
IN_CONTAINER = "/rigbook/jit"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
Mounts = tuple[tuple[str, str, bool], ...]


class Cache(NamedTuple):
    """A cache: its name, the variable that names its folder, and its folder below the home."""

    name: str
    variable: str
    usual: str


CACHES = (
    # torch.compile's and the autotuner's results (vllm/envs.py)
    Cache("vllm", "VLLM_CACHE_ROOT", ".cache/vllm"),
    Cache("triton", "TRITON_CACHE_DIR", ".triton/cache"),
    Cache("tilelang", "TILELANG_CACHE_DIR", ".tilelang/cache"),
    # vLLM's default for it, beside its own (vllm/utils/deep_gemm.py)
    Cache("deep_gemm", "DG_JIT_CACHE_DIR", ".cache/vllm/deep_gemm"),
    # FlashInfer adds .cache/flashinfer and its version (flashinfer/jit/env.py)
    Cache("flashinfer", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"),
)
HOME = "/root"


class Added(NamedTuple):
    """What an engine gets beyond its recipe. `folders` are made when absent, parents first."""

    environ: dict[str, str]
    volumes: Mounts
    folders: tuple[str, ...]


def added(recipe: Recipe, volumes: Mounts) -> Added:
    """The caches that the recipe does not place itself, by a variable or a mount.

    Only for containers that compile kernels: those with NVIDIA GPUs.
    """
    box = recipe.container
    if box is None or not box.jit_caches or not recipe.expect.needs_nvidia:
        return Added({}, (), ())
    named = {*recipe.env, *recipe.secrets, *(rule.name for rule in recipe.forbidden_env)}
    targets = [target for _, target, read_only in volumes if not read_only]
    missing = [
        cache
        for cache in CACHES
        if cache.variable not in named
        and not _mounted(f"{HOME}/{cache.usual}", volumes)
        and not any(target.endswith(f"/{cache.usual}") for target in targets)
    ]
    if not missing:
        return Added({}, (), ())
    folder = f"{ROOT}/{key(box.image)}"
    environ = {cache.variable: f"{IN_CONTAINER}/{cache.name}" for cache in missing}
    parents = (str(PurePosixPath(ROOT).parent), ROOT, folder)
    return Added(environ, ((folder, IN_CONTAINER, False),), parents)


def key(image: str) -> str:
    """The folder's name for an image: what one image compiled may not fit another's libraries."""
    short = _UNSAFE.sub("-", image.rpartition("/")[2].replace("@sha256:", "-"))[:48]
    return f"{short}-{hashlib.sha256(image.encode()).hexdigest()[:8]}"


def jit_caches_kept(spec: EngineSpec) -> Mapping[str, str]:
    """The host's folder of each cache that outlives the container, by the cache's name."""
    found: dict[str, str] = {}
    for cache in CACHES if spec.venv is None else ():
        inside = spec.environ.get(cache.variable, f"{HOME}/{cache.usual}")
        mount = _mounted(inside, spec.volumes)
        if mount is not None:
            source, target = mount
            found[cache.name] = source + inside[len(target) :]
    return found


def _mounted(path: str, volumes: Mounts) -> tuple[str, str] | None:
    """The writable mount (source, target) that a path of the container lies in."""
    for source, target, read_only in sorted(volumes, key=lambda row: -len(row[1])):
        if path == target or path.startswith(f"{target.rstrip('/')}/"):
            return None if read_only else (source, target.rstrip("/"))
    return None


# The engine of one node: its command line and environment, from rig, node, recipe and profile.


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
    caches = added(recipe, volumes)
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
