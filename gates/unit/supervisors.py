"""Who else starts an engine on a node: a unit, docker's policy, a line of a crontab, Kubernetes.

One that may start a second load beside ours blocks; one that is off and stays off is a warning. Two
loads of 100 GiB in the 120 GiB of a Spark end in a power cycle (open-gpu-kernel-modules#1358).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import Severity, violation
from gates.core.violation import Violation
from gates.engine.vllm_flags import flags_of, serves
from gates.unit.supervision import OWN_UNITS, concerns_engine, dormant, name_engine, runs_vllm
from node.rules.ownership import same_container
from node.rules.patterns import POD_CGROUP
from schema.desired.plan import CONTAINER, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.machine import EngineProcess
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit


def _adopt(plan: Plan, node: Node, by_hand: str) -> str:
    """The remedy: adopt looks at it and takes it over; or by hand, without a way back."""
    return f"{deploy_command(plan, 'adopt')} -y; or without it, on {node.name}: {by_hand}"


def _elsewhere(plan: Plan, processes: Iterable[EngineProcess]) -> bool:
    """True for engines that run and answer at other ports than the rig's: another model beside
    ours, whose memory the memory gates count.
    """
    ports = [flags_of(p.argv).get("port", ("8000",)) for p in processes if serves(p.argv)]
    return bool(ports) and (str(plan.recipe.port),) not in ports


def _processes(snapshot: NodeSnapshot) -> tuple[EngineProcess, ...]:
    found = snapshot.engine_processes
    return () if isinstance(found, Unreadable) else found


def _policy_severity(plan: Plan, snapshot: NodeSnapshot, container: Container) -> Severity:
    """One that was stopped stays down, unless its policy is `always`."""
    down = container.state in ("exited", "created", "dead")
    if down and container.restart_policy != "always":
        return "warn"
    inside = [p for p in _processes(snapshot) if same_container(p.container_id or "", container.id)]
    return "warn" if _elsewhere(plan, inside) else "block"


@per_node
def restart_policy(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """docker restarts no vLLM by itself: a policy on the ranks of two nodes makes wedged pairs
    (field notes, docker), and after a boot it starts what systemd starts, too.
    """
    if plan.recipe.container is None and isinstance(snapshot.docker, Unreadable):
        return  # a rig without docker
    for container in require(snapshot.docker, "docker").containers:
        policy = container.restart_policy
        name = container.name.lstrip("/")
        # the next serve makes ours anew (supervision.own_policy)
        if policy in ("no", "") or name == CONTAINER or not runs_vllm(snapshot, container):
            continue
        named = shlex.quote(name)
        yield violation(
            "restart-policy",
            node.name,
            f"docker restarts {name} on {node.name} by itself ({policy}), beside systemd",
            evidence=f"container {name} (not ours): restart policy {policy}, {container.state}, "
            f"restarted {container.restarts} times by docker",
            remedy=_adopt(
                plan, node, f"sudo docker update --restart=no {named} && sudo docker stop {named}"
            ),
            severity=_policy_severity(plan, snapshot, container),
        )


def _unit_severity(plan: Plan, snapshot: NodeSnapshot, unit: Unit) -> Severity:
    """A unit that is off and disabled starts nothing by itself."""
    if dormant(unit):
        return "warn"
    held = [p for p in _processes(snapshot) if p.unit == unit.name]
    return "warn" if _elsewhere(plan, held) else "block"


@per_node
def second_unit(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """One supervisor an engine: two units that start it fight for ports and memory. One that was
    stopped, not disabled, comes back at the next boot beside ours.
    """
    for unit in require(snapshot.units, "units"):
        ours = unit.name.startswith(OWN_UNITS)
        if ours or unit.load_state == "not-found" or not concerns_engine(snapshot, unit):
            continue
        yield violation(
            "second-unit",
            node.name,
            f"{unit.name} on {node.name} starts a vLLM, too",
            evidence=f"{unit.active_state}/{unit.sub_state}, {unit.enabled or 'not enabled'}, "
            f"unit file {unit.fragment}; ExecStart {' '.join(unit.exec_start)[:200]}",
            remedy=_adopt(plan, node, f"sudo systemctl disable --now {shlex.quote(unit.name)}"),
            severity=_unit_severity(plan, snapshot, unit),
        )


@per_node
def second_supervisor(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A crontab starts an engine at boot or from time to time, and nothing in systemd or docker
    shows it: the second load comes when nobody looks.
    """
    for row in require(snapshot.cron, "cron"):
        if not name_engine(snapshot, row.words):
            continue
        owner = "" if row.file.startswith("/etc/") else f" -u {shlex.quote(row.user)}"
        file = shlex.quote(row.file)
        edit = f"sudo crontab{owner} -e" if owner else f"sudo editor +{row.line} {file}"
        yield violation(
            "second-supervisor",
            node.name,
            f"a line of {row.file} on {node.name} starts a vLLM, too",
            evidence=f"{row.file}:{row.line}: {row.text[:300]}",
            remedy=_adopt(plan, node, f"{edit} (put a # before line {row.line})"),
        )


@per_node
def second_pod(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A pod's engine is started again by the kubelet whenever it ends, and at each boot. Nothing in
    systemd or docker shows it, and in the pod's own network it takes no port of ours.
    """
    found = require(snapshot.engine_processes, "engine_processes")
    pods = [p for p in found if POD_CGROUP.search(p.cgroup)]
    servers = [p for p in pods if serves(p.argv)]
    for process in servers or pods[:1]:
        yield violation(
            "second-supervisor",
            node.name,
            f"Kubernetes runs a vLLM on {node.name}, too: pid {process.pid}",
            evidence=f"cgroup {process.cgroup}; {' '.join(process.argv)[:160]}",
            remedy=_adopt(
                plan, node, "sudo kubectl get deployments -A names it; then sudo kubectl scale "
                "--replicas=0 -n NAMESPACE deployment/NAME",
            ),
            severity="warn" if _elsewhere(plan, [process]) else "block",
        )  # fmt: skip


GATES = (restart_policy, second_unit, second_supervisor, second_pod)
