"""A live container as a recipe's `container`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from schema.adoption.live import LiveNode
from schema.core.strings import mount_path
from schema.observed.former import FormerContainer

_GIB, _MIB = 1 << 30, 1 << 20
# what --privileged gives anyway
_PRIVILEGED = ("--cap-add", "--device", "--security-opt")


def container(nodes: Sequence[LiveNode]) -> tuple[dict[str, Any], list[str]]:
    """The `container` section of the head's container, and what a person has to decide."""
    boxes = [(node, node.container) for node in nodes if node.container is not None]
    head = boxes[0][1]
    image, notes = _image(boxes)
    found: dict[str, Any] = {"image": image}
    if head.runtime not in ("", "runc", "io.containerd.runc.v2"):
        found["runtime"] = head.runtime
    if head.gpus:
        found["gpus"] = "all"
    if head.network_mode == "pod":
        notes.append(
            "it was in its pod's network; rigbook's is on the host's: a Service or an Ingress that "
            "led to it leads nowhere, and clients need the host's address"
        )
    elif head.network_mode != "host":
        notes.append(
            f"it was on the network {head.network_mode}; rigbook's is on the host's: no port is "
            "mapped, and other containers reach it by the host's address"
        )
    found["ipc"] = "host" if head.ipc_mode == "host" else "private"
    if head.ipc_mode.startswith("container:"):
        notes.append(f"its IPC was shared with another container ({head.ipc_mode})")
    if head.privileged:
        found["privileged"] = True
    if head.shm_bytes:
        found["shm_size"] = _size(head.shm_bytes)
    for option in head.other_options:
        if not (head.privileged and option.startswith(_PRIVILEGED)):
            notes.append(f"{option} has no key here: it is not set on rigbook's container")
    found["jit_caches"] = False
    found["volumes"] = list(_volumes(head, notes))
    for node, box in boxes:
        if box.changed:
            notes.append(
                f"files in {box.name} on {node.name} were put there or changed by hand, and ours "
                f"starts without: {', '.join(box.changed)}; bring a patch into the image "
                "by hand, mount what is data; a launch script is not needed"
            )
    return found, notes


def _image(boxes: Sequence[tuple[LiveNode, FormerContainer]]) -> tuple[str, list[str]]:
    """The image by digest, else by a name that leads to it, else by id."""
    head = boxes[0][1]
    repository = head.image.partition("@")[0].rpartition(":")[0] or head.image
    digests = sorted(head.digests, key=lambda name: not name.startswith(f"{repository}@"))
    shared = [d for d in digests if all(d in box.digests for _, box in boxes)]
    if boxes[0][0].engine.inside_of == "pod":
        reference = shared[0] if shared else head.image
        return reference, [
            f"{head.image} is in the cluster's store, and docker starts ours: docker pull "
            f"{shlex.quote(reference)}; or sudo ctr -n k8s.io images export - "
            f"{shlex.quote(head.image)} | sudo docker load, and that name here (k3s: k3s ctr)"
        ]
    if shared:
        return shared[0], []
    notes = []
    if len({box.image_id for _, box in boxes}) > 1:
        told = ", ".join(f"{node.name} {box.image_id[:19]}" for node, box in boxes)
        notes.append(
            f"the nodes' images differ ({told}): the head's stands here; serve asks for one image "
            "on all (deploys/image.py brings it)"
        )
    named = [head.image, *head.tags] if head.image in head.tags else list(head.tags)
    if digests and not notes:
        return digests[0], notes
    if named:
        notes.append(
            f"{named[0]} has no digest of a registry: it was built or loaded here, and the tag may "
            "be moved; keep the image"
        )
        return named[0], notes
    short = head.image_id[:19]
    notes.append(
        f"no name leads to {short} any more ({head.image} is another image, or none): give it one, "
        f"docker tag {shlex.quote(short)} adopted/NAME:1, and put that here"
    )
    return head.image, notes


def _volumes(box: FormerContainer, notes: list[str]) -> Iterator[dict[str, Any]]:
    for mount in box.mounts:
        try:
            mount_path(mount.source), mount_path(mount.target)
        except ValueError:
            notes.append(f"the mount {mount.source or 'tmpfs'} at {mount.target} has no place here")
            continue
        row: dict[str, Any] = {"source": mount.source, "target": mount.target}
        yield {**row, "read_only": True} if mount.read_only else row


def _size(size: int) -> str:
    """Bytes as docker's --shm-size takes them."""
    for unit, letter in ((_GIB, "g"), (_MIB, "m"), (1024, "k")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size // 1024 + 1}k"
