"""The doctor of a Kubernetes rig: one look at host and library, lowest layer first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.procedures.cluster.completion import ask_once, where
from deploys.procedures.cluster.gpu_limit import look as deployment
from deploys.procedures.cluster.gpu_limit import models
from deploys.procedures.cluster.libvgpu import look
from deploys.procedures.engine.doctor import as_row, tell
from facts.observe import observe, real
from gates.cluster import gpu_limit, vgpu_library
from gates.cluster.mounted_library import state_of
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from gates.core.waiver import blocking
from gates.doctor.rank import Finding, explain
from gates.gate_sets import CHANGING, check
from schema.desired.kubernetes import ClusterPlan
from schema.observed.snapshot import NodeSnapshot, Unreadable

# a doctor does not wait as a start does
ANSWER_S = 15


def diagnose_cluster(state: State, plan: ClusterPlan) -> Sequence[Finding]:
    """All findings about the rig, the likeliest cause first."""
    observed: Mapping[str, Any] = observe(state, plan)  # type: ignore[arg-type]
    found = check(plan, observed, CHANGING)  # type: ignore[arg-type]
    node = plan.rig.head.name
    if isinstance(observed[node], NodeSnapshot):
        now = look(plan)
        found += [*vgpu_library.readable(node, now), *vgpu_library.preloaded(node, now)]
        found += [*vgpu_library.stayed(node, now), *vgpu_library.old_mapped(node, now)]
        found += [*models(plan), *_of_deployment(plan), *_of_answer(state, plan)]
    return explain(found, {node: 0})


def _of_deployment(plan: ClusterPlan) -> list[Violation]:
    """What is wrong with the Deployment; that it cannot be read is a finding, too."""
    node = plan.rig.head.name
    try:
        now = deployment(plan)
    except DeployError as error:
        return [section_unreadable(node, "cluster", Unreadable(unreadable=str(error)))]
    return [
        *gpu_limit.pods_run(node, now),
        *gpu_limit.limits_readable(node, now),
        *gpu_limit.limits_inside(node, now),
        *gpu_limit.limit_enough(node, now),
    ]


def _of_answer(state: State, plan: ClusterPlan) -> list[Violation]:
    """No real completion; not asked for where group_data does not say how."""
    if plan.data.model is None:
        return []
    node = plan.rig.head.name
    answer = ask_once(real(state), real(state).inventory.get_host(node), plan, ANSWER_S)
    if answer.answered:
        return []
    return [
        violation(
            "no-answer",
            node,
            f"{plan.data.model} gives no real answer at {where(plan)}",
            evidence=answer.detail,
            remedy="mend the findings above first, then: pyinfra INVENTORY deploys/serve.py",
        )
    ]


def report_cluster(plan: ClusterPlan, findings: Sequence[Finding]) -> None:
    """Tells the findings; DeployError (exit status 1) when one of them blocks."""
    if plan.data.as_json:
        print(json.dumps([as_row(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            tell(finding)
    if blocking(findings):
        raise DeployError(
            f"{len(blocking(findings))} finding(s) block, the likeliest cause first: "
            f"{findings[0].code} on {findings[0].node or 'the rig'}"
        )
    known = state_of(look(plan))
    swapped = (
        f"{known.target} is ours ({known.ours[:12]}), guard {'on' if known.guard else 'off'}"
        if known
        else "no library was swapped"
    )
    logger.info(f"    {plan.rig.head.name}: {swapped}; nothing blocks")
