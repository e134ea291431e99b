"""A rig of one Kubernetes node with a shared GPU: what its inventory, group_data and --data hold.

Its engine is a Deployment that somebody else's chart made; rigbook changes single values of it,
and the library that the GPU's sharing preloads (HAMi, as on the Olares One).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from node.rules.patterns import SHA256
from schema.core.base import Frozen
from schema.core.errors import SpecError, nearest, shown
from schema.core.kernel_names import module_name, release_name
from schema.core.parse import build, known_keys
from schema.core.strings import env_name, single_line
from schema.core.types import PYINFRA_KEYS, AbsolutePath, Address, Argument, Name, Url, listed
from schema.recipe.recipe import Expect, Recipe

# How deploys tell a Kubernetes rig from the others: only its hosts have this key.
MARK = "deployment"
# The profile of a chart's engine, which has one way to run.
CHART = "chart"
# Keys that mean the same on every rig.
_OF_THE_HOST = (
    "rig", "lan_address", "ssh_user", "waive", "reason", "json", "change", "overwrite", "kernel",
    "candidate", "budget", "driver_module",
)  # fmt: skip
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_SYMBOL = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$@]{0,255}\Z")
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


def sha256_hex(value: str) -> str:
    """A sha256 as sha256sum prints it."""
    if not SHA256.match(value):
        raise ValueError("is not a sha256; allowed: 64 hex digits, as sha256sum prints them")
    return value


def symbol(value: str) -> str:
    """The name of a symbol of a shared library."""
    if not _SYMBOL.match(value):
        raise ValueError("is not a symbol's name; allowed: letters, digits, _ . $ @")
    return value


def plain_folder(value: str) -> str:
    """An absolute path that LD_PRELOAD can take: no blank, no colon."""
    if not _FOLDER.match(value) or ".." in value.split("/") or "//" in value or value == "/":
        raise ValueError("is not a plain absolute path; allowed: letters, digits and . _ / + -")
    return value.rstrip("/")


def variables(value: dict[str, str]) -> dict[str, str]:
    """Environment variables by name: values of one line."""
    for name, text in value.items():
        env_name(name)
        single_line(text)
    if not value:
        raise ValueError('is empty; allowed: such as \'{"NAME": "value"}\'')
    return value


def limit_text(value: object) -> object:
    """A limit as it was typed: `--data limit=-1` arrives as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Label = Annotated[str, AfterValidator(dns_label)]
DnsName = Annotated[str, AfterValidator(dns_name)]
Sha256 = Annotated[str, AfterValidator(sha256_hex)]
Symbol = Annotated[str, AfterValidator(symbol)]
Folder = Annotated[str, AfterValidator(plain_folder)]
Variables = Annotated[dict[str, str], AfterValidator(variables)]


