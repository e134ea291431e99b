"""A host reached, its clock and memory, another rig on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core import (
    MIB,
    Observed,
    Violation,
    collect_check,
    deploy_command,
    gib,
    per_node,
    require,
    section_unreadable,
    violation,
)
from schema.plan import Node, Plan
from schema.render_engine import NODE_PATH
from schema.render_unit import membership_in
from schema.snapshot import NodeSnapshot, Unreadable

# Reachable, readable, on time, with room on its disks.

# The gate of a Kubernetes host's memory: kubelet ends pods on a host that runs out of it.

# kubelet evicts below 100 MiB available (its default memory.available); a pod's start takes more.
FLOOR = 512 * MIB


@per_node
def host_memory(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A host with room for a pod's start: below kubelet's threshold pods are evicted, not started.

    How much GPU memory the engine gets is its limit's matter (gates/cluster.py).
    """
    if plan.runtime != "deployment":
        return
    memory = require(snapshot.memory, "memory")
    if memory.available < FLOOR:
        yield violation(
            "memory-short",
            node.name,
            f"{node.name} has {gib(memory.available)} available: kubelet evicts pods",
            evidence=f"MemTotal {gib(memory.total)}, MemAvailable {gib(memory.available)}, "
            f"MemFree {gib(memory.free)}; wanted {gib(FLOOR)}",
            remedy=f"on {node.name}: ps -eo pid,rss,args --sort=-rss | head; end what nobody needs",
        )


HOST_MEMORY_GATES = (host_memory,)


# Gates of the host itself: it answers, it tells everything, its clock agrees.

# Not image_files: gates.artifact asks for it, where the recipe has patches and the
# image is there.
SECTIONS = (
    "gpus",
    "memory",
    "shm",
    "engine_processes",
    "network",
    "ports",
    "connections",
    "docker",
    "venvs",
    "units",
    "cron",
    "files",
    "weights",
    "disks",
    "sysctls",
    "journal",
    "watch",
    "health",
)
CLOCK_SKEW_S = 5.0


def nodes_reachable(plan: Plan, observed: Observed) -> list[Violation]:
    """Every node answered: half a rig changed is worse than none (faults.md 41)."""
    found = list(_one_machine(plan, observed))
    for node in plan.rig.nodes:
        seen = observed.get(node.name, Unreadable(unreadable="was not asked"))
        if isinstance(seen, Unreadable):
            what, remedy, cause = _silent(node, seen.unreadable)
            found.append(
                violation(
                    "nodes-reachable",
                    node.name,
                    f"{node.name} ({node.lan_address}) {what}",
                    evidence=seen.unreadable,
                    remedy=remedy,
                    unknown=True,
                    cause=cause,
                )
            )
    return found


def _one_machine(plan: Plan, observed: Observed) -> Iterator[Violation]:
    """Two names of the inventory that lead to one machine: every later finding would be about the
    wrong one. By machine-id and boot_id: a disk that was cloned has the same machine-id.
    """
    first: dict[tuple[str, str], Node] = {}
    for node in plan.rig.nodes:
        seen = observed.get(node.name)
        if not isinstance(seen, NodeSnapshot):
            continue
        other = first.setdefault((seen.identity.machine_id, seen.identity.boot_id), node)
        if other is not node:
            yield violation(
                "nodes-reachable",
                node.name,
                f"{other.name} and {node.name} are one machine",
                evidence=f"both have machine-id {seen.identity.machine_id} and one boot_id",
                remedy=f"give {other.name} and {node.name} their own ssh_hostname and lan_address "
                "in the inventory",
                cause="two names of the inventory lead to one address",
            )


def _silent(node: Node, reason: str) -> tuple[str, str, str]:
    """(what is wrong, its remedy, its cause where the host answered) of a node without a snapshot,
    from the reason's words.
    """
    login = f"ssh {node.ssh_user}@{node.lan_address}"
    if "--limit" in reason:
        left = "run it again without --limit and --exclude"
        return "was left out", left, "the command line left it out"
    if "passwordless sudo" in reason:
        rule = f"{node.ssh_user} ALL=(ALL) NOPASSWD: ALL"
        return (
            "answered, and sudo refused",
            f"(docs/reference/sudo.md) ssh -t {node.ssh_user}@{node.lan_address} \"echo '{rule}' | "
            "sudo EDITOR='tee' visudo -f /etc/sudoers.d/rigbook\"; or log in as root",
            "sudo is not installed, or asks for a password",
        )
    if "the host answered" in reason or "snapshot" in reason:
        return (
            "answered, and could not be looked at",
            f"{login} 'sudo -n python3 --version' (rigbook needs sudo without a password there, "
            "and Python 3.10 or newer)",
            "what the evidence says: often no Python 3.10 or newer",
        )
    remedy = f"{login} true; if it is off: pyinfra INVENTORY deploys/wake.py -y, or power it on"
    return "did not answer", remedy, ""


