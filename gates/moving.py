"""Gates before an image moves from one node to the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gates import fabric, host, storage
from gates.base import Gate, Observed, gib, known, per_node, pyinfra, reached
from gates.codes import violation
from gates.container import KERNEL_ARCH, identity_of, image_name, image_of, same_content
from gates.violation import Violation
from schema.engine import Plan
from schema.rig import Node
from schema.snapshot import Image, NodeSnapshot, Unreadable

# Findings of the fabric that a waiver turns into "then over the LAN".
OFF_FABRIC = frozenset({"fabric-down", "fabric-address", "fabric-route"})
ROOM_LEFT = 512 * 1024**2

MOVING: tuple[Gate, ...] = (
    host.nodes_reachable,
    *fabric.GATES,
    storage.lock_free,
    storage.changes_closed_but("image"),
    storage.journal_whole,
)


def images(plan: Plan, observed: Observed) -> dict[str, Image | None]:
    """The recipe's image on each node whose docker can be read; None where it is not there."""
    return {
        node.name: image_of(snapshot.docker, (image_name(plan) or ""))
        for node, snapshot in reached(plan, observed)
        if not isinstance(snapshot.docker, Unreadable)
    }


def giver(found: Mapping[str, Image | None], chosen: str | None) -> str | None:
    """The node whose image the others get: the chosen one, else the first that has any."""
    if chosen is not None:
        return chosen
    return next((name for name, image in found.items() if image is not None), None)


def takers(found: Mapping[str, Image | None], source: str | None) -> tuple[str, ...]:
    """The nodes that lack the source's image; all that have none where there is no source yet."""
    own = found.get(source) if source else None
    return tuple(
        name
        for name, image in found.items()
        if name != source and (image is None or own is None or not same_content(own, image))
    )


def image_gates(chosen: str | None, port: int, built: bool = False) -> tuple[Gate, ...]:
    """All gates before an image moves: `chosen` is the node that the operator named.

    `built`: the right image is not what a node has, but what inputs or an archive say.
    """

    @per_node
    def docker_known(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """Docker answers on every node: what cannot be read is not "no image"."""
        known(snapshot.docker, "docker")
        yield from ()

    def one_source(plan: Plan, observed: Observed) -> list[Violation]:
        """It is known whose image is the right one: two builds under one tag need a word.

        Where the image is built from its inputs, or comes as an archive, these say it.
        """
        if built:
            return []
        found = images(plan, observed)
        reference = image_name(plan) or ""
        evidence = "; ".join(f"{n}: {identity_of(i) if i else 'absent'}" for n, i in found.items())
        if chosen is not None and found.get(chosen) is None:
            return [
                violation(
                    "image-missing",
                    chosen if chosen in found else None,
                    f"{chosen} is to give {reference} and does not have it",
                    evidence=evidence,
                    remedy="name a node that has it: "
                    + (
                        ", ".join(n for n, i in found.items() if i)
                        or "none has it; leave from= out"
                    ),
                )
            ]
        there = [(name, image) for name, image in found.items() if image is not None]
        others = [name for name, image in there[1:] if not same_content(there[0][1], image)]
        if chosen is not None or not others:
            return []
        return [
            violation(
                "image-differs",
                others[0],
                f"{reference} is another build on {others[0]} than on {there[0][0]}, and nobody "
                "said which is the right one",
                evidence=evidence,
                remedy=pyinfra(plan, "image", f"from={there[0][0]}")
                + f", or from={others[0]}; the other one is kept under another tag",
            )
        ]

    def arch(plan: Plan, observed: Observed) -> list[Violation]:
        """The image is built for the processor of the node that gets it."""
        found = images(plan, observed)
        source = giver(found, chosen)
        image = found.get(source) if source else None
        if image is None:
            return []
        return [
            violation(
                "image-arch",
                node.name,
                f"the image is for {image.arch}, {node.name} is {snapshot.identity.arch}",
                evidence=f"{(image_name(plan) or '')} of {source}: {image.arch}; uname -m: "
                f"{snapshot.identity.arch}",
                remedy=f"name an image for {snapshot.identity.arch} in "
                f"catalog/recipes/{plan.recipe.name}.yaml, container.image",
            )
            for node, snapshot in reached(plan, observed)
            if node.name in takers(found, source)
            and KERNEL_ARCH.get(image.arch, image.arch) != snapshot.identity.arch
        ]

    def room(plan: Plan, observed: Observed) -> list[Violation]:
        """Room for docker's unpacked archive, the layers and the spool, at their largest."""
        found = images(plan, observed)
        source = giver(found, chosen)
        image = found.get(source) if source else None
        if image is None:
            return []
        wanted = {}
        for name in takers(found, source):
            # Only missing layers travel; an image that differs shares some with its former self.
            wanted[name] = 3 * image.size if found[name] is None else 0
        return list(room_on(plan, observed, "/var/lib/docker", wanted))

    def port_free(plan: Plan, observed: Observed) -> list[Violation]:
        """Nobody listens on the port that the giver uses for this one transfer."""
        source = giver(images(plan, observed), chosen)
        return list(port_of(plan, observed, source, port))

    return (*MOVING, docker_known, one_source, arch, room, port_free)


def room_on(
    plan: Plan, observed: Observed, path: str, wanted: Mapping[str, int]
) -> Iterator[Violation]:
    """A finding for each node whose disk at `path` has less free than `wanted` bytes of it."""
    for node, snapshot in reached(plan, observed):
        if not wanted.get(node.name) or isinstance(snapshot.disks, Unreadable):
            continue
        disk = next((d for d in snapshot.disks if d.path == path), None)
        need = wanted[node.name] + ROOM_LEFT
        if disk is None or disk.free < need:
            yield violation(
                "transfer-room",
                node.name,
                f"{path} on {node.name} has "
                + ("not been looked at" if disk is None else f"{gib(disk.free)} free")
                + f", the transfer may need {gib(need)}",
                evidence="the snapshot does not name it" if disk is None else
                f"mounted at {disk.mount}: {gib(disk.free)} of {gib(disk.total)} free",
                remedy=f"on {node.name}: df -h {path}; sudo docker image prune",
                unknown=disk is None,
            )  # fmt: skip


def port_of(plan: Plan, observed: Observed, source: str | None, port: int) -> Iterator[Violation]:
    """A finding where somebody listens on the giver's port."""
    for node, snapshot in reached(plan, observed):
        if node.name != source or isinstance(snapshot.ports, Unreadable):
            continue
        address = str(node.fabric_address)
        holder = next(
            (p for p in snapshot.ports if p.port == port and p.address in _ANY | {address}), None
        )
        if holder is not None:
            yield violation(
                "transfer-port",
                node.name,
                f"port {port} of {node.name}, which the transfer would use, is taken",
                evidence=f"{holder.address}:{port} is held by {holder.process or 'unknown'} "
                f"(pid {holder.pid or 'unknown'})",
                remedy=f"take another port: --data port={port + 1}",
            )


_ANY = {"0.0.0.0", "::", "*"}
