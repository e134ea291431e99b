"""Doctor's findings about what differs from the recipe, each difference by its own name."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import deploy_command, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.drift.compare import drift
from gates.drift.difference import Difference
from gates.engine.state import engine_state, engine_unit
from gates.engine.vllm_flags import LOST_QUOTES
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable

LIVE = "the live process, its container and its files against what the recipe renders"
FILES = "its files, as none of its engine runs, against what the recipe renders"


@per_node
def drifted(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Everything that serve would set right; a node that was never served has nothing to drift."""
    state = engine_state(plan, node, snapshot)
    if state == "absent":
        return
    seen = FILES if state == "stopped" else LIVE
    for difference in drift(plan, node, snapshot):
        if not _told_elsewhere(difference, snapshot):
            yield _finding(plan, node, difference, seen)


def _told_elsewhere(difference: Difference, snapshot: NodeSnapshot) -> bool:
    """True for a difference that another finding names with its own cause and mending."""
    if difference.kind == "unknown" or difference.name == "restart policy":
        return True
    if difference.kind == "unit" and engine_unit(snapshot) is not None:
        return difference.want in ("enabled", "loaded as on disk")
    if difference.kind == "forbidden" and not isinstance(snapshot.engine_processes, Unreadable):
        processes = snapshot.engine_processes
        return any(p.environ.get(difference.name) == difference.have for p in processes)
    return False


def _finding(plan: Plan, node: Node, difference: Difference, seen: str) -> Violation:
    serve = deploy_command(plan, "serve")
    if difference.kind == "forbidden":
        return violation(
            "forbidden-env",
            node.name,
            f"the engine of {node.name} would start with {difference.name}={difference.have}, "
            "which the recipe forbids",
            evidence=f"in its container or its environment file; forbidden because: "
            f"{difference.want}",
            remedy=serve,
            severity="warn",
        )
    if difference.kind == "flag" and difference.name == "headless" and difference.want == "true":
        return violation(
            "worker-not-headless",
            node.name,
            f"the worker {node.name} runs without --headless: it binds the rendezvous itself",
            evidence=f"{difference.text}; {seen}",
            remedy=serve,
        )
    if difference.kind == "flag" and difference.have.endswith(LOST_QUOTES):
        have = difference.have.removesuffix(LOST_QUOTES).strip()
        return violation(
            "json-quotes-lost",
            node.name,
            f"{difference.name} of {node.name} lost its JSON quotes on the way",
            evidence=f"the engine got {have}, the recipe says {difference.want}",
            remedy=serve,
        )
    return violation(
        "drift",
        node.name,
        f"differs from the recipe: {difference}",
        evidence=seen,
        remedy=f"{serve} --dry --diff, then without --dry",
    )


GATES = (drifted,)
