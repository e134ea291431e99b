"""Gates of the patches that a recipe needs inside its image."""

from __future__ import annotations

from collections.abc import Iterator

from gates.artifact.build import is_needed, is_there
from gates.artifact.image import image_name
from gates.artifact.venv import back
from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import ImageFileMatch
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.recipe import Patch


@per_node
def patches_applied(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each required patch that the build needs stands in the image (or venv) once: without it a
    firmware hang (C4), applied twice an UnboundLocalError (C15). An image that is not there is
    `image-missing`'s finding, a venv `venv-missing`'s.
    """
    required = [patch for patch in plan.recipe.patches if patch.required]
    if not required or not is_there(plan, node, snapshot):
        return
    answers = {
        (a.path, a.contains): a.matches for a in require(snapshot.image_files, "image_files")
    }
    for patch in (p for p in required if is_needed(p, plan, node, snapshot)):
        yield from _one(plan, node, patch, answers.get((patch.path, patch.contains), ()))


def _one(
    plan: Plan, node: Node, patch: Patch, matches: tuple[ImageFileMatch, ...]
) -> Iterator[Violation]:
    """The finding about one patch; exactly one file with exactly `count` occurrences is right."""
    right = len(matches) == 1 and matches[0].count == patch.count
    if right:
        return
    image = image_name(plan)
    where = image or plan.specs[node.name].venv
    found = ", ".join(f"{match.path}: {match.count}" for match in matches) or "no such file"
    kind = "image" if image else "venv"
    doubled = any(match.count > patch.count for match in matches)
    yield violation(
        "patch-doubled" if doubled else "patch-missing",
        node.name,
        f"patch {patch.id} {'was applied more than once' if doubled else f'is not in the {kind}'}: "
        f"{patch.reason}",
        evidence=f"{where}: {patch.contains!r} in {found}; right: {patch.count} in one file",
        remedy=back(plan, node)
        if image is None
        else f"take the known-good image on {node.name}: sudo docker pull (or docker load) "
        f"the build that carries {patch.id} exactly once; never re-apply it in a container",
    )


GATES = (patches_applied,)
