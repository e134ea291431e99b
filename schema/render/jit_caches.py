"""The caches of kernels that an engine compiles while it runs, and where the host keeps them.

A container that docker removes after each stop loses what lies in its own layer: the next start
compiles again, and shapes that a start does not warm are compiled in the middle of a request
(sparkring#185, DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from schema.desired.plan import EngineSpec
from schema.recipe.recipe import Recipe

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


def kept(spec: EngineSpec) -> Mapping[str, str]:
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
