"""A stand-in Kubernetes rig for the plan tests: its data, its host, its library folder."""

from __future__ import annotations

from typing import Any

from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot
from schema.render import library_files, limit_files
from tests.plans.support.scenario import HEAD, Scenario, Snapshots
from tests.unit.builders import snapshots
from tests.unit.builders.library_parts import BASE

ADDRESS = "127.0.0.2"
DATA: dict[str, object] = {
    "lan_address": ADDRESS, "ssh_user": "olares", "rig": "olares", "namespace": "ai",
    "deployment": "lucebox", "kubectl": "kubectl",
}  # fmt: skip


def one(**changes: object) -> list[Any]:
    """The inventory: one host, with its data changed."""
    return [(HEAD, {**DATA, **changes})]


def bare(plan: Plan) -> Snapshots:
    """A host on which rigbook has left nothing; docker and driver are not asked for."""
    seen = snapshots.healthy(plan)[HEAD]
    paths = (*library_files.FILES, *limit_files.FILES[1:])
    absent = {"sha256": None, "size": None, "mode": None, "uid": None, "gid": None, "content": None}
    files = [{"path": path, "kind": "absent", **absent} for path in paths]
    values = seen.model_dump(mode="json")
    return {HEAD: NodeSnapshot.model_validate({**values, "files": files, "units": []})}


def scenario(*arguments: str, faults: dict[str, object] | None = None, **more: Any) -> Scenario:
    """A run against the stand-in; `faults` are the host's."""
    return Scenario(
        arguments, more.pop("seen", bare), hosts=more.pop("hosts", one()),
        faults={f"{HEAD}:{key}": value for key, value in (faults or {}).items()}, **more,
    )  # fmt: skip


def said(look: Any) -> Any:
    """A typed answer as the host sends it."""
    return look.model_dump(mode="json")


def mapped(sha256: str, inode: int = 7) -> dict[str, object]:
    """What a fresh process maps."""
    return {"path": BASE, "inode": inode, "sha256": sha256, "said": ""}
