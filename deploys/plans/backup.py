"""What backup has to do on each host: which tree, what goes with it, what may go."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra import logger
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.plans.bench import served_as
from deploys.plans.fabric import planned_route, route_wanted
from deploys.plans.rig import Procedure, inventory_name, once, once_a_run
from facts.node import TreeBackupPlan, TreeBackups, TreeCopies, TreePrunePlan, fact_of, real
from gates.recipe import running_profile
from gates.transfer import TransferRequest, copy_gates
from operations.transfer import Move, Transfer
from schema.artifact import BackupPlan, BackupRow, Backups, Copies, OtherRow, PrunePlan
from schema.keys import BackupData, place_kind
from schema.plan import UNIT, Plan
from schema.render_unit import unversioned
from schema.snapshot import NodeSnapshot, Unreadable

MIB = 1 << 20


@dataclass(frozen=True)
class BackupWork:
    """One host's backup: what node's `tree backup` takes, what its dry run told, and the ids that
    are made, by host.
    """

    request: Mapping[str, Any]
    found: BackupPlan
    made: dict[str, str]


@dataclass(frozen=True)
class CopyWork:
    """One host's copy: what node's `tree copy` takes, and the backup."""

    request: Mapping[str, Any]
    row: BackupRow


def trees(rig: Procedure) -> dict[str, str]:
    """Every node's folder to back up: that of --data tree=…, else the recipe's venv. DeployError
    where the engine runs in a container.
    """
    recipe = rig.plan.recipe
    tree = rig.data(BackupData).tree or (recipe.venv.path if recipe.venv else None)
    if tree is None:
        raise DeployError(
            f"the recipe {recipe.name} runs in a container, and no image is backed up on a node; "
            "an archive of it on this machine: "
            f"pyinfra {inventory_name()} deploys/image.py -y --data save=/DIR"
        )
    return dict.fromkeys(rig.plan.requests, tree)


def plan(rig: Procedure, host: Host) -> BackupWork:
    """What to back up on a host; DeployError where it cannot tell."""
    wanted = request(rig.plan, host.name, trees(rig)[host.name], rig.snapshots[host.name])
    made: dict[str, str] = once("backups made", dict)
    return BackupWork(wanted, inspect(rig.run.state, host, wanted), made)


def plan_look(rig: Procedure, host: Host) -> list[str]:
    """The ids to read back on a host; with list=true its backups are told."""
    data = rig.data(BackupData)
    seen = backups_of_all(rig)
    if data.as_list:
        report(host, seen[host.name])
    wanted = "all" if data.verify is True else data.verify or None
    return to_verify(wanted, seen, host.name)


def request(plan: Plan, node: str, tree: str, snapshot: NodeSnapshot) -> dict[str, Any]:
    """What node's `tree backup` takes: the tree, the unit with its drop-ins and launch files as
    they are on the host, and what the recipe renders for the profile that runs there."""
    files = [document.path for document in plan.documents[node]]
    if not isinstance(snapshot.units, Unreadable):
        for unit in snapshot.units:
            if unit.name == UNIT:
                files += [path for path in (unit.fragment, *unit.drop_ins) if path]
    profile = running_profile(plan, plan.rig.node(node), snapshot)
    if profile in plan.recipe.profiles:
        plan = served_as(plan, profile)
    documents = {
        "recipe": plan.recipe.to_json(),
        "profile": profile,
        "rendered": {d.path: unversioned(d.content) for d in plan.documents[node]},
        "argv": list(plan.specs[node].argv),
    }
    return {"tree": tree, "files": sorted(set(files)), "documents": documents}


def inspect(state: State, host: Host, wanted: Mapping[str, Any]) -> BackupPlan:
    """What a backup would do here, asked without the documents; DeployError says what not."""
    text = json.dumps(wanted["documents"], sort_keys=True).encode()
    asked = {key: value for key, value in wanted.items() if key != "documents"}
    asked["documents_sha256"] = hashlib.sha256(text).hexdigest()
    found: BackupPlan = _fact(state, host, TreeBackupPlan, json.dumps(asked))
    if not found.stored:
        logger.info(f"    [{host.name}] {found.backup} is verified and holds the same files")
    return found


def backups(state: State, host: Host) -> Backups:
    """The backups on a host; DeployError says why they cannot be told."""
    found: Backups = _fact(state, host, TreeBackups)
    return found


def _fact(state: State, host: Host, fact: type, *arguments: str) -> Any:
    """A fact that must be there: without it the run stops on all hosts, before any change."""
    found = fact_of(state, host, fact, *arguments)
    if found is None:
        raise DeployError(f"{host.name}: the backups cannot be told; the line above says why")
    return found


@once_a_run
def backups_of_all(rig: Procedure) -> dict[str, Backups]:
    """The backups on every node, by name."""
    return {
        node.name: backups(rig.run.state, rig.run.host(node.name)) for node in rig.plan.rig.nodes
    }


def report(host: Host, seen: Backups) -> None:
    """The backups of a host for a person, newest first: age, size, versions, verified or not."""
    if not seen.backups:
        logger.info(f"    [{host.name}] no backup")
    for row in seen.backups:
        logger.info(f"    [{host.name}] {describe(row)}")
    for name in seen.partial:
        logger.info(f"    [{host.name}] {name}: being made, or left by a kill; the next run sweeps")
    for kept in seen.displaced:
        logger.info(f"    [{host.name}] {kept.path}: displaced by {kept.change} ({kept.status})")


def describe(row: BackupRow) -> str:
    """A backup in a line."""
    if row.versions is None or row.age_s is None or row.bytes is None:
        return f"{row.id}: NOT USABLE: {row.problem}"
    age = f"{row.age_s // 3600} h" if row.age_s >= 7200 else f"{row.age_s // 60} min"
    checked = "not verified"
    if row.verified_unix_s:
        checked = f"verified {stamped(row.verified_unix_s)}"
    if row.problem:
        checked = f"NOT USABLE: {row.problem}"
    size = f"{row.bytes / MIB:.0f} MiB of {(row.apparent_bytes or 0) / MIB:.0f}"
    copies = "".join(f"; copy in {copy.place}, read {stamped(copy.unix_s)}" for copy in row.copies)
    return f"{row.id}: {age} old, {row.tree}, {row.versions.text}, {size}, {checked}{copies}"


def stamped(unix_s: float) -> str:
    """A time for a person, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


