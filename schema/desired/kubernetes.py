"""A rig of one Kubernetes node with a shared GPU: what its inventory and group_data hold.

Its engine is a Deployment that somebody else's chart made; rigbook changes single values of it,
and the library that the GPU's sharing preloads (HAMi, as on the Olares One).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from schema.core.host_keys import HostKeys, key
from schema.core.types import PYINFRA_KEYS, AbsolutePath, Argument, Url
from schema.recipe.recipe import Expect, Recipe

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
