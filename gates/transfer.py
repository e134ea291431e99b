"""Something is to be moved: route, port, room."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper

from gates import fabric, host, storage, weights
from gates.artifact import KERNEL_ARCH, identity_of, image_name, image_of, same_content
from gates.core import (
    Gate,
    Observed,
    Severity,
    Violation,
    answering_nodes,
    deploy_command,
    gib,
    per_node,
    require,
    violation,
)
from gates.weights import differ, is_whole, weights_of
from schema.plan import Node, Plan
from schema.snapshot import Docker, Image, NodeSnapshot, ReachAsk, Unreadable, WeightsFile

# The way, the room and the fabric for an image or weights on the move.

# Gates before anything moves between nodes: the way to the giver, its port, room at the taker.

# Findings of the fabric that a waiver turns into "then over the LAN".
OFF_FABRIC = frozenset({"fabric-down", "fabric-address", "fabric-route"})
ROOM_LEFT = 512 * 1024**2
_ANY = {"0.0.0.0", "::", "*"}


@dataclass(frozen=True)
class TransferRequest:
    """A transfer as it is asked for: the node that gives (None: nobody named one), its TCP port,
    the codes that the operator waives.

    `is_made`: the right content is not a node's, but what an archive says. `is_compared`: every
    node is compared with the giver. `is_fetched`: the giver gets it first, from elsewhere.
    `takers`: of a backup.
    """

    source: str | None
    port: int
    waive: Collection[str] = ()
    is_made: bool = False
    is_compared: bool = False
    is_fetched: bool = False
    takers: Collection[str] = ()


# The gates before any transfer: nodes, fabric, nobody else at work.
BEFORE: tuple[Gate, ...] = (
    host.nodes_reachable,
    *host.OTHER_RIG_GATES,
    *fabric.FABRIC_GATES,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
)


RequestGate = Callable[[TransferRequest, Plan, Observed], list[Violation]]


def gates_for(asked: TransferRequest, *gates: RequestGate) -> tuple[Gate, ...]:
    """The gates, each about this transfer, under its own name."""
    return tuple(update_wrapper(partial(gate, asked), gate) for gate in gates)


def used_waivers(plan: Plan, observed: Observed, waive: Collection[str]) -> set[str]:
    """The codes about the fabric that there is a finding of and that the operator waives."""
    found = {v.code for gate in fabric.FABRIC_GATES for v in gate(plan, observed)}
    return found & set(waive) & OFF_FABRIC


def route_of(plan: Plan, waived: Collection[str]) -> tuple[dict[str, str], dict[str, str | None]]:
    """How takers reach the giver: each node's address, and its own device (None: any route).

    Out of the fabric's devices; over the LAN where a finding about the fabric was waived.
    """
    nodes = plan.rig.nodes
    if plan.rig.fabric is None or OFF_FABRIC & set(waived):
        return {n.name: str(n.lan_address) for n in nodes}, {n.name: None for n in nodes}
    return (
        {n.name: str(n.fabric_address) for n in nodes},
        {n.name: n.fabric_device for n in nodes},
    )


def with_route_probe(plan: Plan, port: int, waive: Collection[str]) -> Plan:
    """The plan whose snapshots also try the giver's port on each way that a transfer may take."""
    ways = [route_of(plan, ())]
    if OFF_FABRIC & set(waive):
        ways.append(route_of(plan, waive))
    requests = {
        name: request.model_copy(
            update={
                "reach": tuple(
                    ReachAsk(address=address, port=port, device=devices[name])
                    for addresses, devices in ways
                    for other, address in addresses.items()
                    if other != name
                )
            }
        )
        for name, request in plan.requests.items()
    }
    return replace(plan, requests=requests)


def route_open(
    asked: TransferRequest,
    plan: Plan,
    observed: Observed,
    source: str | None,
    names: Collection[str],
) -> Iterator[Violation]:
    """A finding for each of the nodes whose connection to the giver's port has no answer."""
    addresses, devices = route_of(plan, used_waivers(plan, observed, asked.waive))
    for node, snapshot in answering_nodes(plan, observed):
        if (
            source not in addresses
            or node.name not in names
            or isinstance(snapshot.network, Unreadable)
        ):
            continue
        device = devices[node.name]
        wanted = (addresses[source], asked.port, device)
        rows = snapshot.network.reach
        row = next((r for r in rows if (r.address, r.port, r.device) == wanted), None)
        if row is not None and row.state in ("open", "refused"):
            continue
        where = f"{addresses[source]}:{asked.port}" + (f" out of {device}" if device else "")
        yield violation(
            "transfer-way",
            node.name,
            f"{node.name} has no way to {where}, where {source} would give",
            evidence="the snapshot does not name it" if row is None
            else f"{row.state}: {row.detail}",
            remedy=f"on {source}: sudo nft list ruleset; let TCP port {asked.port} in from "
            f"{addresses[node.name]}; or take one that is let in: --data port=N",
            unknown=row is None,
        )  # fmt: skip


