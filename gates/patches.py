"""Gates of the patches that a recipe needs inside its image."""

from __future__ import annotations

from collections.abc import Iterator

from gates.base import known, per_node
from gates.codes import violation
from gates.violation import Violation
from schema.engine import Plan
from schema.recipe import Patch
from schema.rig import Node
from schema.snapshot import Docker, ImageFileMatch, NodeSnapshot, Unreadable


@per_node
def patches_applied(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each required patch stands in the image once: without it a firmware hang (C4), applied
    twice an UnboundLocalError (C15). An image that is not there is `image-missing`'s finding.
    """
    required = [patch for patch in plan.recipe.patches if patch.required]
    here = isinstance(snapshot.docker, Unreadable) or _has_image(snapshot.docker)
    if not required or not here:
        return
    answers = {(a.path, a.contains): a.matches for a in known(snapshot.image_files, "image_files")}
    for patch in required:
        yield from _one(plan, node, patch, answers.get((patch.path, patch.contains), ()))


def _has_image(docker: Docker) -> bool:
    return bool(docker.images)


def _one(
    plan: Plan, node: Node, patch: Patch, matches: tuple[ImageFileMatch, ...]
) -> Iterator[Violation]:
    """The finding about one patch; exactly one file with exactly `count` occurrences is right."""
    right = len(matches) == 1 and matches[0].count == patch.count
    if right:
        return
    image = plan.recipe.container.image
    found = ", ".join(f"{match.path}: {match.count}" for match in matches) or "no such file"
    doubled = any(match.count > patch.count for match in matches)
    yield violation(
        "patch-doubled" if doubled else "patch-missing",
        node.name,
        f"patch {patch.id} {'was applied more than once' if doubled else 'is not in the image'}: "
        f"{patch.reason}",
        evidence=f"{image}: {patch.contains!r} in {found}; right: {patch.count} in one file",
        remedy=f"take the known-good image on {node.name}: sudo docker pull (or docker load) "
        f"the build that carries {patch.id} exactly once; never re-apply it in a container",
    )


GATES = (patches_applied,)
