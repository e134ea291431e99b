"""Gates before weights move from one node to the others."""

from __future__ import annotations

from dataclasses import replace

from gates.core.check import Gate, Observed, answering_nodes, deploy_command, gib
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.transfer import route
from gates.transfer.route import TransferRequest, gates_for
from gates.weights import weights
from gates.weights.files import differ, is_whole, weights_of
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import WeightsFile
from schema.observed.snapshot import NodeSnapshot, Unreadable

UNNEEDED = "remove from that filesystem what is not needed"


def one_source(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """There is a node whose weights look whole by themselves; what is wrong there is named."""
    if asked.is_fetched:
        return []
    if asked.source is not None:
        checks = (weights.weights_incomplete, weights.weights_magic, weights.weights_cut,
                  weights.weights_whole, weights.weights_present)  # fmt: skip
        return [v for check in checks for v in check(plan, observed) if v.node == asked.source]
    return [replace(v, node=None) for v in weights.weights_present(plan, observed)][:1] or [
        violation(
            "weights-differ",
            None,
            "no node's weights are whole, or nobody said which are right",
            evidence="; ".join(
                _weights_line(plan, n, s) for n, s in answering_nodes(plan, observed)
            ),
            remedy=deploy_command(plan, "weights", "from=NODE"),
        )
    ]


def room(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Room for what the taker lacks or has otherwise: the former files stay beside the new ones."""
    wanted: dict[str, int] = {}
    giving = _weights(plan, observed, asked.source)
    for node, _ in answering_nodes(plan, observed):
        if node.name != asked.source:
            there = _weights(plan, observed, node.name)
            wanted[node.name] = sum(
                file.size
                for name, file in giving.items()
                if name not in there or differ(file, there[name])
            )
    found: list[Violation] = []
    for node in plan.rig.nodes:
        path = plan.specs[node.name].weights
        if wanted.get(node.name):
            found += route.room_on(plan, observed, path, {node.name: wanted[node.name]}, UNNEEDED)
    return found


def port_free(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Nobody listens on the port that a giver uses for this one transfer.

    To more than two targets whoever has got the weights gives, too (operations/transfer).
    """
    names = {node.name for node in plan.rig.nodes}
    givers = names if asked.source and len(names) > 3 else {asked.source}
    return list(route.port_free(asked, plan, observed, givers))


def route_open(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    names = {node.name for node in plan.rig.nodes if node.name != asked.source}
    differ = {
        v.node
        for gate in (weights.weights_present, weights.weights_equal)
        for v in gate(plan, observed)
    }
    # weights_equal names those that differ from the head, which may be the one that gets
    some = (
        names
        if asked.is_compared or (differ and asked.source != plan.rig.head.name)
        else names & differ
    )
    return list(route.route_open(asked, plan, observed, asked.source, some))


def weights_gates(asked: TransferRequest) -> tuple[Gate, ...]:
    """All gates before weights move; the source of `asked` is None where no node can give."""
    about = gates_for(asked, one_source, room, port_free, route_open)
    return (*route.BEFORE, *about)


def _weights(plan: Plan, observed: Observed, name: str | None) -> dict[str, WeightsFile]:
    """The files of a node's weights; none where it has none, or they cannot be read."""
    for node, snapshot in answering_nodes(plan, observed):
        if node.name == name and not isinstance(snapshot.weights, Unreadable):
            found = weights_of(plan, node, snapshot)
            return {f.name: f for f in found.files} if found else {}
    return {}


def _weights_line(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    found = weights_of(plan, node, snapshot)
    if found is None or not found.exists:
        return f"{node.name}: none"
    whole = "whole" if is_whole(plan, found) else "not whole"
    return (
        f"{node.name}: {len(found.files)} files, {gib(sum(f.size for f in found.files))}, {whole}"
    )


def weights_source(plan: Plan, observed: Observed, chosen: str | None) -> str | None:
    """The node that gives: the chosen one, else the only whole one, else the first of equal ones.

    None where none is whole, or where whole ones differ and nobody said which is right.
    """
    if chosen is not None:
        return chosen
    whole = []
    for node, snapshot in answering_nodes(plan, observed):
        if not isinstance(snapshot.weights, Unreadable):
            found = weights_of(plan, node, snapshot)
            if found is not None and found.exists and is_whole(plan, found):
                whole.append(node.name)
    differing = {v.node for v in weights.weights_equal(plan, observed)} & set(whole)
    return None if not whole or (len(whole) > 1 and differing) else whole[0]
