"""Gates of the host itself: it answers, it tells everything, its clock agrees."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import Observed, collect, per_node
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable

# Not image_files: gates.artifact.image_patches asks for it, where the recipe has patches and the
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
    clocks, unknown = collect(plan, observed, lambda _, s: s.identity.clock_unix_s)
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


GATES = (nodes_reachable, sections_readable, clock_skew)
