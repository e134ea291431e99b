"""The gate before a deploy that starts what is installed, and does not write it."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.render.engine_files import NODE_PATH
from schema.render.installed import endpoint_in
from schema.render.node_json import endpoint


@per_node
def as_installed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What is installed answers where and as the plan says, or the proof would ask another model.

    After `serve --data recipe=X` a plain restart starts X and would ask for the inventory's recipe.
    """
    if node.role != "head":
        return
    texts = {file.path: file.content for file in require(snapshot.files, "files")}
    installed = endpoint_in(texts.get(NODE_PATH) or "")
    wanted = endpoint(plan.rig, plan.recipe)
    # Where nothing of ours is installed, other gates say so.
    if installed is None or (installed.url, installed.model) == (wanted["url"], wanted["model"]):
        return
    yield violation(
        "other-recipe",
        node.name,
        f"{node.name} is set up to serve {installed.model}, not {wanted['model']} "
        f"(recipe {plan.recipe.name})",
        evidence=f"{NODE_PATH}: {installed.model} at {installed.url}; this run would ask "
        f"{wanted['model']} at {wanted['url']}",
        remedy=f"name what was served: --data recipe=NAME; or {deploy_command(plan, 'serve')}",
    )


GATES = (as_installed,)
