"""The gate of the modules that the engine imports only when it runs: they are in its build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates.artifact.build import is_needed, is_there
from gates.artifact.image import image_name
from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.artifact import Module
from schema.observed.snapshot import NodeSnapshot


@per_node
def modules_whole(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A build without DeepGEMM starts, loads for minutes, and dies at its first request; one that
    was cloned without its submodules dies in its JIT (C2).
    """
    if not plan.recipe.modules or not is_there(plan, node, snapshot):
        return
    answers = require(snapshot.image_files, "image_files")
    there = [match.path for answer in answers for match in answer.matches]
    for module in plan.recipe.modules:
        missing = missing_files(module, there)
        if missing and is_needed(module, plan, node, snapshot):
            yield not_whole(module, node.name, missing, where(plan, node))


def where(plan: Plan, node: Node) -> str:
    """The build that was looked into: the image, or the venv's folder."""
    return image_name(plan) or str(plan.specs[node.name].venv)


def missing_files(module: Module, there: Sequence[str]) -> tuple[str, ...]:
    """The module's files that are not there, in the library folder that has most of them."""
    libraries = {
        path.removesuffix(f"/{name}") for path in there for name in module.files
        if path.endswith(f"/{name}")
    }  # fmt: skip
    rows = [tuple(n for n in module.files if f"{lib}/{n}" not in there) for lib in libraries]
    return min(rows, key=len, default=module.files)


def not_whole(module: Module, node: str, missing: Sequence[str], build: str) -> Violation:
    """The finding about a module that is not there, or not whole."""
    return violation(
        "module-missing",
        node,
        f"the module {module.name} is not whole: {module.reason}",
        evidence=f"not in {build}: {', '.join(missing)}",
        remedy=f"take the build that carries {module.name} with its submodules "
        "(git clone --recursive), see docs/runbooks/provenance.md",
    )


GATES = (modules_whole,)
