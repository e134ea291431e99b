"""What weights has to do on a rig, decided once from one observation; the same for all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyinfra import logger, state

from deploys.common.load_and_gate import once_a_run, unreadable
from deploys.common.procedure import Procedure
from deploys.procedures.transfer.download import Download, planned, source_of
from deploys.procedures.transfer.route import Want, planned_route, wanted
from facts.observe import observe
from facts.rignode.context import real
from gates.transfer.route import TransferRequest
from gates.transfer.weights import weights_source
from gates.weights import weights as gates
from gates.weights.files import replaced, unread, weights_of
from operations.change.apply import Steps
from operations.change.node_call import StepFailed
from operations.change.run import Run
from operations.transfer.transfer import Transfer, tree
from operations.transfer.weights import differences
from schema.desired.plan import Plan
from schema.inputs.runbook_data import WeightsData
from schema.observed.files import Weights
from schema.observed.snapshot import NodeSnapshot


@dataclass(frozen=True)
class WeightsWork:
    """The steps of one weights run; everything empty when nothing is to do."""

    paths: Mapping[str, str]
    # by node, what the move replaces there: name and bytes
    replaced: Mapping[str, Sequence[tuple[str, int]]]
    # by rounds: who gives to whom at the same time
    rounds: Sequence[Sequence[Transfer]]
    hashing: frozenset[str]
    download: Download | None
    # by node, what makes the snapshot of a hub cache that came there the one that counts
    then: Mapping[str, Steps] = field(default_factory=dict)
    hashed: dict[str, Any] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Whether anything is to do."""
        return bool(self.download or self.rounds or self.hashing)


def parse_request(rig: Procedure) -> Want:
    """What --data asks for, and which node gives: the one that is named, or whose are whole."""
    data = rig.data(WeightsData)

    def ask(plan: Plan) -> TransferRequest:
        fetches = source_of(plan, data)
        source = fetches or weights_source(plan, observe(real(state), plan), data.source)
        is_compared = data.source is not None or data.prune or fetches is not None
        return TransferRequest(source, data.port, data.waive, is_compared=is_compared,
                               is_fetched=fetches is not None)  # fmt: skip

    return wanted(rig, ask)


@once_a_run
def plan(rig: Procedure) -> WeightsWork:
    """The work of this run, planned once and told once."""
    plan, snapshots, data = rig.plan, rig.snapshots, rig.data(WeightsData)
    fetches = source_of(plan, data)
    source = fetches or weights_source(plan, snapshots, data.source)
    seen = {n.name: weights_of(plan, n, snapshots[n.name]) for n in plan.rig.nodes}
    for name, weights in seen.items():
        logger.info(f"    {name}: {_line(weights)}")
    download = planned(rig)
    differ = {v.node for v in gates.weights_equal(plan, snapshots)}
    names = [n.name for n in plan.rig.nodes if n.name != source]
    if source is not None and differ and source != plan.rig.head.name:
        # weights_equal names the nodes that differ from the head; here the head may be the one.
        differ = set(names)
    targets = tuple(
        name
        for name in names
        # A source that was named is believed: node compares by the hashes beside the weights.
        if data.source is not None
        or download
        or data.prune
        or name in differ
        or name in rig.run.touched
        or not _there(seen[name])
        or _is_half(seen[name])
    )
    if source is not None and not targets and not data.verify:
        logger.info(f"    {_same(seen.values())} everywhere")
    route = planned_route(rig) if source is not None and targets else None
    rounds = [
        [Transfer(rig.run, "weights", giver, takers, route) for giver, takers in row]
        for row in (tree(source, targets) if source is not None else [])
        if route is not None
    ]
    giving = seen.get(source or "")
    part = download.part if download else _snapshot(giving)
    there = {n.name: (w and w.folder) or plan.specs[n.name].weights
             for n in plan.rig.nodes for w in [seen[n.name]]}  # fmt: skip
    fetching = [download.node] if download else []
    there |= {name: plan.specs[name].weights + part for name in (*targets, *fetching)}
    return WeightsWork(
        paths=there,
        then={
            n: _ref(plan.specs[n].weights, part, plan.rig.node(n).ssh_user)
            for n in (*targets, *fetching)
            if part
        },
        download=download,
        replaced={
            name: [(f.name, f.size) for f in replaced(giving, taking, data.prune)]
            for name in targets
            if giving and (taking := seen[name])
        },
        rounds=rounds,
        hashing=frozenset(seen) if data.verify else frozenset(),
    )


