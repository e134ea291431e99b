"""By which way something moves between the nodes of a rig, and what its snapshots must try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyinfra import logger

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from gates.transfer.route import TransferRequest, route_of, with_route_probe
from operations.transfer.transfer import Route
from schema.desired.plan import Plan
from schema.inputs.runbook_data import OverFabricData


@dataclass(frozen=True)
class Want:
    """A transfer as it is asked for; `plan` has its port tried by every snapshot."""

    plan: Plan
    asked: TransferRequest


@once_a_run
def wanted(rig: Procedure, ask: Callable[[Plan], TransferRequest]) -> Want:
    """What is asked for, once a run: the observation is remembered by its plan.

    `ask` gives the transfer, from the plan that is to be observed.
    """
    data = rig.data(OverFabricData)
    plan = with_route_probe(rig.plan, data.port, data.waive)
    return Want(plan, ask(plan))


def planned_route(rig: Procedure) -> Route:
    """Out of the fabric device, or (waived) over the LAN by whatever route there is."""
    addresses, devices = route_of(rig.plan, [code for code, _ in rig.waivers])
    if None in devices.values():
        logger.warning(
            "what moves goes over the LAN as plain text: who listens there can read it; "
            "a one-time key and hashes keep it from being changed"
        )
    data = rig.data(OverFabricData)
    return Route(addresses, devices, data.port)
