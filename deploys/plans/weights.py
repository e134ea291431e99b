"""What weights has to do on a rig, decided once from one observation; the same for all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import ask_all
from deploys.plans.fabric import Want, planned_route, route_wanted
from deploys.plans.rig import Procedure, once_a_run, unreadable
from facts.local import SecretMissing, value_of
from facts.node import observe, real
from gates import weights as gates_weights
from gates.transfer import UNNEEDED, TransferRequest, room_on, weights_source
from gates.weights import SUFFIXES, replaced, unread, weights_of
from operations.apply import Steps
from operations.run import Run, StepFailed
from operations.transfer import Transfer, differences, tree
from schema.core import misfit
from schema.keys import WeightsData
from schema.plan import Plan
from schema.snapshot import HubFile, HubModel, NodeSnapshot, Weights

# The first download of a recipe's weights: what the hub has, and what one node lacks of it.

LOOK_S = 150
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# What the engine's variables say of the hub's client counts, but for its being offline.
_PREFIX = "HF_"
_CACHE = "models--"


@dataclass(frozen=True)
class Download:
    """A download onto `node`: what node's `weights download` takes, and what lacks there.

    `path` is where the files lie then, `part` what of it lies below the recipe's path.
    """

    node: str
    path: str
    part: str
    request: Mapping[str, Any]
    words: str
    lacking: int


def source_of(plan: Plan, data: WeightsData) -> str | None:
    """The node that downloads: the one that is named, else the head; None: nothing is asked for."""
    return (data.source or plan.rig.head.name) if data.download else None


@once_a_run
def planned(rig: Procedure) -> Download | None:
    """The download of this run, told once; None where none is asked for, or nothing lacks.

    DeployError when the hub cannot be asked, or there is no room.
    """
    plan, data = rig.plan, rig.data(WeightsData)
    node = source_of(plan, data)
    if node is None or data.download is None:
        return None
    repo, _, revision = data.download.partition("@")
    asked = _where(plan, node, repo, revision or "main")
    answer = ask_all(rig.run.state, "weights hub", {node: asked}, LOOK_S)[node]
    try:
        model = HubModel.model_validate(answer)
    except ValidationError as error:
        raise DeployError(f"{node}: the host's answer {misfit(error)}") from None
    path = plan.specs[node].weights
    is_cache = path.rpartition("/")[2].startswith(_CACHE)
    part = f"/snapshots/{model.commit}" if is_cache else ""
    files = _chosen(plan, path, model)
    size = sum(file.size for file in files)
    logger.info(
        f"    {repo}@{revision or 'main'} is commit {model.commit}: {len(files)} files, "
        f"{size / 1e9:.2f} GB" + _left_out(model, files)
    )
    lacking = _lacking(rig, node, files, part)
    if not lacking:
        logger.info(f"    {node}: all of them are in {path}{part}")
        return None
    need = sum(file.size for file in lacking)
    rig.gate_more(list(room_on(plan, rig.snapshots, path, {node: need}, UNNEEDED)))
    return Download(
        node=node,
        path=path + part,
        part=part,
        request={
            **asked,
            "revision": model.commit,
            "path": path + part,
            "files": [file.model_dump() for file in files],
        },
        words=f"download {len(lacking)} of {len(files)} files, {need / 1e9:.2f} GB, of {repo} at "
        f"{model.commit} into {path}{part}, with the hub's client in {_client(asked)}",
        lacking=need,
    )


def _where(plan: Plan, node: str, repo: str, revision: str) -> dict[str, Any]:
    """What both verbs take: the repository, and in which environment the hub's client runs."""
    spec, box = plan.specs[node], plan.recipe.container
    environ = {k: v for k, v in spec.environ.items() if k.startswith(_PREFIX) or "proxy" in k}
    place: dict[str, Any] = {"image": box.image} if box else {"venv": spec.venv}
    owner = plan.rig.node(node).ssh_user
    return {"repo": repo, "revision": revision, "owner": owner, "environ": environ, **place,
            "token": _token(plan, node)}  # fmt: skip


def _client(asked: Mapping[str, Any]) -> str:
    return str(asked.get("image") or asked["venv"])


def _token(plan: Plan, node: str) -> dict[str, object] | None:
    """The recipe's token for the hub as node takes it, by its name; None where it names none."""
    for name in TOKENS:
        source = plan.recipe.secrets.get(name)
        if source is None:
            continue
        try:
            value = value_of(name, source)
        except SecretMissing as error:
            raise DeployError(f"{error}; mend: {error.remedy}") from None
        if value is not None:
            return {"name": name, "value": value}
        return {"name": name, "node_file": plan.specs[node].secrets[name].node_file}
    return None


def _chosen(plan: Plan, path: str, model: HubModel) -> tuple[HubFile, ...]:
    """The files that the recipe's loader has a use for: without weights of other formats; the one
    file, where the weights are one. DeployError when there is none of its format.
    """
    suffix = f".{plan.recipe.weights.format}"
    others = tuple(s for s in SUFFIXES if s != suffix)
    seen = [f for f in model.files if not any(p.startswith(".") for p in f.name.split("/"))]
    files = tuple(f for f in seen if not f.name.endswith(others))
    if path.endswith(suffix):
        files = tuple(f for f in seen if f.name == path.rpartition("/")[2])
    if not any(f.name.endswith(suffix) for f in files):
        wanted = path.rpartition("/")[2] if path.endswith(suffix) else f"file of {suffix}"
        raise DeployError(
            f"commit {model.commit} has no {wanted} among its {len(model.files)} files; the recipe "
            f"loads {plan.recipe.weights.format}"
        )
    return files


def _left_out(model: HubModel, files: Sequence[HubFile]) -> str:
    out = [file for file in model.files if file not in files]
    size = sum(file.size for file in out)
    return f"; {len(out)} others, {size / 1e9:.2f} GB, are left out" if out else ""


def _lacking(rig: Procedure, node: str, files: Sequence[HubFile], part: str) -> list[HubFile]:
    """The files that the node has not, or of which it does not know whether they are the hub's."""
    found = weights_of(rig.plan, rig.plan.rig.node(node), rig.snapshots[node])
    where = rig.plan.specs[node].weights + part
    here = found is not None and (found.folder or found.path) == where
    there = {f.name: f for f in found.files} if found and here else {}
    return [
        file
        for file in files
        if file.name not in there
        or there[file.name].size != file.size
        or there[file.name].sha256 is None
        or (file.sha256 is not None and there[file.name].sha256 != file.sha256)
    ]


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

    return route_wanted(rig, ask)


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
    differ = {v.node for v in gates_weights.weights_equal(plan, snapshots)}
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
    problems = [
        f"{v.summary}: {v.evidence}" for gate in gates_weights.GATES for v in gate(plan, seen)
    ]
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