def _snapshot(giving: Weights | None) -> str:
    """What the giver's files lie below, of a model's folder in a Hugging Face cache; else empty."""
    if giving is None or giving.folder is None:
        return ""
    return giving.folder.removeprefix(giving.path)


def _ref(path: str, part: str, owner: str) -> Steps:
    """The steps that make `part` the snapshot that a model's folder stands for, as the hub's client
    does."""
    own = {"owner": owner, "group": owner}
    revision = part.rpartition("/")[2]
    return [
        {"op": "directory", "path": f"{path}/refs", "mode": "0755", **own},
        {"op": "file", "path": f"{path}/refs/main", "content": revision, "mode": "0644", **own},
    ]


def _same(weights: Iterable[Weights | None]) -> str:
    """What of weights that no gate objects to is known to be the same."""
    if unknown := unread([w for w in weights if w is not None]):
        return (
            f"the same names, sizes and ends (the contents of {unknown} files were not compared: "
            "--data verify=true reads them)"
        )
    return "files with the same sha256"


def _there(weights: Weights | None) -> bool:
    return weights is not None and weights.exists and bool(weights.files)


def _is_half(weights: Weights | None) -> bool:
    return weights is not None and weights.incomplete is not None


def _line(weights: Weights | None) -> str:
    if weights is None or not weights.exists:
        return "no weights"
    size = sum(f.size for f in weights.files)
    kept = "".join(
        f"; {row.bytes / 1e9:.2f} GB of former files are kept in {row.path}"
        for row in weights.displaced
    )
    return f"{len(weights.files)} files, {size / 1e9:.2f} GB in {weights.path}{kept}"


def verify(rig: Procedure, work: WeightsWork) -> str:
    """A line about the weights being the same everywhere; StepFailed names file and node."""
    if work.hashed:
        files = next(iter(work.hashed.values()))["files"]
        wrong = differences(
            work.hashed, lambda name: not name.startswith(".") and name[-3:] != ".md"
        )
        changed = [f"{n}: {f}" for n, a in work.hashed.items() for f in a["changed"]]
        if wrong:
            raise StepFailed(
                "; ".join(wrong[:5])
                + (f"; changed since they were hashed: {', '.join(changed)}" if changed else "")
            )
        return f"{len(files)} files with the same sha256 on {len(work.hashed)} nodes"
    plan = rig.plan
    seen = observe(rig.run.state, plan, fresh=True)
    problems = [f"{v.summary}: {v.evidence}" for gate in gates.GATES for v in gate(plan, seen)]
    if problems:
        raise StepFailed("; ".join(problems[:3]))
    if lost := unreadable(seen):
        raise StepFailed("; ".join(f"{name}: {why}" for name, why in lost.items()))
    weights = [
        weights_of(plan, node, cast(NodeSnapshot, seen[node.name])) for node in plan.rig.nodes
    ]
    where = f" on {len(weights)} nodes" if len(weights) > 1 else ""
    return f"the weights of {plan.recipe.model}: " + (f"{_same(weights)}{where}" if where else
                                                      "whole on the one node")  # fmt: skip


def revert(run: Run) -> str:
    """After a failure: a set that came whole has its names, the rest waits beside the weights."""
    run.stays_open = True
    return (
        "neither a half file nor half a set has names that an engine loads; run it again: it goes"
        f" on from here; or back: pyinfra INVENTORY deploys/rollback.py -y --data change={run.id}"
    )