def port_free(
    asked: TransferRequest, plan: Plan, observed: Observed, givers: Collection[str | None]
) -> Iterator[Violation]:
    """A finding where somebody listens on a giver's port, on the address that it would use."""
    addresses, _ = route_of(plan, used_waivers(plan, observed, asked.waive))
    for node, snapshot in answering_nodes(plan, observed):
        if node.name not in givers or isinstance(snapshot.ports, Unreadable):
            continue
        own = _ANY | {addresses[node.name]}
        holder = next(
            (p for p in snapshot.ports if p.port == asked.port and p.address in own), None
        )
        if holder is not None:
            yield violation(
                "transfer-port",
                node.name,
                f"port {asked.port} of {node.name}, which the transfer would use, is taken",
                evidence=f"{holder.address}:{asked.port} is held by {holder.process or 'unknown'} "
                f"(pid {holder.pid or 'unknown'})",
                remedy=f"take another port: --data port={asked.port + 1}",
            )


def room_on(
    plan: Plan, observed: Observed, path: str, wanted: Mapping[str, int], mend: str
) -> Iterator[Violation]:
    """A finding for each node whose disk at `path` has less free than `wanted` bytes of it.

    `mend`: what gives room there.
    """
    for node, snapshot in answering_nodes(plan, observed):
        if node.name not in wanted or isinstance(snapshot.disks, Unreadable):
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
                remedy=f"on {node.name}: df -h {shlex.quote(path)}; {mend}",
                unknown=disk is None,
            )  # fmt: skip


# Gates before copies of backups move from one node to another.


