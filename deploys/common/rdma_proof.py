"""Whether NCCL really uses RDMA, from the log of the start: it takes TCP without a word."""

from __future__ import annotations

from collections.abc import Mapping

import gevent
from pyinfra import logger, state

from facts.nccl_log import NcclLog, NcclNetwork
from facts.rignode.context import fact_of, real
from operations.change.node_call import StepFailed
from schema.desired.plan import UNIT, Plan

_MEND = "compare `ls /sys/class/infiniband` there with its hcas: docs/reference/fabric.md"


def expects_rdma(plan: Plan) -> bool:
    """Whether there is anything to prove: a recipe that says so, on several nodes."""
    return plan.recipe.expect.rdma is not None and len(plan.rig.nodes) > 1


def seen_networks(plan: Plan) -> dict[str, NcclNetwork | None]:
    """What each node's log says; None where it could not be asked."""
    here = real(state)
    jobs = {
        node.name: gevent.spawn(fact_of, here, here.inventory.get_host(node.name), NcclLog, UNIT)
        for node in plan.rig.nodes
    }
    gevent.joinall(list(jobs.values()))
    return {name: job.get() for name, job in jobs.items()}


def told(seen: Mapping[str, NcclNetwork | None]) -> tuple[bool, str]:
    """Whether every node's NCCL uses RDMA alone, and a line that says what was seen."""
    good, bad = [], []
    for name, found in seen.items():
        networks = found.networks if found else ()
        if networks and all(network.startswith("IB") for network in networks):
            good.append(name)
        elif networks:
            bad.append(f"NCCL of {name} uses {_named(networks)}, not RDMA")
        else:
            bad.append(f"the log of {name} does not say which network NCCL uses")
    if bad:
        return False, "; ".join(bad)
    ports = {port for found in seen.values() if found for port in found.devices}
    through = f" through {', '.join(sorted(ports))}" if ports else ""
    return True, f"NCCL of {', '.join(good)} uses RDMA (NET/IB){through}"


def _named(networks: tuple[str, ...]) -> str:
    words = ["TCP (NET/Socket)" if one == "Socket" else f"NET/{one}" for one in networks]
    return " and ".join(words)


def proof_of_start(plan: Plan) -> str:
    """What follows the line about the answer, or "". StepFailed where the recipe requires RDMA and
    it was not seen; where it is only wanted, a warning.
    """
    if not expects_rdma(plan):
        return ""
    is_rdma, line = told(seen_networks(plan))
    if is_rdma:
        return f"; {line}"
    if plan.recipe.expect.rdma == "required":
        raise StepFailed(
            f"it answers, but {line}; recipe {plan.recipe.name} has expect.rdma: required; {_MEND}"
        )
    logger.warning(f"    {line}; {_MEND}")
    return f"; {line}"
