"""The first download of a recipe's weights: what the hub has, and what one node lacks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import ask_all
from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from facts.local.secret_values import SecretMissing, value_of
from gates.transfer.route import room_on
from gates.transfer.weights import UNNEEDED
from gates.weights.files import SUFFIXES, weights_of
from schema.core.parse import misfit
from schema.desired.plan import Plan
from schema.inputs.runbook_data import WeightsData
from schema.observed.files import HubFile, HubModel

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
