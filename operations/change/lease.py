"""The lease of a run's change: each node of the rig goes back by itself when the run falls silent.

The keepers (node/lease) are there before the first step. They agree with each other, so a node that
the run does not change has one as well (docs/adr/0027).
"""

from __future__ import annotations

import secrets
from typing import Any

from pyinfra.api import State
from pyinfra.api.exceptions import ConnectError

from facts.rignode.context import reconnect
from node.rules.heartbeat import LEASE_PORT
from node.rules.patterns import printable
from operations.change.node_call import StepFailed, run_as_root
from schema.desired.plan import Plan
from schema.desired.rig import Node

LOOK_S = 60
AS_ROOT = "cat /proc/sys/kernel/random/boot_id"


def requests(plan: Plan, seconds: int) -> dict[str, dict[str, Any]]:
    """What each node's keeper gets: the lease in seconds, a key of this change, who its peers are.

    The addresses are those of the fabric and of the LAN: one cut cable does not keep the keepers
    from agreeing.
    """
    key = secrets.token_hex(32)
    nodes = plan.rig.nodes
    return {
        node.name: {
            "seconds": seconds,
            "key": key,
            "node": node.name,
            "head": node is plan.rig.head,
            "port": LEASE_PORT,
            "addresses": _addresses(node),
            "peers": {other.name: _addresses(other) for other in nodes if other is not node},
        }
        for node in nodes
    }


def _addresses(node: Node) -> list[str]:
    found = (node.fabric_address, node.lan_address)
    return [str(address) for address in found if address is not None]


def new_way_in(state: State, name: str) -> None:
    """Sees that a node still takes a new connection and lets it be root; StepFailed when not.

    What a change does to network, sshd, sudo or a firewall shows only there: the connection of the
    run itself goes on.
    """
    host = state.inventory.get_host(name)
    try:
        reconnect(state, host, LOOK_S)
    except (ConnectError, OSError, EOFError) as error:
        raise StepFailed(f"{name}: no new connection comes about: {error}") from error
    if not host.connected:
        raise StepFailed(f"{name}: no new connection comes about")
    done, output = run_as_root(state, host, AS_ROOT, LOOK_S)
    if not done:
        raise StepFailed(
            f"{name}: a new connection cannot become root: {printable(output.stderr[-200:])}"
        )
