"""A Deployment, its library, a cluster's rig."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from schema.core import PYINFRA_KEYS, AbsolutePath, Argument, Frozen, HostKeys, Url, key
from schema.recipe import Expect, Recipe
from schema.snapshot import Unreadable

# A Deployment and its pods, as `node kube look` reports them.


class Rollout(Frozen):
    """How far a rollout is; `failed`: its own progress deadline has passed."""

    done: bool
    failed: bool
    words: str
    wanted: int
    generation: int


class Variable(Frozen):
    """Where a variable stands (`env`, `args`, `command`, `unclear`) and its value, None: unset; or
    where one of an edit's two texts does, and which.
    """

    kind: str
    index: int
    value: str | None
    why: str | None


class Live(Frozen):
    """What a pod's processes on the host have of the variables; 0 processes: none is seen there."""

    processes: int
    values: dict[str, tuple[str, ...]]


class Pod(Frozen):
    """One pod of a Deployment. `stuck`: why waiting for it is useless. `age_s`: since its node took
    it, None: not yet.
    """

    name: str
    uid: str
    hash: str
    phase: str
    leaving: bool
    ready: int
    containers: int
    restarts: int
    waiting: str | None
    stuck: str | None
    log: tuple[str, ...]
    live: Live
    age_s: float | None = None


class Change(Frozen):
    """One value that the server's dry run changes."""

    path: str
    before: str | None
    after: str | None


class Guarded(Frozen):
    """/etc/rigbook/limit.json: what was set in a container and edited in its command line, whether
    a URL is told (or the file that has it), and a line for each value that differs.
    """

    container: str
    values: dict[str, str]
    edits: dict[str, str]
    webhook: bool
    webhook_file: str | None
    differs: tuple[str, ...]


class KubeLook(Frozen):
    """A Deployment as it is; `changes`: what the asked-for patch would change, None: not asked.

    `guard`: what a guard watches in this Deployment, None: nothing.
    """

    name: str
    uid: str
    resource_version: str
    container: str
    containers: tuple[str, ...]
    rollout: Rollout
    variables: dict[str, Variable]
    pods: tuple[Pod, ...]
    event: str | None
    changes: tuple[Change, ...] | None
    guard: Guarded | Unreadable | None = None


class ModelFile(Frozen):
    """A model file's own header in words; `broken`: why it is not whole."""

    path: str
    size: int | None
    format: str | None
    said: str
    broken: str | None


class ModelFiles(Frozen):
    """The headers of the files that were asked for, in their order."""

    files: tuple[ModelFile, ...]


class HostAnswer(Frozen):
    """What came back when the host asked for a completion; `final`: asking again is useless.
    `wants_key`: 401, the engine lives and the key that was sent, or none, is not its own.

    `where`: what was asked, where the host had to find that out. Of rigbook's own engine:
    `wants_key`, `late` (nothing came in time), `made` (tokens for others meanwhile).
    """

    answered: bool
    detail: str
    final: bool
    model: str
    where: str = ""
    wants_key: bool = False
    late: bool = False
    made: float | None = None


# A host's library folder, as `node library look` and `library check` report it.


class Elf(Frozen):
    """What a shared library says of itself: class, machine, exported names, NEEDED libraries."""

    bits: int
    machine: str
    shared: bool
    soname: str
    exported: tuple[str, ...]
    needed: tuple[str, ...]


class HostElf(Frozen):
    """Class and machine of the host's own programs."""

    bits: int
    machine: str


class LibraryFile(Frozen):
    """One entry of the folder; `broken` says why `elf` is null."""

    path: str
    kind: str
    size: int
    inode: int
    mode: str
    uid: int
    gid: int
    owner: str
    group: str
    sha256: str | None
    elf: Elf | None
    broken: str | None


class Mapper(Frozen):
    """A process that has a library mapped: which bytes, and (bind mount) from which file."""

    pid: int
    start_ticks: int
    uid: int | None
    argv0: str
    container: str | None
    pod: str | None
    path: str
    inode: int
    deleted: bool
    sha256: str | None
    source: str | None


class Plugin(Frozen):
    """A container of a DaemonSet that mounts the library folder from the host."""

    namespace: str
    name: str
    container: str
    image: str
    args: tuple[str, ...]
    mounts: tuple[str, ...]


class PodName(Frozen):
    """A pod of the cluster, and who owns it."""

    namespace: str
    name: str
    phase: str
    owner_kind: str
    owner: str


class Swapped(Frozen):
    """/etc/rigbook/library.json: the file that was swapped and the hashes that are known."""

    rig: str
    node: str
    target: str
    original: str
    ours: str
    guard: bool
    reapply: bool


class LibraryLook(Frozen):
    """The folder, the processes, the plugin; null where the cluster was not asked."""

    folder: str
    host: HostElf
    files: tuple[LibraryFile, ...] | Unreadable
    preload: dict[str, str | Unreadable | None]
    mappers: tuple[Mapper, ...] | Unreadable
    plugins: tuple[Plugin, ...] | Unreadable | None
    pods: dict[str, PodName] | Unreadable | None
    state: Swapped | Unreadable | None


class Candidate(Frozen):
    """A library that is to be put in place: its tables, and whether a process there loads it."""

    sha256: str
    size: int
    elf: Elf | None
    broken: str | None
    missing: tuple[str, ...]
    refused: str | None


class Mapped(Frozen):
    """What a fresh process on the host has mapped; null when it maps no such file."""

    path: str
    inode: int | None
    sha256: str | None
    said: str


