"""Doctor's findings about time, boots and kernel settings of the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core.check import Observed, collect, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.host.reachable import CLOCK_SKEW_S
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot


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
    seen, _ = collect(plan, observed, lambda _, s: require(s.sysctls, "sysctls"))
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


GATES = (clock_jump, rebooted_midway, sysctl_differs)
