"""Gates before copies of backups move from one node to another."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gates.core.check import Gate, Observed
from gates.core.violation import Violation
from gates.transfer import route
from gates.transfer.route import TransferRequest, gates_for
from schema.desired.plan import Plan


def port_free(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Nobody listens on the port that the giver uses for this one transfer."""
    return list(route.port_free(asked, plan, observed, {asked.source}))


def route_open(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    return list(route.route_open(asked, plan, observed, asked.source, asked.takers))


def copy_gates(
    pairs: Mapping[str, Collection[str]], port: int, waive: Collection[str]
) -> tuple[Gate, ...]:
    """All gates before copies move; `pairs` are the nodes that take, by the node that gives."""
    about = [
        gate
        for source, takers in pairs.items()
        for gate in gates_for(
            TransferRequest(source, port, waive, takers=takers), port_free, route_open
        )
    ]
    return (*route.BEFORE, *about)
