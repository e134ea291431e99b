"""Which nodes a reboot takes down, and what has to be so before it."""

from __future__ import annotations

import time

from pyinfra import state

from deploys.plans.engine import driver_module, known, load_lists
from deploys.plans.rig import Procedure
from facts.looks import observe_machines
from gates.core import Gate, Observed
from gates.firmware import rebootable
from gates.gate_sets import REBOOTING
from gates.known_bad import boots
from schema.keys import RebootData


def gates(rig: Procedure) -> tuple[Gate, ...]:
    """The gates of a reboot; those about a person's hands are asked of the nodes it takes down."""
    name = rig.data(RebootData).only
    only = frozenset({name}) if name else None
    hands = rebootable(load_lists(), time.time(), only)
    return (*REBOOTING, boots(known(), nodes=only), *hands)


def inspect(rig: Procedure) -> Observed:
    """The rig with each node's kernels and hardware."""
    module = driver_module(rig.plan, rig.data(RebootData))
    return observe_machines(state, rig.plan, module)


def nodes(rig: Procedure) -> frozenset[str]:
    """The nodes to reboot; DeployError when `only` is no node of the rig."""
    return frozenset(rig.asked_nodes(rig.data(RebootData).only))
