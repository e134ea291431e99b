"""Gates before an image moves from one node to the others."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gates.artifact.image import KERNEL_ARCH, identity_of, image_name, image_of, same_content
from gates.core.check import Gate, Observed, answering_nodes, deploy_command, per_node, require
from gates.core.codes import Severity, violation
from gates.core.violation import Violation
from gates.transfer import route
from gates.transfer.route import TransferRequest, gates_for
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import Docker, Image
from schema.observed.snapshot import NodeSnapshot, Unreadable

PRUNE = "sudo docker image prune"
# docker's own store, whose layers node reads and registers one by one
LAYERS_STORE = "overlay2"


def images(plan: Plan, observed: Observed) -> dict[str, Image | None]:
    """The recipe's image on each node whose docker can be read; None where it is not there."""
    return {
        node.name: image_of(snapshot.docker, (image_name(plan) or ""))
        for node, snapshot in answering_nodes(plan, observed)
        if not isinstance(snapshot.docker, Unreadable)
    }


def source_of(found: Mapping[str, Image | None], chosen: str | None) -> str | None:
    """The node whose image the others get: the chosen one, else the first that has any."""
    if chosen is not None:
        return chosen
    return next((name for name, image in found.items() if image is not None), None)


def targets_of(found: Mapping[str, Image | None], source: str | None) -> tuple[str, ...]:
    """The nodes that lack the source's image; all that have none where there is no source yet."""
    own = found.get(source) if source else None
    return tuple(
        name
        for name, image in found.items()
        if name != source and (image is None or own is None or not same_content(own, image))
    )


def is_read(docker: Docker) -> bool:
    """Whether node reads this store: docker's own overlay2, or containerd's."""
    return docker.containerd is not None or docker.storage_driver == LAYERS_STORE


def _dockers(observed: Observed, names: Collection[str | None]) -> list[Docker]:
    seen = [s for n, s in observed.items() if n in names and isinstance(s, NodeSnapshot)]
    return [s.docker for s in seen if not isinstance(s.docker, Unreadable)]


@per_node
def docker_known(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Docker answers on every node: what cannot be read is not "no image"."""
    require(snapshot.docker, "docker")
    yield from ()


def one_source(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """It is known whose image is the right one: two builds under one tag need a word.

    Where the image comes as an archive, that says it.
    """
    if asked.is_made:
        return []
    chosen, found = asked.source, images(plan, observed)
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
                + (", ".join(n for n, i in found.items() if i) or "none has it; leave from= out"),
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
            remedy=deploy_command(plan, "image", f"from={there[0][0]}")
            + f", or from={others[0]}; the other one is kept under another tag",
        )
    ]


def _giving(
    asked: TransferRequest, plan: Plan, observed: Observed
) -> tuple[dict[str, Image | None], str | None, Image | None]:
    """The image on each node, the node that gives it, and what that node has."""
    found = images(plan, observed)
    source = source_of(found, asked.source)
    return found, source, found.get(source) if source else None


def arch(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """The image is built for the processor of the node that gets it."""
    found, source, image = _giving(asked, plan, observed)
    if image is None:
        return []
    return [
        violation(
            "image-arch",
            node.name,
            f"the image is for {image.arch}, {node.name} is {snapshot.identity.arch}",
            evidence=f"{(image_name(plan) or '')} of {source}: {image.arch}; uname -m: "
            f"{snapshot.identity.arch}",
            remedy=f"name an image for {shlex.quote(snapshot.identity.arch)} in "
            f"catalog/recipes/{plan.recipe.name}.yaml, container.image",
        )
        for node, snapshot in answering_nodes(plan, observed)
        if node.name in targets_of(found, source)
        and KERNEL_ARCH.get(image.arch, image.arch) != snapshot.identity.arch
    ]


def room(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Room for docker's unpacked archive, the layers and the spool, at their largest.

    Which layers another image of the taker shares, and how large each is, no snapshot tells:
    so this warns, and node refuses by the exact count before a byte comes. It blocks where
    there is no room at all, and where docker pulls, which counts none.
    """
    found, source, image = _giving(asked, plan, observed)
    if image is None:
        return []
    absent = [name for name in targets_of(found, source) if found[name] is None]
    roots = {
        node.name: snapshot.docker.store_root
        for node, snapshot in answering_nodes(plan, observed)
        if not isinstance(snapshot.docker, Unreadable)
    }
    by_docker = any(d.store != LAYERS_STORE for d in _dockers(observed, (*absent, source)))
    violations: list[Violation] = []
    for name in absent:
        path = roots[name]
        least = route.room_on(plan, observed, path, {name: 0}, PRUNE)
        most = route.room_on(plan, observed, path, {name: 3 * image.size}, PRUNE)
        severity: Severity = "block" if by_docker else "warn"
        violations += list(least) or [
            v if v.unknown else replace(v, severity=severity) for v in most
        ]
    return violations


def port_free(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Nobody listens on the port that the giver uses for this one transfer."""
    _, source, _ = _giving(asked, plan, observed)
    return list(route.port_free(asked, plan, observed, {source}))


def route_open(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    found, source, _ = _giving(asked, plan, observed)
    return list(route.route_open(asked, plan, observed, source, targets_of(found, source)))


def image_gates(asked: TransferRequest) -> tuple[Gate, ...]:
    """All gates before an image moves."""
    about = gates_for(asked, one_source, arch, room, port_free, route_open)
    return (*route.BEFORE, docker_known, *about)
