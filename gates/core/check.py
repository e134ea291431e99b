"""What gates are made of: the observed rig, sections that must be known, and small texts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TypeVar

from gates.core.codes import section_unreadable
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable

Observed = Mapping[str, NodeSnapshot | Unreadable]
Gate = Callable[[Plan, Observed], list[Violation]]
NodeGate = Callable[[Plan, Node, NodeSnapshot], Iterator[Violation]]
T = TypeVar("T")

MIB = 1024**2
GIB = 1024**3


class UnknownSection(Exception):
    """Raised by `require` for a section that the host could not report."""

    def __init__(self, section: str, found: Unreadable) -> None:
        super().__init__(f"{section}: {found.unreadable}")
        self.section = section
        self.found = found


def require(value: T | Unreadable, section: str) -> T:
    """The section's value; UnknownSection when the host could not report it."""
    if isinstance(value, Unreadable):
        raise UnknownSection(section, value)
    return value


def answering_nodes(plan: Plan, observed: Observed) -> Iterator[tuple[Node, NodeSnapshot]]:
    """The nodes of the rig that answered, in rank order (`nodes-reachable` names the others)."""
    for node in plan.rig.nodes:
        snapshot = observed.get(node.name)
        if isinstance(snapshot, NodeSnapshot):
            yield node, snapshot


def per_node(gate: NodeGate) -> Gate:
    """Runs a node's gate on every node that answered; an unknown section blocks that node."""

    @wraps(gate)
    def run(plan: Plan, observed: Observed) -> list[Violation]:
        found: list[Violation] = []
        for node, snapshot in answering_nodes(plan, observed):
            try:
                for violation in gate(plan, node, snapshot):
                    found.append(violation)
            except UnknownSection as unknown:
                found.append(section_unreadable(node.name, unknown.section, unknown.found))
        return found

    return run


def collect(
    plan: Plan, observed: Observed, read: Callable[[Node, NodeSnapshot], T]
) -> tuple[list[tuple[Node, T]], list[Violation]]:
    """What `read` says of each node that answered, and a finding for each that cannot say.

    For gates that compare nodes: the first value is the head's where the head answered.
    """
    values: list[tuple[Node, T]] = []
    unknown: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        try:
            values.append((node, read(node, snapshot)))
        except UnknownSection as missing:
            unknown.append(section_unreadable(node.name, missing.section, missing.found))
    return values, unknown


def deploy_command(plan: Plan, deploy: str, *data: str) -> str:
    """The command line of one of our deploys; INVENTORY is the operator's, who alone knows it."""
    options = "".join(f" --data {shlex.quote(item)}" for item in data)
    return f"pyinfra INVENTORY deploys/{deploy}.py{options}"


def gib(size: float) -> str:
    """A size in GiB with two digits."""
    return f"{size / GIB:.2f} GiB"
