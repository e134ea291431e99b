"""Gates of the caches of compiled kernels: whose they are, and whether a start finds them cold."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from gates.artifact.image import image_of
from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import is_up
from schema.desired.plan import UNIT, Plan
from schema.desired.rig import Node
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot
from schema.render.jit_caches import IN_CONTAINER, kept

ROOT_USER = ("", "root", "0")


@per_node
def warm(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A cold cache costs minutes in the start, and seconds in requests of a new shape later.

    An engine does not use every library, so the caches of one mount are cold when all of them are.
    """
    if plan.recipe.container is None or is_up(snapshot):
        return
    files = {state.path: state for state in require(snapshot.files, "files")}
    spec = plan.specs[node.name]
    caches = {name: path for name, path in kept(spec).items() if path in files}
    for source, _, _ in spec.volumes:
        here = {n: p for n, p in caches.items() if p == source or p.startswith(f"{source}/")}
        if here and all(_cold(files[path]) for path in here.values()):
            yield _told(plan, node, here)


def _cold(state: FileState) -> bool:
    return state.kind == "absent" or (state.kind == "directory" and state.size == 0)


def _told(plan: Plan, node: Node, cold: Mapping[str, str]) -> Violation:
    budget = plan.recipe.expect.start_budget_s
    names = ", ".join(cold)
    return violation(
        "jit-cache-cold",
        node.name,
        f"{node.name} has no compiled kernels yet ({names}): this start compiles them",
        evidence=f"absent or empty: {', '.join(cold.values())}; the start may take "
        f"start_budget_s: {budget} s",
        remedy=f"nothing, the start fills them; if it outlasts its budget, raise "
        f"expect.start_budget_s in catalog/recipes/{plan.recipe.name}.yaml; to watch it, on "
        f"{node.name}: journalctl -fu {UNIT}",
    )


@per_node
def writable(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """serve makes the folder root's; an image that runs as somebody else cannot write in it."""
    box, folders = plan.recipe.container, plan.specs[node.name].jit_folders
    if box is None or not folders:
        return
    image = image_of(require(snapshot.docker, "docker"), box.image)
    user, _, group = (image.user if image else "").partition(":")
    if user in ROOT_USER:
        return
    states = {state.path: state for state in require(snapshot.files, "files")}
    state = states.get(folders[-1])
    owner = state.uid if state is not None and state.kind == "directory" else None
    if owner is not None and (str(owner) == user or (owner != 0 and not user.isdigit())):
        return
    number = user if user.isdigit() else "UID"
    owners = f"-o {number} -g {group if group.isdigit() else number}"
    made = f"sudo install -d {owners} {shlex.quote(folders[-1])}"
    if not user.isdigit():
        made = (
            f"sudo docker run --rm --entrypoint id {shlex.quote(box.image)} says UID; then {made}"
        )
    now = "absent, and serve makes it root's" if owner is None else f"uid {owner}"
    yield violation(
        "jit-cache-owner",
        node.name,
        f"{box.image} runs as {user}, which cannot write compiled kernels on {node.name}",
        evidence=f"{folders[-1]} ({IN_CONTAINER} in the container): {now}",
        remedy=f"on {node.name}: {made}; or container.jit_caches: false in "
        f"catalog/recipes/{plan.recipe.name}.yaml",
    )


GATES = (writable, warm)
