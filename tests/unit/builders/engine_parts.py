"""Parts of a snapshot that belong to an engine: its container, image, weights and files."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from gates.core import GIB
from node.rules.secret import MASK, SECRETS_PATH, WATCHED
from schema.artifact import LIBRARIES, VLLM_INFO
from schema.plan import CONTAINER, Document, Node, Plan, jit_caches_kept
from schema.recipe import ContainerSpec
from schema.render_engine import SCRIPT_IN_CONTAINER, SCRIPT_PATH
from schema.snapshot import (
    Container,
    FileState,
    Image,
    ImageFile,
    ImageFileMatch,
    Mount,
    Weights,
    WeightsFile,
)
from tests.unit.builders.host_parts import OUR_PROCESSES
from tests.unit.builders.recorded import recorded

FOREIGN = str(recorded("foreign_container")["id"])
IMAGE_ID = "sha256:" + "a" * 64
# A safetensors file: a header of 108,208 bytes, then its JSON.
SAFETENSORS = ((108_208).to_bytes(8, "little") + b'{"__meta').hex()
GGUF = (b"GGUF" + (3).to_bytes(4, "little") + bytes(8)).hex()
LFS_POINTER = b"version https://".hex()


def _box(plan: Plan) -> ContainerSpec:
    """The recipe's container."""
    assert plan.recipe.container is not None
    return plan.recipe.container


def container(plan: Plan, node: Node) -> Container:
    """The container that our unit runs for the plan."""
    spec, box = plan.specs[node.name], _box(plan)
    mounts = [*spec.volumes, (SCRIPT_PATH, SCRIPT_IN_CONTAINER, True)]
    return Container(
        id=OUR_PROCESSES,
        name=CONTAINER,
        image=box.image,
        image_id=IMAGE_ID,
        state="running",
        exit_code=0,
        pid=901,
        argv=("/bin/bash", SCRIPT_IN_CONTAINER),
        environ={**spec.environ, **told_secrets(plan, node)},
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
    return Container(**recorded("foreign_container", **changes))


def image(plan: Plan) -> Image:
    """The recipe's image."""
    repository = _box(plan).image.rsplit(":", 1)[0]
    return Image(
        id=IMAGE_ID,
        tags=(_box(plan).image,),
        digests=(f"{repository}@sha256:" + "d" * 64,),
        layers=("sha256:" + "1" * 64, "sha256:" + "2" * 64),
        config_sha256="e" * 64,
        arch="arm64",
        size=20 * GIB,
    )


def image_files(plan: Plan, version: str = "0.22.1") -> tuple[ImageFile, ...]:
    """The answers of an image with this vLLM, with the recipe's patches and modules."""
    folder = LIBRARIES[0].replace("*", ".12")
    counts = {(patch.path, patch.contains): patch.count for patch in plan.recipe.patches}
    names = {name for module in plan.recipe.modules for name in module.files}
    found = []
    for probe in plan.requests[plan.rig.head.name].image_files:
        path, count = probe.path.replace("*", ".12"), counts.get((probe.path, probe.contains), 0)
        if probe.path == f"{LIBRARIES[0]}/{VLLM_INFO}":
            path, count = f"{folder}/vllm-{version}.dist-info/METADATA", 1
        elif probe.path.removeprefix(f"{LIBRARIES[0]}/") in names:
            count = 1
        there = (ImageFileMatch(path=path, sha256="c" * 64, count=count),) if count else ()
        found.append(ImageFile(**probe.model_dump(), matches=there))
    return tuple(found)


def in_image(path: str, contains: str = "", count: int = 1, at: str = "") -> ImageFile:
    """An image's answer about a path below its library folder, where `at` is the file found."""
    place = f"{LIBRARIES[0].replace('*', '.12')}/{at or path}"
    match = ImageFileMatch(path=place, sha256="c" * 64, count=count)
    return ImageFile(
        image="any", path=f"{LIBRARIES[0]}/{path}", contains=contains, matches=(match,)
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
    nothing = dict.fromkeys(("sha256", "size", "mode", "uid", "gid", "content"))
    return FileState(path=path, kind="absent", **nothing)


def warm_caches(plan: Plan, node: Node) -> tuple[FileState, ...]:
    """The folders of compiled kernels, as an earlier start has left them."""
    spec = plan.specs[node.name]
    paths = (*spec.jit_folders, *jit_caches_kept(spec).values())
    there = {"kind": "directory", "size": 3, "mode": "0755", "uid": 0, "gid": 0}
    return tuple(absent_file(path).model_copy(update=there) for path in paths)


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


def told_secrets(plan: Plan, node: Node) -> dict[str, str]:
    """What a host says of the engine's secrets: those that it watches, masked."""
    return {name: MASK for name in plan.specs[node.name].secrets if name.startswith(WATCHED)}


def written_files(plan: Plan, node: Node) -> tuple[FileState, ...]:
    """The engine's files as serve leaves them, the file of its secrets with their names alone."""
    files = [written_file(document) for document in plan.documents[node.name]]
    if names := plan.specs[node.name].secrets:
        text = "#\n" + "".join(f"{name}={MASK}\n" for name in names)
        secret = written_file(Document(SECRETS_PATH, text, "0600"))
        files.append(secret.model_copy(update={"content": text}))
    return (*files, *warm_caches(plan, node))


# Reading rendered files the way bash and systemd read them.

# Stand-in for vllm: writes its own arguments, each ended by NUL, to stdout.
VLLM_DOUBLE = '#!/bin/sh\nprintf \'%s\\0\' "$0" "$@"\n'


def argv_of_script(script: Document, folder: Path) -> list[str]:
    """What `vllm` gets when bash runs the launch script (a double records its arguments)."""
    double = folder / "bin" / "vllm"
    double.parent.mkdir(exist_ok=True)
    double.write_text(VLLM_DOUBLE)
    double.chmod(0o755)
    path = folder / "serve.sh"
    path.write_text(script.content)
    done = subprocess.run(
        ["/bin/bash", str(path)],
        env={"PATH": f"{double.parent}:/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        timeout=10,
        check=True,
    )
    assert done.stderr == b""
    return ["vllm", *done.stdout.decode().split("\0")[1:-1]]


def unit_lines(unit: Document) -> list[tuple[str, str]]:
    """A unit's (key, value) pairs, continuation lines joined and comments dropped."""
    text = re.sub(r"\\\n\s*", "", unit.content)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def exec_start(unit: Document) -> list[str]:
    """ExecStart's arguments as systemd.service(5) reads them: quotes, then `%%` and `$$`."""
    (command,) = [value for key, value in unit_lines(unit) if key == "ExecStart"]
    arguments = shlex.split(command)
    for argument in arguments:
        assert not re.search(r"(?<![%])(%%)*%(?!%)", argument), f"specifier in {argument!r}"
        assert not re.search(r"(?<![$])(\$\$)*\$(?!\$)", argument), f"variable in {argument!r}"
    return [a.replace("%%", "%").replace("$$", "$") for a in arguments]