class ClusterData(Frozen):
    """One host's data. `kubectl` auto: kubectl, else `k3s kubectl`. `container` None: the
    Deployment has one. `models`: the model files on the host, target and drafter, each with the
    format that its loader reads. `model`: the name that the engine serves; one of `url` (where the
    host reaches it), `service` (its own address, on `port` where it has several) and `port` alone
    (the pod's own Python asks there) says how. `start_budget_s`: how long a start may take, kernels
    compiled included. The rest are keys for `--data`.

    libvgpu: `library` (a file here) and its `sha256`, `target` (which file of `vgpu_dir` the
    plugin mounts, where that cannot be told), `without` (exported names that may be missing),
    `restart_pods`, `guard`, `reapply`, `webhook` or `webhook_file` as for watch, `remove`.
    gpu_limit: `limit` (`24000m`), `wanted` (bytes, of the OOM line; None: read from the log),
    `reserve_mib` kept free, `device` (None: all), `hardware_mib` (None: the driver is asked),
    `set` (other variables). `deadline`: seconds in place of start_budget_s, for this run.
    kernel: `kernel`, `candidate`, `driver_module`; kernel and reboot: `budget`, as on other rigs.
    `needs_nvidia`: whether the host must have a driver that sees a GPU.
    """

    lan_address: Address
    ssh_user: Name
    rig: Name
    kubectl: Literal["auto", "kubectl", "k3s kubectl"] = "auto"
    kubeconfig: AbsolutePath | None = None
    namespace: Label
    deployment: DnsName
    container: Label | None = None
    vgpu_dir: Folder = "/usr/local/vgpu"
    models: dict[AbsolutePath, Literal["gguf", "safetensors"]] = Field(default_factory=dict)
    waive: Annotated[tuple[Name, ...], BeforeValidator(listed)] = ()
    reason: Argument | None = None
    as_json: bool = Field(default=False, alias="json")
    url: Url | None = None
    service: DnsName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    model: Argument | None = None
    start_budget_s: Annotated[int, Field(ge=10, le=7200)] = 600
    reasoning: bool = False
    change: Name | None = None
    overwrite: Annotated[tuple[AbsolutePath, ...], BeforeValidator(listed)] = ()
    library: Argument | None = None
    sha256: Sha256 | None = None
    target: Folder | None = None
    without: Annotated[tuple[Symbol, ...], BeforeValidator(listed)] = ()
    restart_pods: bool = False
    guard: bool = False
    reapply: bool = False
    webhook: Annotated[Url | None, Field(repr=False)] = None
    webhook_file: AbsolutePath | None = None
    remove: bool = False
    limit: Annotated[str | None, BeforeValidator(limit_text)] = None
    wanted: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    reserve_mib: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    device: Annotated[int, Field(ge=0, le=63)] | None = None
    hardware_mib: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    set: Variables | None = None
    deadline: Annotated[int, Field(ge=10, le=7200)] | None = None
    needs_nvidia: bool = True
    kernel: Annotated[str, AfterValidator(release_name)] | None = None
    candidate: Annotated[str, AfterValidator(release_name)] | None = None
    budget: Annotated[int, Field(ge=30, le=86400)] = 1800
    driver_module: Annotated[str, AfterValidator(module_name)] | None = None

    @property
    def patience_s(self) -> int:
        """Seconds until a started pod must run and answer."""
        return self.deadline or self.start_budget_s


def is_cluster(data: Mapping[str, object]) -> bool:
    """Whether a host's data are those of a Kubernetes rig."""
    return MARK in data


def cluster_data(name: str, data: Mapping[str, object], sources: Mapping[str, str]) -> ClusterData:
    """The checked data of host `name`; SpecError has a line for each problem."""

    def where(key: str) -> str:
        return f"{sources.get(key, 'inventory or group_data')}: host {name}"

    ours = known_keys(ClusterData)
    strays = [
        f"{where(key)}: unknown key {shown(key)}{nearest(key, [*ours, *PYINFRA_KEYS])}; "
        f"allowed on a Kubernetes rig: {', '.join(sorted(ours))}, and pyinfra's ssh_ keys"
        for key in data
        if key not in ours and key not in PYINFRA_KEYS
    ]
    try:
        checked = build(ClusterData, {key: data[key] for key in ours if key in data}, where)
    except SpecError as error:
        raise SpecError(*strays, *error.problems) from None
    if strays:
        raise SpecError(*strays)
    if checked.waive and not checked.reason:
        raise SpecError(
            f"{where('waive')}: waive: needs a reason; allowed: --data waive=CODE "
            '--data reason="why this is safe now"'
        )
    if checked.webhook and checked.webhook_file:
        raise SpecError(f"{where('webhook')}: webhook: and webhook_file; allowed: one of them")
    asked = checked.url or checked.service or checked.port
    if (asked is None) != (checked.model is None):
        raise SpecError(
            f"{where('model')}: model: belongs to url, service or port; allowed: one of them with "
            "model, or none"
        )
    if checked.url and (checked.service or checked.port):
        raise SpecError(f"{where('url')}: url: and service or port; allowed: one of them")
    if checked.reapply and not checked.guard:
        raise SpecError(f"{where('reapply')}: reapply: without guard; allowed: with guard=true")
    return checked


def host_part(data: Mapping[str, object]) -> dict[str, object]:
    """What a Kubernetes rig's data say of its host, in the words of the other rigs' data.

    For the runbooks of the host (kernel, reboot): its engine is called as the Deployment is.
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