# A rig of one Kubernetes node with a shared GPU: what its inventory and group_data hold.
#
# Its engine is a Deployment that somebody else's chart made; rigbook changes single values of it,
# and the library that the GPU's sharing preloads (HAMi, as on the Olares One).

# How deploys tell a Kubernetes rig from the others: only its hosts have this key.
MARK = "deployment"
# The profile of a chart's engine, which has one way to run.
CHART = "chart"
# Keys that mean the same on every rig.
_OF_THE_HOST = (
    "rig", "lan_address", "ssh_user", "waive", "reason", "json", "change", "overwrite", "despite",
    "kernel", "candidate", "budget", "driver_module",
)  # fmt: skip
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_FOLDER = re.compile(r"/[A-Za-z0-9._/+-]*\Z")


def dns_label(value: str) -> str:
    """A namespace or a container: lower-case letters, digits and `-` (RFC 1123 label)."""
    if not _LABEL.match(value):
        raise ValueError("is not a Kubernetes name; allowed: lower-case letters, digits and -")
    return value


def dns_name(value: str) -> str:
    """A Deployment: lower-case letters, digits, `-` and `.` (RFC 1123 subdomain)."""
    if not _NAME.match(value):
        raise ValueError("is not a Kubernetes name; allowed: lower-case letters, digits, - and .")
    return value


def plain_folder(value: str) -> str:
    """An absolute path that LD_PRELOAD can take: no blank, no colon."""
    if not _FOLDER.match(value) or ".." in value.split("/") or "//" in value or value == "/":
        raise ValueError("is not a plain absolute path; allowed: letters, digits and . _ / + -")
    return value.rstrip("/")


Label = Annotated[str, AfterValidator(dns_label)]
DnsName = Annotated[str, AfterValidator(dns_name)]
Folder = Annotated[str, AfterValidator(plain_folder)]


class ClusterData(HostKeys):
    """What every runbook takes on a Kubernetes rig, which is one host.

    `models`: the model files on the host, target and drafter, each with the format that its loader
    reads. `model`: the name that the engine serves; one of `url`, `service` and `port` says how it
    is asked (with the key in `key_file`): at a URL that the host reaches, at its Service's own
    address (on `port` where it has several), or by the pod's own Python.
    """

    rigs: ClassVar[str] = " on a Kubernetes rig"

    namespace: Label = key(..., "the Deployment's namespace")
    deployment: DnsName = key(..., "the Deployment of the engine")
    container: Label | None = key(None, "the container in its pod; none: the only one")
    kubectl: Literal["auto", "kubectl", "k3s kubectl"] = key(
        "auto", "the program on the host; auto tries both"
    )
    kubeconfig: AbsolutePath | None = key(None, "kubectl's --kubeconfig, a file on the host")
    vgpu_dir: Folder = key("/usr/local/vgpu", "where the library of the GPU's sharing lies")
    models: dict[AbsolutePath, Literal["gguf", "safetensors"]] = key(
        {}, "model files on the host, each with the format that its loader reads"
    )
    model: Argument | None = key(None, "the name that the engine serves; with url, service or port")
    url: Url | None = key(None, "where the host reaches the engine")
    service: DnsName | None = key(None, "the engine's Service")
    port: int | None = key(
        None, "TCP port of the Service; without service the pod itself is asked", ge=1, le=65535
    )
    key_file: AbsolutePath | None = key(
        None, "a file on the host that holds the engine's API key and is root's alone"
    )
    reasoning: bool = key(False, "an answer must hold its reasoning")
    start_budget_s: int = key(
        600, "how long a start may take, kernels compiled included", "seconds", ge=10, le=7200
    )
    deadline: int | None = key(
        None, "the same for this run alone; none: start_budget_s", "seconds", ge=10, le=7200
    )
    needs_nvidia: bool = key(True, "the host must have a driver that sees a GPU")

    def conflict(self) -> tuple[str, str] | None:
        asked = self.url or self.service or self.port
        if (asked is None) != (self.model is None):
            return "model", (
                "model: belongs to url, service or port; allowed: one of them with model, or none"
            )
        if self.url and (self.service or self.port):
            return "url", "url: and service or port; allowed: one of them"
        return super().conflict()

    @property
    def patience_s(self) -> int:
        """Seconds until a started pod must run and answer."""
        return self.deadline or self.start_budget_s


def is_cluster(data: Mapping[str, object]) -> bool:
    """Whether a host's data are those of a Kubernetes rig."""
    return MARK in data


def host_part(data: Mapping[str, object]) -> dict[str, object]:
    """What a Kubernetes rig's data say of its host, in the words of the other rigs' data.

    For the runbooks of every rig (doctor, kernel): its engine is called as the Deployment is.
    """
    shared = {key: data[key] for key in (*_OF_THE_HOST, *PYINFRA_KEYS) if key in data}
    return {"role": "head", "recipe": data[MARK], **shared}


def cluster_recipe(data: ClusterData) -> Recipe:
    """What is expected of a Deployment's engine.

    Not validated: a chart's engine has no weights, flags or profiles of ours, and no gate of a
    Deployment asks for them (gates/gate_sets.py).
    """
    model = data.model or data.deployment
    expect = Expect(
        start_budget_s=data.patience_s, reasoning=data.reasoning, needs_nvidia=data.needs_nvidia
    )
    fields: dict[str, Any] = {
        "name": data.deployment,
        "model": model,
        "description": f"Deployment {data.namespace}/{data.deployment}",
        "vllm_serve": {"model": model, "port": data.port or 8000},
        "default_profile": CHART,
        "expect": expect,
    }
    return Recipe.model_construct(**fields)
