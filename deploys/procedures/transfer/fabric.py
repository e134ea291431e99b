"""What fabric tells: the state of each node's devices, the findings, the rate of each way."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import gevent
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import dry_run, once_a_run, refusal_line
from deploys.common.load_and_gate import report as report_finding
from deploys.common.procedure import Procedure
from deploys.common.rdma_proof import expects_rdma, seen_networks, told
from deploys.common.snapshot_view import engine_may_run
from deploys.procedures.transfer.fabric_ways import End, Way, rdma_ways, state_lines, tcp_ways
from facts.rignode.call import AskFailed, ask_node
from gates.core.waiver import blocking
from gates.gate_sets import check
from gates.transfer import fabric, rdma
from schema.inputs.runbook_data import FabricData
from schema.observed.network import Network
from schema.observed.snapshot import NodeSnapshot, Unreadable

SECONDS = 5
PERFTEST = "ib_write_bw"
# A port below this share of its own rate is throttled: one twin of a Spark reaches nearly a half.
THROTTLED = 0.25


@once_a_run
def report(rig: Procedure) -> None:
    """Tells what is cabled, what is wrong, and the rates, once a run; DeployError where a finding
    blocks or a rate cannot be had.
    """
    plan = rig.plan
    if len(plan.rig.nodes) < 2:
        logger.info(f"    {plan.rig.name} has one node: there is no fabric between nodes")
        return
    seen = {
        name: snapshot.network
        for name, snapshot in rig.snapshots.items()
        if isinstance(snapshot.network, Network)
    }
    for node in plan.rig.nodes:
        for line in state_lines(plan, node, seen[node.name]) if node.name in seen else ():
            logger.info(f"    [{node.name}] {line}")
    found = check(plan, rig.snapshots, (*fabric.GATES, *rdma.GATES))
    for violation in found:
        report_finding(violation)
    if blocking(found):
        raise DeployError(refusal_line(found))
    running = [name for name, snapshot in rig.snapshots.items() if _engine_runs(snapshot)]
    if running and expects_rdma(plan):
        logger.info(f"    {told(seen_networks(plan))[1]}")
    _rates(rig, seen, running)


def _engine_runs(snapshot: NodeSnapshot) -> bool:
    """Whether some engine runs there, ours or not; unknown is not idle."""
    processes = snapshot.engine_processes
    return engine_may_run(snapshot) or isinstance(processes, Unreadable) or bool(processes)


def _rates(rig: Procedure, seen: Mapping[str, Network], running: list[str]) -> None:
    data = rig.data(FabricData)
    if data.measure is False or dry_run():
        return
    if running and data.measure is None:
        logger.info(
            f"    not measured: an engine runs on {', '.join(running)}, and {SECONDS} s of all of "
            "the fabric would slow it; with it: --data measure=true"
        )
        return
    lost = []
    plan = rig.plan
    for peer in plan.rig.workers:
        with_rdma = [*rdma_ways(plan, plan.rig.head, peer, seen)]
        if with_rdma and all(_has_perftest(node) for node in (plan.rig.head.name, peer.name)):
            ways = with_rdma
        else:
            ways = [*tcp_ways(plan, plan.rig.head, peer, seen)]
        for way in ways:
            where = f"{way.sender.node} -> {way.receiver.node}, {way.name}"
            try:
                rate = _measure(way, data.port)
            except AskFailed as error:
                logger.warning(f"    [{where}] not measured: {error}")
                lost.append(where)
                continue
            by = PERFTEST if way.sender.rdma else "TCP, four streams"
            logger.info(f"    [{where}] {rate:.1f} Gbit/s ({by}, {SECONDS} s)")
            if way.rate_gbit and way.sender.rdma and rate < THROTTLED * way.rate_gbit:
                logger.warning(
                    f"    [{where}] that is far below the port's {way.rate_gbit:g} Gbit/s: a cable "
                    "that was plugged in while the node ran stays throttled until a reboot with "
                    "the cable in place; where that does not help: both nodes off for 60 s at the "
                    "wall"
                )
    if lost:
        raise DeployError(f"the rate of {len(lost)} way(s) could not be had; first {lost[0]}")


def _has_perftest(name: str) -> bool:
    try:
        return bool(ask_node(state, state.inventory.get_host(name), "rate look", {})[PERFTEST])
    except AskFailed as error:
        raise DeployError(str(error)) from None


def _measure(way: Way, port: int) -> float:
    """Gbit/s from the sender to the receiver; AskFailed with the line of the end that failed."""
    common: dict[str, Any] = {"key": secrets.token_hex(32), "seconds": SECONDS}
    there = {"address": way.receiver.address, "port": port}
    taking = {"listen": {**there, "device": way.receiver.device}, "peer": way.sender.address}
    giving = {"to": {**there, "device": way.sender.device}}
    jobs = [
        gevent.spawn(_ask, end, verb, {**common, **request, "rdma": end.rdma})
        for end, verb, request in (
            (way.sender, "rate send", giving),
            (way.receiver, "rate receive", taking),
        )
    ]
    gevent.joinall(jobs)
    answers: list[dict[str, Any]] = []
    for answer in (job.get() for job in jobs):
        if isinstance(answer, AskFailed):
            raise answer
        answers.append(answer)
    return float(next(a["gbit_s"] for a in answers if a["gbit_s"] is not None))


def _ask(end: End, verb: str, request: dict[str, Any]) -> dict[str, Any] | AskFailed:
    try:
        return ask_node(state, state.inventory.get_host(end.node), verb, request, 90)
    except AskFailed as error:
        return error
