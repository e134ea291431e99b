"""The container and the environment that a neighbour's launcher gives the engine.

Sources: launch-cluster.sh of eugr/spark-vllm-docker; orchestration/primitives.py, runtimes/base.py,
_util.py, vllm_distributed.py and RECIPES.md (Executor Config) of spark-arena/sparkrun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from node.rules.secret import holds_secret
from schema.core.errors import SpecError, shown
from schema.importing.neighbour import Launcher, section
from schema.importing.result import Imported

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
