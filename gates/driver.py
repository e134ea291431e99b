"""A change of the driver."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core import MIB, Gate, Observed, Violation, deploy_command, per_node, require, violation
from gates.kernel import kernel_facts
from node.rules.engine import same_container
from schema.hardware import AptPlan, DriverFacts, DriverSnapshot, GpuUser
from schema.plan import CONTAINER, UNIT, Node, Plan
from schema.snapshot import Docker, NodeSnapshot, Unreadable

# Gates before a driver is changed: to be had, nothing else touched, the way back kept, no user.
#
# A driver that fails half-way leaves a headless machine without its GPU, so each of these is asked
# before the first file is fetched.

# What the packages unpack to beside the files, module sources and what a build leaves included.
UNPACKED = 4
ROOM = 1 << 30
# The driver's own services: they hold the GPU and end with the boot.
_DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service",
            "dcgm.service", "nvidia-cdi-refresh.service")  # fmt: skip
# Others than the driver's own packages that come and go with it.
_KIN = ("linux-", "nvidia-", "libnvidia-", "xserver-xorg-video-nvidia-", "dkms", "cuda-drivers",
        "cuda-compat")  # fmt: skip


def driver_facts(snapshot: NodeSnapshot) -> DriverFacts:
    """The node's driver; UnknownSection where it was not asked or not answered."""
    if not isinstance(snapshot, DriverSnapshot):
        return require(Unreadable(unreadable="nobody asked for it"), "driver")
    return require(snapshot.driver, "driver")


def asked(snapshot: NodeSnapshot) -> tuple[DriverFacts, AptPlan]:
    """The node's driver and apt's plan for it; UnknownSection as above."""
    facts = driver_facts(snapshot)
    return facts, require(facts.apt, "driver")


