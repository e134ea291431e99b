"""A part of the section `health`, and lines of the kernel by boot and age."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TypeVar

from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.health import Health, KernelLine, Unknown
from schema.observed.snapshot import NodeSnapshot

T = TypeVar("T")
DAY_S = 86400.0
# The same trouble in this boot and in two before it is no accident: a reboot has not mended it.
BOOTS = 3
INSPECT = (
    "the same in {boots} boots, so another reboot mends nothing: inspect the hardware (seat the "
    "card and its power cable anew, another slot, a test of the memory; then its vendor)"
)


def known(value: T | Unknown, default: T) -> T:
    """The part, or `default` where it could not be read, which `parts_known` tells."""
    return default if isinstance(value, Unknown) else value


def health_of(snapshot: NodeSnapshot) -> Health:
    """The section; UnknownSection where it could not be read."""
    return require(snapshot.health, "health")


def this_boot(snapshot: NodeSnapshot, *kinds: str) -> list[KernelLine]:
    """The kernel's lines of these kinds since the boot, oldest first."""
    boot = snapshot.identity.boot_id
    lines = known(health_of(snapshot).kernel, ())
    return [line for line in lines if line.boot == boot and line.kind in kinds]


def recent(
    snapshot: NodeSnapshot, lines: Sequence[KernelLine], within_s: float = DAY_S
) -> list[KernelLine]:
    """Those of the last `within_s` seconds."""
    now = snapshot.identity.clock_unix_s
    return [line for line in lines if line.unix_s is not None and now - line.unix_s < within_s]


def boots_with(snapshot: NodeSnapshot, line: KernelLine) -> int:
    """In how many boots the kernel said the same of the same device, this one included."""
    lines = known(health_of(snapshot).kernel, ())
    what = (line.kind, line.number, line.device)
    same = {x.boot for x in lines if (x.kind, x.number, x.device) == what}
    return len(same - {None})


def remedy_for(snapshot: NodeSnapshot, line: KernelLine, usual: str) -> str:
    """What is done about a line: the usual, or, when reboots have not helped, the hardware."""
    boots = boots_with(snapshot, line)
    return INSPECT.format(boots=boots) if boots >= BOOTS else usual


def told(lines: Sequence[KernelLine]) -> str:
    """The last line with its time, and how many there are."""
    last = lines[-1]
    when = (
        f"{datetime.fromtimestamp(last.unix_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC: "
        if last.unix_s is not None
        else ""
    )
    more = f" ({len(lines)} such lines)" if len(lines) > 1 else ""
    return f"kernel, {when}{last.text}{more}"


@per_node
def parts_known(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A part that could not be read is told, and stops nothing: whether the GPUs answer at all is
    asked of the section `gpus`. A rig that needs none may have a driver without a GPU, as in a
    container.
    """
    health = health_of(snapshot)
    parts = {name: getattr(health, name) for name in type(health).model_fields}
    parts |= {f"SMART of {disk.name}": disk.smart for disk in known(health.disks, ())}
    for name, part in parts.items():
        needed = name != "gpus" or plan.recipe.expect.needs_nvidia
        if isinstance(part, Unknown) and needed:
            yield violation(
                "health-unreadable",
                node.name,
                f"{name} of {node.name}'s health could not be read",
                evidence=part.unreadable,
                remedy=f"on {node.name}: mend what the evidence names, then run this again",
                severity="warn",
                unknown=True,
            )


GATES = (parts_known,)
