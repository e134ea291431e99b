"""The first two paragraphs of the deploys of a Kubernetes rig, and its way back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pyinfra import state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import ROOT, data_of, judged, once
from facts.observe import observe, real
from facts.rignode.call import AskFailed, ask_node
from gates.core.check import Gate
from gates.core.violation import Violation
from gates.gate_sets import check
from operations.change.node_call import StepFailed, call
from schema.core.base import Frozen
from schema.core.errors import SpecError
from schema.desired.kubernetes import ClusterPlan, cluster_plan, is_cluster
from schema.observed.snapshot import NodeSnapshot
from schema.render.library_files import FILES, GUARD_PATH, GUARD_TIMER

UNDO_TIMEOUT_S = 900
M = TypeVar("M", bound=Frozen)


def on_cluster() -> bool:
    """Whether this run's inventory is a Kubernetes rig."""
    return any(is_cluster(data_of(host)[0]) for host in state.inventory)


def load_cluster() -> ClusterPlan:
    """What inventory, group_data and --data ask for; DeployError says what is wrong with them."""

    def make() -> ClusterPlan:
        if Path.cwd().resolve() != ROOT:
            raise DeployError(f"start pyinfra in rigbook's own folder: cd {ROOT}")
        if not on_cluster():
            raise DeployError(
                "this rig has no Kubernetes: `deployment` is missing in its data; "
                "see inventory/olares.py and group_data/olares.py for the shape"
            )
        pairs = {host.name: data_of(host) for host in state.inventory}
        try:
            return cluster_plan(
                {name: merged for name, (merged, _) in pairs.items()},
                {name: sources for name, (_, sources) in pairs.items()},
                FILES,
                (GUARD_PATH, GUARD_TIMER),
            )
        except SpecError as error:
            raise DeployError(str(error)) from None

    plan: ClusterPlan = once("cluster-plan", make)
    return plan


def looked(plan: ClusterPlan, verb: str, request: dict[str, Any], kind: type[M], key: str) -> M:
    """A reading verb's typed answer, asked once a run; DeployError when there is none."""

    def make() -> M:
        host = state.inventory.get_host(plan.rig.head.name)
        try:
            return kind.model_validate(ask_node(state, host, verb, request))
        except AskFailed as error:
            raise DeployError(str(error)) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DeployError(
                f"{host.name}: {verb}: does not fit at {where}: {first['msg']}"
            ) from None

    answer: M = once(f"looked:{key}", make)
    return answer


def gate_cluster(
    plan: ClusterPlan, gates: Sequence[Gate], more: Callable[[], Sequence[Violation]]
) -> tuple[NodeSnapshot, tuple[tuple[str, str], ...]]:
    """Whether: the host's snapshot and the waivers used, or DeployError with every finding.

    `more` gives this deploy's own findings; it is asked once the host has answered.
    """

    def make() -> Any:
        observed: Mapping[str, Any] = observe(state, plan)  # type: ignore[arg-type]
        found = check(plan, observed, gates)  # type: ignore[arg-type]
        snapshot = observed[plan.rig.head.name]
        if isinstance(snapshot, NodeSnapshot):
            found = sorted([*found, *more()], key=lambda v: (v.layer, v.severity, v.code))
        return snapshot, judged(found, plan.data.waive, plan.data.reason)

    snapshot, waivers = once("gate-cluster", make)
    return snapshot, waivers


def undo_on(state: State, node: str, change: str, overwrite: Collection[str]) -> None:
    """Undoes a change on one host; StepFailed when it did not come back whole."""
    request = {"change": change, "overwrite": sorted(overwrite), "start_units": True}
    host = real(state).inventory.get_host(node)
    try:
        answer = call(real(state), host, "undo", request, UNDO_TIMEOUT_S)
    except StepFailed as error:
        if error.code != "no_change":
            raise
        return
    if answer.get("status") != "ROLLED_BACK":
        raise StepFailed(f"{node}: change {change} is {answer.get('status')}: {answer['detail']}")


def roll_back(state: State, change: str, nodes: Sequence[str], overwrite: tuple[str, ...]) -> str:
    """Undoes a chosen change; the line to tell, or StepFailed."""
    for node in nodes:
        undo_on(state, node, change, overwrite)
    return f"change {change} ROLLED_BACK"