def port_free_for_copies(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Nobody listens on the port that the giver uses for this one transfer."""
    return list(port_free(asked, plan, observed, {asked.source}))


def route_open_for_copies(
    asked: TransferRequest, plan: Plan, observed: Observed
) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    return list(route_open(asked, plan, observed, asked.source, asked.takers))


def copy_gates(
    pairs: Mapping[str, Collection[str]], port: int, waive: Collection[str]
) -> tuple[Gate, ...]:
    """All gates before copies move; `pairs` are the nodes that take, by the node that gives."""
    about = [
        gate
        for source, takers in pairs.items()
        for gate in gates_for(
            TransferRequest(source, port, waive, takers=takers),
            port_free_for_copies,
            route_open_for_copies,
        )
    ]
    return (*BEFORE, *about)


# Gates before an image moves from one node to the others.

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


def one_source_of_image(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
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


def room_for_image(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
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
        least = room_on(plan, observed, path, {name: 0}, PRUNE)
        most = room_on(plan, observed, path, {name: 3 * image.size}, PRUNE)
        severity: Severity = "block" if by_docker else "warn"
        violations += list(least) or [
            v if v.unknown else replace(v, severity=severity) for v in most
        ]
    return violations


def port_free_for_image(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Nobody listens on the port that the giver uses for this one transfer."""
    _, source, _ = _giving(asked, plan, observed)
    return list(port_free(asked, plan, observed, {source}))


def route_open_for_image(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    found, source, _ = _giving(asked, plan, observed)
    return list(route_open(asked, plan, observed, source, targets_of(found, source)))


def image_gates(asked: TransferRequest) -> tuple[Gate, ...]:
    """All gates before an image moves."""
    about = gates_for(
        asked, one_source_of_image, arch, room_for_image, port_free_for_image, route_open_for_image
    )
    return (*BEFORE, docker_known, *about)


# Gates before weights move from one node to the others.

UNNEEDED = "remove from that filesystem what is not needed"


def one_source_of_weights(
    asked: TransferRequest, plan: Plan, observed: Observed
) -> list[Violation]:
    """There is a node whose weights look whole by themselves; what is wrong there is named."""
    if asked.is_fetched:
        return []
    if asked.source is not None:
        checks = (weights.weights_incomplete, weights.weights_magic, weights.weights_cut,
                  weights.weights_whole, weights.weights_present)  # fmt: skip
        return [v for check in checks for v in check(plan, observed) if v.node == asked.source]
    return [replace(v, node=None) for v in weights.weights_present(plan, observed)][:1] or [
        violation(
            "weights-differ",
            None,
            "no node's weights are whole, or nobody said which are right",
            evidence="; ".join(
                _weights_line(plan, n, s) for n, s in answering_nodes(plan, observed)
            ),
            remedy=deploy_command(plan, "weights", "from=NODE"),
        )
    ]


def room_for_weights(asked: TransferRequest, plan: Plan, observed: Observed) -> list[Violation]:
    """Room for what the taker lacks or has otherwise: the former files stay beside the new ones."""
    wanted: dict[str, int] = {}
    giving = _weights(plan, observed, asked.source)
    for node, _ in answering_nodes(plan, observed):
        if node.name != asked.source:
            there = _weights(plan, observed, node.name)
            wanted[node.name] = sum(
                file.size
                for name, file in giving.items()
                if name not in there or differ(file, there[name])
            )
    found: list[Violation] = []
    for node in plan.rig.nodes:
        path = plan.specs[node.name].weights
        if wanted.get(node.name):
            found += room_on(plan, observed, path, {node.name: wanted[node.name]}, UNNEEDED)
    return found


def port_free_for_weights(
    asked: TransferRequest, plan: Plan, observed: Observed
) -> list[Violation]:
    """Nobody listens on the port that a giver uses for this one transfer.

    To more than two targets whoever has got the weights gives, too (operations/transfer).
    """
    names = {node.name for node in plan.rig.nodes}
    givers = names if asked.source and len(names) > 3 else {asked.source}
    return list(port_free(asked, plan, observed, givers))


def route_open_for_weights(
    asked: TransferRequest, plan: Plan, observed: Observed
) -> list[Violation]:
    """A firewall in between shows only after a minute of trying, as "no way to"."""
    names = {node.name for node in plan.rig.nodes if node.name != asked.source}
    differ = {
        v.node
        for gate in (weights.weights_present, weights.weights_equal)
        for v in gate(plan, observed)
    }
    # weights_equal names those that differ from the head, which may be the one that gets
    some = (
        names
        if asked.is_compared or (differ and asked.source != plan.rig.head.name)
        else names & differ
    )
    return list(route_open(asked, plan, observed, asked.source, some))


def weights_gates(asked: TransferRequest) -> tuple[Gate, ...]:
    """All gates before weights move; the source of `asked` is None where no node can give."""
    about = gates_for(
        asked,
        one_source_of_weights,
        room_for_weights,
        port_free_for_weights,
        route_open_for_weights,
    )
    return (*BEFORE, *about)


def _weights(plan: Plan, observed: Observed, name: str | None) -> dict[str, WeightsFile]:
    """The files of a node's weights; none where it has none, or they cannot be read."""
    for node, snapshot in answering_nodes(plan, observed):
        if node.name == name and not isinstance(snapshot.weights, Unreadable):
            found = weights_of(plan, node, snapshot)
            return {f.name: f for f in found.files} if found else {}
    return {}


def _weights_line(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    found = weights_of(plan, node, snapshot)
    if found is None or not found.exists:
        return f"{node.name}: none"
    whole = "whole" if is_whole(plan, found) else "not whole"
    return (
        f"{node.name}: {len(found.files)} files, {gib(sum(f.size for f in found.files))}, {whole}"
    )


def weights_source(plan: Plan, observed: Observed, chosen: str | None) -> str | None:
    """The node that gives: the chosen one, else the only whole one, else the first of equal ones.

    None where none is whole, or where whole ones differ and nobody said which is right.
    """
    if chosen is not None:
        return chosen
    whole = []
    for node, snapshot in answering_nodes(plan, observed):
        if not isinstance(snapshot.weights, Unreadable):
            found = weights_of(plan, node, snapshot)
            if found is not None and found.exists and is_whole(plan, found):
                whole.append(node.name)
    differing = {v.node for v in weights.weights_equal(plan, observed)} & set(whole)
    return None if not whole or (len(whole) > 1 and differing) else whole[0]
