"""Parts of a snapshot that belong to an engine: its container, image, weights and files."""

from __future__ import annotations

import hashlib
from typing import Any

from gates.core.check import GIB
from schema.desired.plan import CONTAINER, Document, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container, Image, ImageFile, ImageFileMatch, Mount
from schema.observed.files import FileState, Weights, WeightsFile
from schema.render.engine_files import SCRIPT_IN_CONTAINER, SCRIPT_PATH
from tests.unit.builders.host_parts import OURS

FOREIGN = "badbad" + "1" * 58
IMAGE_ID = "sha256:" + "a" * 64
# A safetensors file: a header of 108,208 bytes, then its JSON.
SAFETENSORS = ((108_208).to_bytes(8, "little") + b'{"__meta').hex()
GGUF = (b"GGUF" + (3).to_bytes(4, "little") + bytes(8)).hex()
LFS_POINTER = b"version https://".hex()


def container(plan: Plan, node: Node) -> Container:
    """The container that our unit runs for the plan."""
    spec, box = plan.specs[node.name], plan.recipe.container
    mounts = [*spec.volumes, (SCRIPT_PATH, SCRIPT_IN_CONTAINER, True)]
    return Container(
        id=OURS,
        name=CONTAINER,
        image=box.image,
        image_id=IMAGE_ID,
        state="running",
        exit_code=0,
        pid=901,
        argv=("/bin/bash", SCRIPT_IN_CONTAINER),
        environ=dict(spec.environ),
        restart_policy="no",
        network_mode="host",
        ipc_mode=box.ipc,
        privileged=box.privileged,
        init=True,
        mounts=tuple(Mount(source=a, target=b, read_only=c) for a, b, c in mounts),
        restarts=0,
        labels={},
    )


def foreign_container(**changes: Any) -> Container:
    """A container of somebody else."""
    values: dict[str, Any] = {
        "id": FOREIGN,
        "name": "vllm_ds4",
        "image": "busybox",
        "image_id": "sha256:" + "b" * 64,
        "state": "running",
        "exit_code": 0,
        "pid": 40,
        "argv": ("sleep", "infinity"),
        "environ": {},
        "restart_policy": "unless-stopped",
        "network_mode": "host",
        "ipc_mode": "host",
        "privileged": True,
        "init": False,
        "mounts": (),
        "restarts": 0,
        "labels": {},
    }
    return Container(**{**values, **changes})


def image(plan: Plan) -> Image:
    """The recipe's image."""
    repository = plan.recipe.container.image.rsplit(":", 1)[0]
    return Image(
        id=IMAGE_ID,
        tags=(plan.recipe.container.image,),
        digests=(f"{repository}@sha256:" + "d" * 64,),
        layers=("sha256:" + "1" * 64, "sha256:" + "2" * 64),
        config_sha256="e" * 64,
        arch="arm64",
        size=20 * GIB,
    )


def patched_files(plan: Plan) -> tuple[ImageFile, ...]:
    """The answers of an image that carries every patch of the recipe as often as it should."""
    return tuple(
        ImageFile(
            image=plan.recipe.container.image,
            path=patch.path,
            contains=patch.contains,
            matches=(
                ImageFileMatch(
                    path=patch.path.replace("*", ".12"), sha256="c" * 64, count=patch.count
                ),
            ),
        )
        for patch in plan.recipe.patches
    )


def weights(plan: Plan, node: Node) -> Weights:
    """All shards, with what stands beside them."""
    count = plan.recipe.weights.shards or 1
    names = [f"model-{n + 1:05d}-of-{count:05d}.safetensors" for n in range(count)]
    files = [WeightsFile(name=n, size=3 * GIB, magic=SAFETENSORS, sha256=None) for n in names]
    config = WeightsFile(name="config.json", size=2000, magic="7b0a" * 8, sha256=None)
    return Weights(
        path=plan.specs[node.name].weights,
        exists=True,
        files=(config, *files),
        missing_shards=(),
    )


def absent_file(path: str) -> FileState:
    """A file that is not there."""
    return FileState(
        path=path,
        kind="absent",
        sha256=None,
        size=None,
        mode=None,
        uid=None,
        gid=None,
        content=None,
    )


def written_file(document: Document) -> FileState:
    """A file as serve writes it; the host keeps the content of a private one."""
    raw = document.content.encode()
    return FileState(
        path=document.path,
        kind="file",
        sha256=hashlib.sha256(raw).hexdigest(),
        size=len(raw),
        mode=document.mode,
        uid=0,
        gid=0,
        content=document.content if document.mode != "0600" else None,
    )