@once_a_run
def copies_of_all(rig: Procedure) -> dict[str, Copies]:
    """Where copies of backups lie, as every node tells it, by name."""
    return {
        node.name: _fact(rig.run.state, rig.run.host(node.name), TreeCopies)
        for node in rig.plan.rig.nodes
    }


def newest_of(rig: Procedure, node: str) -> BackupRow | None:
    """The newest verified backup of a node's tree."""
    tree = trees(rig)[node]
    rows = [row for row in backups_of_all(rig)[node].backups if row.tree == tree]
    return next((row for row in rows if row.verified_unix_s and not row.problem), None)


def nothing_to_copy(rig: Procedure, node: str) -> DeployError:
    """The refusal where there is no verified backup of the tree."""
    return DeployError(
        f"{node}: no verified backup of {trees(rig)[node]} to copy; make one first: pyinfra "
        f"{inventory_name()} deploys/backup.py -y"
    )


def plan_copy(rig: Procedure, host: Host) -> CopyWork:
    """What to copy from a host to another disk of it; DeployError where nothing is to copy."""
    newest = newest_of(rig, host.name)
    if newest is None:
        raise nothing_to_copy(rig, host.name)
    return CopyWork({"backup": newest.id, "to": rig.data(BackupData).to}, newest)


def plan_take(rig: Procedure) -> dict[str, Any]:
    """What node's `tree take` takes; empty where a node has the backup: it is that one's alone."""
    data = rig.data(BackupData)
    if any(row.id == data.take for seen in backups_of_all(rig).values() for row in seen.backups):
        return {}
    return {"backup": data.take, **({"from": data.source} if data.source else {})}