def changeable(label: str, kernel: str | None) -> tuple[Gate, ...]:
    """The gates for a driver, `label` in the operator's words, with one more kernel or none."""

    @per_node
    def driver_to_be_had(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The lists have that version; a driver of NVIDIA's installer has no packages at all."""
        facts, apt = asked(snapshot)
        if apt.wanted is not None:
            return
        there = ", ".join(apt.available) or "no version"
        summary = f"the package lists of {node.name} have no driver {label}"
        if not apt.family:
            summary = f"the driver of {node.name} is of no package: apt cannot change it"
        yield violation(
            "driver-version",
            node.name,
            summary,
            evidence=f"programs load {', '.join(facts.versions) or 'no driver'}; the lists have "
            f"{there}; packages: {', '.join(apt.family) or 'none'}",
            remedy=f"on {node.name}: sudo apt-get update, then name one of these"
            if apt.family
            else f"on {node.name}: sudo nvidia-uninstall, then the distribution's packages",
        )

    @per_node
    def apt_would(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """apt does it, and nothing beside: a driver must not take a desktop or a kernel along."""
        _, apt = asked(snapshot)
        others = [
            row.name
            for row in apt.rows
            if row.old is not None and row.name not in apt.family and not row.name.startswith(_KIN)
        ]
        if apt.problem is None and not others:
            return
        # the family's own holds are lifted for the exchange
        held = sorted(({*others, *(apt.problem or "").split()} & {*apt.holds}) - {*apt.family})
        what = f"would change {', '.join(others)}, too" if apt.problem is None else "refuses"
        yield violation(
            "driver-plan",
            node.name,
            f"apt of {node.name} {what}" + (f" ({', '.join(held)}: held)" if held else ""),
            evidence=apt.problem or f"{len(apt.rows)} packages for the driver {apt.wanted}",
            remedy=f"on {node.name}: sudo apt-get -s install with these packages shows why; name "
            "another version, or bring the others to theirs first",
        )

    @per_node
    def old_is_kept(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """An archive deletes a release once the next is there: no old files, no way back."""
        _, apt = asked(snapshot)
        gone = [f"{row.name} {row.old}" for row in apt.rows if row.kept == "none"]
        if gone:
            yield violation(
                "driver-old-gone",
                node.name,
                f"the old driver of {node.name} is not to be had any more: there is no way back",
                evidence=f"in no cache and no repository: {', '.join(gone)}",
                remedy=f"on {node.name}: sudo apt-get install dpkg-repack, which makes them of "
                "what is installed",
            )

    @per_node
    def can_build(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """DKMS builds for a kernel only with its headers, and signs only with a known key."""
        facts, apt = asked(snapshot)
        if not any("dkms" in row.name and row.new for row in apt.rows):
            return
        running = kernel_facts(snapshot).running
        coming = {row.name for row in apt.rows if row.new}
        for release in dict.fromkeys((running, kernel or running)):
            if not facts.headers.get(release) and f"linux-headers-{release}" not in coming:
                yield violation(
                    "driver-headers",
                    node.name,
                    f"{node.name} has no headers of {release}: DKMS cannot build the module",
                    evidence=f"/lib/modules/{release}/build has no Makefile",
                    remedy=f"on {node.name}: sudo apt-get install "
                    + shlex.quote(f"linux-headers-{release}"),
                )
        if facts.signed_only and facts.key.enrolled is not True:
            yield _unsigned(node, facts)

    return (apt_in_order, driver_to_be_had, same_for_all, apt_would, old_is_kept, no_other_user,
            can_build, room_for_it)  # fmt: skip


def _unsigned(node: Node, facts: DriverFacts) -> Violation:
    known = {False: "the firmware does not know it", None: "whether it is known cannot be told"}
    key = facts.key.path
    return violation(
        "driver-unsigned",
        node.name,
        f"{node.name} loads signed modules alone, and what DKMS builds may not be loaded",
        evidence=f"DKMS's key: {key or 'none'}"
        + (f"; {known.get(facts.key.enrolled, '')}" if key else ""),
        remedy=f"on {node.name}: sudo mokutil --import {shlex.quote(key)}, then a reboot with "
        "somebody at the screen"
        if key
        else f"on {node.name}: sudo update-secureboot-policy --new-key, then the same again",
        unknown=facts.key.enrolled is None,
    )


@per_node
def apt_in_order(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A dpkg that was cut off, or another apt at work, fails in the middle of the change."""
    facts = driver_facts(snapshot)
    if facts.dpkg is None and facts.lock is None:
        return
    again = "sudo dpkg --configure -a && sudo apt-get -f install"
    yield violation(
        "driver-dpkg",
        node.name,
        f"dpkg of {node.name} is not in order" if facts.dpkg else f"apt is at work on {node.name}",
        evidence=facts.dpkg or facts.lock or "",
        remedy=f"on {node.name}: {again}" if facts.dpkg else "wait until it is done",
    )


def same_for_all(plan: Plan, observed: Observed) -> list[Violation]:
    """Nodes of one rig end with one driver: lists of different days would give them two."""
    wanted = {
        name: snapshot.driver.apt.wanted
        for name, snapshot in observed.items()
        if isinstance(snapshot, DriverSnapshot)
        and isinstance(snapshot.driver, DriverFacts)
        and isinstance(snapshot.driver.apt, AptPlan)
        and snapshot.driver.apt.wanted is not None
    }
    if len(set(wanted.values())) < 2:
        return []
    head = plan.rig.head.name
    return [
        violation(
            "driver-version",
            name,
            f"{name} would get the driver {version}, {head} {wanted.get(head)}",
            evidence=", ".join(f"{each}: {got}" for each, got in sorted(wanted.items())),
            remedy="sudo apt-get update on each node, or name one version that all of them have",
        )
        for name, version in sorted(wanted.items())
        if version != wanted.get(head)
    ]


@per_node
def no_other_user(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Only our engine and the driver's own services are stopped: nobody else's process is ended."""
    facts = driver_facts(snapshot)
    others = [user for user in facts.users if not _ours(user, snapshot)]
    if others:
        named = [f"{u.comm} (pid {u.pid}{f', {u.unit}' if u.unit else ''})" for u in others[:6]]
        units = sorted({u.unit for u in others if u.unit})
        yield violation(
            "driver-users",
            node.name,
            f"{len(others)} processes of others use the GPU of {node.name}",
            evidence=", ".join(named),
            remedy=f"on {node.name}: "
            + (
                f"sudo systemctl stop {shlex.join(units)}"
                if units
                else "sudo kill -TERM " + " ".join(str(other.pid) for other in others)
            ),
        )


def _ours(user: GpuUser, snapshot: NodeSnapshot) -> bool:
    if user.unit in (UNIT, *_DAEMONS):
        return True
    docker = snapshot.docker
    return (
        user.container is not None
        and isinstance(docker, Docker)
        and any(
            box.name == CONTAINER and same_container(box.id, user.container)
            for box in docker.containers
        )
    )


@per_node
def room_for_it(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Room for the new files and the old, and for what they unpack to."""
    facts, apt = asked(snapshot)
    need = UNPACKED * (apt.download or 0) + ROOM
    if apt.rows and facts.free < need:
        yield violation(
            "driver-room",
            node.name,
            f"{node.name} has no room for another driver: {facts.free // MIB} MiB are free",
            evidence=f"{(apt.download or 0) // MIB} MiB to fetch, about {need // MIB} MiB in all",
            remedy=f"on {node.name}: sudo apt-get clean; {deploy_command(plan, 'backup')} --data "
            "prune=true",
        )