@per_node
def sections_readable(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Every section of the snapshot is known; unknown means blocked (P5).

    A recipe that needs no NVIDIA GPU runs on hosts without a driver to ask, a venv on hosts
    without docker.
    """
    needs = {"gpus": plan.recipe.expect.needs_nvidia, "docker": plan.recipe.container is not None}
    for section in SECTIONS:
        value = getattr(snapshot, section)
        needed = needs.get(section, True)
        if needed and isinstance(value, Unreadable):
            yield section_unreadable(node.name, section, value)


def clock_skew(plan: Plan, observed: Observed) -> list[Violation]:
    """Clocks agree within 5 s: logs, journal and "since" times are compared across nodes."""
    clocks, unknown = collect_check(plan, observed, lambda _, s: s.identity.clock_unix_s)
    for node, clock in clocks[1:]:
        first, reference = clocks[0]
        if abs(clock - reference) > CLOCK_SKEW_S:
            unknown.append(
                violation(
                    "clock-skew",
                    node.name,
                    f"the clock of {node.name} is {clock - reference:+.1f} s off {first.name}'s",
                    evidence=f"Unix time: {first.name} {reference:.1f}, {node.name} {clock:.1f}; "
                    f"allowed: {CLOCK_SKEW_S:.0f} s",
                    remedy=f"on {node.name}: sudo timedatectl set-ntp true && timedatectl status",
                )
            )
    return unknown


REACHABLE_GATES = (nodes_reachable, sections_readable, clock_skew)


# Doctor's findings about time, boots and kernel settings of the nodes.


@per_node
def clock_jump(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The clock ran straight since the journal's changes: none is in the future, none of this
    boot is older than the boot itself. Else every "since" of logs and journal misleads.
    """
    now, up = snapshot.identity.clock_unix_s, snapshot.identity.uptime_s
    for change in require(snapshot.journal, "journal").changes:
        age = now - change.opened_unix_s
        same_boot = change.boot_id == snapshot.identity.boot_id
        if age < -CLOCK_SKEW_S:
            says = f"change {change.id} was opened {-age:.0f} s in the future"
        elif same_boot and age > up + CLOCK_SKEW_S:
            says = f"change {change.id} of this boot is {age:.0f} s old, the boot {up:.0f} s"
        else:
            continue
        yield violation(
            "clock-jump",
            node.name,
            f"the clock of {node.name} jumped since the last change",
            evidence=says,
            remedy=f"on {node.name}: timedatectl status; sudo timedatectl set-ntp true",
        )
        return


@per_node
def rebooted_midway(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A change that was under way when the node rebooted (faults.md 6): its engine may be of
    either state, and no operator waits for it any more.
    """
    identity = snapshot.identity
    for change in require(snapshot.journal, "journal").changes:
        if change.status in ("OPEN", "INCONSISTENT") and change.boot_id != identity.boot_id:
            yield violation(
                "rebooted-midway",
                node.name,
                f"{node.name} rebooted while {change.deploy} was at work",
                evidence=f"change {change.id} ({change.status}) of boot {change.boot_id[:8]}; now "
                f"boot {identity.boot_id[:8]}, up {identity.uptime_s:.0f} s",
                remedy=deploy_command(plan, "restart")
                if change.deploy == "restart"
                else deploy_command(plan, "rollback", f"change={change.id}"),
            )


def sysctl_differs(plan: Plan, observed: Observed) -> list[Violation]:
    """Kernel settings under watch are the same on all nodes of a rig."""
    seen, _ = collect_check(plan, observed, lambda _, s: require(s.sysctls, "sysctls"))
    found = []
    for node, values in seen[1:]:
        first, reference = seen[0]
        differing = sorted(n for n in {*reference, *values} if reference.get(n) != values.get(n))
        if differing:
            name = differing[0]
            wanted = shlex.quote(f"{name}={reference.get(name, '')}")
            found.append(
                violation(
                    "sysctl-differs",
                    node.name,
                    f"{', '.join(differing)} of {node.name} differ from {first.name}'s",
                    evidence="; ".join(
                        f"{n}: {first.name} {reference.get(n, 'not there')}, {node.name} "
                        f"{values.get(n, 'not there')}"
                        for n in differing
                    ),
                    remedy=f"on {node.name}: sudo sysctl -w {wanted}, and in "
                    "/etc/sysctl.d for the next boot",
                )
            )
    return found


CLOCK_GATES = (clock_jump, rebooted_midway, sysctl_differs)


# The gate that a node is this rig's: another rig's rank is not stopped or overwritten by mistake.
#
# An inventory of one node, tried on one machine of a pair, would take the pair down.


@per_node
def belongs_here(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What is installed on the node is a rank of this rig, with no peer outside of it (fault 60).

    A new name, a node that leaves and a new fabric address look the same: `former_rig` names it.
    """
    texts = {file.path: file.content for file in require(snapshot.files, "files")}
    found = membership_in(texts.get(NODE_PATH) or "")
    if found is None or found.rig == plan.former_rig:
        return
    ours = {str(other.fabric_address) for other in plan.rig.nodes}
    strangers = [address for address in found.peers if address not in ours]
    if found.rig != plan.rig.name:
        wrong = f"belongs to rig {found.rig}, not to {plan.rig.name}"
    elif strangers:
        wrong = (
            f"belongs to rig {found.rig} with {', '.join(strangers)}, which is not in this "
            "inventory"
        )
    else:
        return
    names = ", ".join(other.name for other in plan.rig.nodes)
    yield violation(
        "other-rig",
        node.name,
        f"{node.name} {wrong}",
        evidence=f"{NODE_PATH}: rig {found.rig}, peers {', '.join(found.peers) or 'none'}; "
        f"this inventory: rig {plan.rig.name}, nodes {names}",
        remedy=f"name the inventory of rig {found.rig}; to take {node.name} out of that rig: "
        f"--data former_rig={found.rig}",
    )


OTHER_RIG_GATES = (belongs_here,)