def to_verify(wanted: str | None, seen: Mapping[str, Backups], node: str) -> list[str]:
    """The ids to read back on a node: the one that is named, where it is there, or all of them.

    DeployError when no node has the one that is named.
    """
    here = {name: [row.id for row in each.backups] for name, each in seen.items()}
    known = sorted({id_ for ids in here.values() for id_ in ids})
    if wanted not in (None, "all") and wanted not in known:
        raise DeployError(
            f"no node has a backup {wanted}; known: {', '.join(known[-5:]) or 'none'}; see them "
            f"with: pyinfra {inventory_name()} deploys/backup.py -y --data list=true"
        )
    return [id_ for id_ in here[node] if wanted in ("all", id_)]


def plan_prune(host: Host, asked: Mapping[str, Any]) -> PrunePlan:
    """What a prune would remove here; DeployError says why it cannot be told."""
    found: PrunePlan = _fact(real(host.state), host, TreePrunePlan, json.dumps(asked))
    return found


# Which backups go to which node, or come back from it: `to=NODE`, `take=ID`.

# giver, taker, the backup, the name of the host that it is of
Asked = tuple[str, str, str, str]


@once_a_run
def copies_asked(rig: Procedure) -> tuple[Asked, ...]:
    """The backups that go from node to node in this run; DeployError where they cannot."""
    data = rig.data(BackupData)
    if is_node(data.to):
        return tuple(_to(rig, str(data.to)))
    if data.take and not (data.source and not is_node(data.source)):
        return tuple(_back(rig, data.take, data.source))
    return ()


def is_node(place: str | None) -> bool:
    """Whether a place of copies is a node of the rig."""
    return place is not None and place_kind(place) == "node"


def _to(rig: Procedure, to: str) -> Iterator[Asked]:
    rig.asked_nodes(to, "to")
    givers = [node.name for node in rig.plan.rig.nodes if node.name != to]
    if not givers:
        raise DeployError(f"--data to={to}: it is the only node; name a folder of another disk")
    found = {name: row for name in givers if (row := newest_of(rig, name))}
    if not found:
        raise nothing_to_copy(rig, givers[0])
    known = copies_of_all(rig)
    for name, row in found.items():
        yield name, to, row.id, known[name].host


def _back(rig: Procedure, backup: str, source: str | None) -> Iterator[Asked]:
    names = rig.asked_nodes(source, "from")
    known = copies_of_all(rig)
    found = {
        (name, row.host): row
        for name in names
        for row in known[name].others
        if row.backup == backup and not row.problem
    }
    if source is not None and not found:
        kept = ", ".join(row.backup for row in known[source].others[:5]) or "none"
        raise DeployError(f"{source} keeps no whole copy of {backup}; it keeps: {kept}")
    here = backups_of_all(rig)
    if any(row.id == backup for seen in here.values() for row in seen.backups):
        return
    moves = [
        (giver, name, backup, known[name].host)
        for name in rig.asked_nodes(None)
        if (giver := _giver(found, known[name].host, name))
    ]
    if found and not moves:
        giver, owner = next(iter(found))
        raise DeployError(
            f"{giver} keeps {backup} for a host called {owner}, and no node of the rig calls "
            "itself so; on the node that it is of: "
            f"sudo hostnamectl set-hostname {shlex.quote(owner)}"
        )
    yield from moves


def _giver(found: Mapping[tuple[str, str], OtherRow], host: str, node: str) -> str | None:
    return next((name for name, of in found if of == host and name != node), None)


def gate_copies(rig: Procedure) -> None:
    """Whether: the ways over the fabric, nobody else at work; DeployError when a finding blocks."""
    data = rig.data(BackupData)
    pairs: dict[str, list[str]] = {}
    for giver, taker, _, _ in copies_asked(rig):
        pairs.setdefault(giver, []).append(taker)
    want = route_wanted(rig, lambda plan: TransferRequest(None, data.port, data.waive))
    rig.gate(copy_gates(pairs, data.port, data.waive), want.plan)


@once_a_run
def moves(rig: Procedure) -> list[Move]:
    """What goes where, in this order; the same objects for every host."""
    keeps = is_node(rig.data(BackupData).to)
    return [
        Move(Transfer(rig.run, "tree", giver, (taker,), planned_route(rig)), backup, owner, keeps)
        for giver, taker, backup, owner in copies_asked(rig)
    ]
