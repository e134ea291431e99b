"""What a run wants: the plan of a rig, and each node's engine in it.

Pure data; `schema.render.engine_spec` makes an EngineSpec, `schema.render.engine_files` the files
that land on a node, `schema.inputs.load` the whole plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from schema.desired.kubernetes import ClusterData
from schema.desired.rig import Rig
from schema.observed.snapshot import SnapshotRequest
from schema.recipe.recipe import Recipe
from schema.recipe.secrets import SecretSource

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
