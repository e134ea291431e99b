"""Gates of the engine's image: there, for this processor, the same content on every node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core.check import Observed, answering_nodes, collect, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from node.rules.image_names import repository
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import Docker, Image
from schema.observed.snapshot import NodeSnapshot, Unreadable

# Names that Go (docker) and the kernel (uname -m) give to one architecture.
KERNEL_ARCH = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "riscv64": "riscv64"}


def image_name(plan: Plan) -> str | None:
    """The image that the recipe runs; None for an engine in a venv."""
    return plan.recipe.container.image if plan.recipe.container else None


def full_name(reference: str) -> str:
    """An image reference as docker lists it: short, with its tag or its digest."""
    short = reference
    for prefix in ("docker.io/library/", "docker.io/"):
        short = short.removeprefix(prefix)
    if "@" in short:
        return f"{repository(short)}@{short.partition('@')[2]}"
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"


def image_of(docker: Docker, reference: str) -> Image | None:
    """The image that the reference names on this host, or None."""
    wanted = full_name(reference)
    for image in docker.images:
        if image.id == reference or wanted in map(full_name, (*image.tags, *image.digests)):
            return image
    return None


def same_content(one: Image, other: Image) -> bool:
    """One RepoDigest in common, or equal layers and config.

    `.Id` says nothing: it differs between overlay2 and containerd stores (GLM-5.3-EXL3-2x#8). A
    digest of another registry may differ for equal content, so layers decide then, too.
    """
    digests = {digest.split("@")[-1] for digest in one.digests}
    if digests & {digest.split("@")[-1] for digest in other.digests}:
        return True
    return one.layers == other.layers and one.config_sha256 == other.config_sha256


def identity_of(image: Image) -> str:
    """What an image is compared by, short enough for a line."""
    digests = ", ".join(digest.split("@")[-1][:19] for digest in image.digests)
    top = image.layers[-1][:19] if image.layers else "none"
    return (
        f"digest {digests or 'none'}, {len(image.layers)} layers (top {top}), "
        f"config {image.config_sha256[:12]}"
    )


def move_image(plan: Plan, observed: Observed, target: Node) -> str:
    """The line that brings the image to `target`: from a node that has it, else by a pull."""
    reference = image_name(plan) or ""
    for node, snapshot in answering_nodes(plan, observed):
        if node.name == target.name or isinstance(snapshot.docker, Unreadable):
            continue
        if image_of(snapshot.docker, reference) is not None:
            return deploy_command(plan, "image", f"from={node.name}")
    return f"{deploy_command(plan, 'image')} (pulls {reference} once, then moves it)"


def _images(
    plan: Plan, observed: Observed
) -> tuple[list[tuple[Node, Image | None]], list[Violation]]:
    """The recipe's image on each node (a venv has none), and the nodes whose docker is unknown."""
    reference = image_name(plan)
    if reference is None:
        return [], []
    return collect(plan, observed, lambda _, s: image_of(require(s.docker, "docker"), reference))


def image_present(plan: Plan, observed: Observed) -> list[Violation]:
    """The image is on every node before anything changes: a pull takes minutes and may fail."""
    images, found = _images(plan, observed)
    for node, image in images:
        if image is None:
            found.append(
                violation(
                    "image-missing",
                    node.name,
                    f"the image {image_name(plan)} is not on {node.name}",
                    evidence="; ".join(
                        f"{n.name}: {identity_of(i) if i else 'absent'}" for n, i in images
                    ),
                    remedy=move_image(plan, observed, node),
                )
            )
    return found


def image_equal(plan: Plan, observed: Observed) -> list[Violation]:
    """Every node runs the same bytes: one tag may name two builds (faults.md 41)."""
    images, found = _images(plan, observed)
    present = [(node, image) for node, image in images if image is not None]
    for node, image in present[1:]:
        first, its_image = present[0]
        if not same_content(its_image, image):
            found.append(
                violation(
                    "image-differs",
                    node.name,
                    f"{image_name(plan)} is another build on {node.name} than on {first.name}",
                    evidence="; ".join(f"{n.name}: {identity_of(i)}" for n, i in present),
                    remedy=move_image(plan, observed, node),
                )
            )
    return found


@per_node
def image_arch(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The image is built for the host's processor; else it ends with "exec format error"."""
    reference = image_name(plan)
    if reference is None:
        return
    image = image_of(require(snapshot.docker, "docker"), reference)
    arch = snapshot.identity.arch
    if image is not None and KERNEL_ARCH.get(image.arch, image.arch) != arch:
        yield violation(
            "image-arch",
            node.name,
            f"the image is for {image.arch}, {node.name} is {arch}",
            evidence=f"{reference}: {image.arch}; uname -m: {arch}",
            remedy=f"name an image for {shlex.quote(arch)} in "
            f"catalog/recipes/{plan.recipe.name}.yaml, container.image",
        )


GATES = (image_present, image_equal, image_arch)
