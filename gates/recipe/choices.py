"""Gates of what the recipe asks for: forbidden variables, and choices that deserve a warning."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gates.artifact.image import full_name, image_name
from gates.core.check import Observed, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.recipe import ForbiddenEnv


def forbidden(plan: Plan, environ: Mapping[str, str]) -> list[ForbiddenEnv]:
    """The recipe's forbidden variables that this environment sets."""
    return [
        rule
        for rule in plan.recipe.forbidden_env
        if rule.name in environ and rule.value in (None, environ[rule.name])
    ]


def forbidden_rendered(plan: Plan, observed: Observed) -> list[Violation]:
    """The recipe may not render a variable that it forbids (C14: `fork`, two evenings lost)."""
    found = []
    for node in plan.rig.nodes:
        environ = plan.specs[node.name].environ
        for rule in forbidden(plan, environ):
            found.append(
                violation(
                    "forbidden-env",
                    node.name,
                    f"the recipe sets {rule.name}={environ[rule.name]} for {node.name}, which "
                    "it forbids",
                    evidence=f"forbidden because: {rule.reason}",
                    remedy=f"take {rule.name} out of env in "
                    f"catalog/recipes/{plan.recipe.name}.yaml",
                )
            )
    return found


@per_node
def forbidden_live(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The live engine's environment, too (C14). A warning: serve's restart is what mends it."""
    live: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for process in require(snapshot.engine_processes, "engine_processes"):
        for rule in forbidden(plan, process.environ):
            live[rule.name, process.environ[rule.name], rule.reason].append(process.pid)
    for (name, value, reason), pids in live.items():
        listed = ", ".join(map(str, pids))
        yield violation(
            "forbidden-env",
            node.name,
            f"the engine of {node.name} runs with {name}={value}, which the recipe forbids",
            evidence=f"in the environment of pid {listed}; forbidden because: {reason}",
            remedy=deploy_command(plan, "serve"),
            severity="warn",
        )


def enforce_eager(plan: Plan, observed: Observed) -> list[Violation]:
    """--enforce-eager is no mend for a CUDA graph crash: decode 44 → 25 t/s (C3).

    A CPU engine has no CUDA graphs to lose.
    """
    flags = plan.specs[plan.rig.head.name].flags
    if not plan.recipe.expect.needs_nvidia or flags.get("enforce_eager") is not True:
        return []
    return [
        violation(
            "enforce-eager",
            None,
            "enforce_eager turns CUDA graphs off and about halves decode",
            evidence=f"recipe {plan.recipe.name}, profile {plan.profile}: enforce_eager true",
            remedy=f"take enforce_eager out of catalog/recipes/{plan.recipe.name}.yaml",
        )
    ]


def image_latest(plan: Plan, observed: Observed) -> list[Violation]:
    """A `:latest` names another build after the next pull; a digest does not."""
    image = image_name(plan)
    if image is None or "@" in image or not full_name(image).endswith(":latest"):
        return []
    return [
        violation(
            "image-latest",
            None,
            "the recipe's image is a :latest, which may become another build at any pull",
            evidence=f"container.image: {image}",
            remedy="write the digest that this prints into container.image: sudo docker image "
            f"inspect --format '{{{{.RepoDigests}}}}' {shlex.quote(image)}",
        )
    ]


def privileged(plan: Plan, observed: Observed) -> list[Violation]:
    """A privileged container is root on the host; the seeds' recipe asks for it."""
    if plan.recipe.container is None or not plan.recipe.container.privileged:
        return []
    return [
        violation(
            "privileged",
            None,
            "the engine's container runs privileged",
            evidence=f"recipe {plan.recipe.name}: container.privileged true",
            remedy="without RDMA, try container.privileged: false with container.gpus: all in "
            f"catalog/recipes/{plan.recipe.name}.yaml",
        )
    ]


GATES = (
    forbidden_rendered,
    forbidden_live,
    enforce_eager,
    image_latest,
    privileged,
)
