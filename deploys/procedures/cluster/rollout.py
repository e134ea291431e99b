"""A rollout while it is under way, and how the new pod proves that it has its values."""

from __future__ import annotations

import time
from collections.abc import Mapping

from deploys.common.procedure import Procedure
from deploys.procedures.cluster.completion import wait_for_completion
from deploys.procedures.cluster.gpu_limit import Patch, assignments, deployment_request, title
from operations.change.node_call import StepFailed
from operations.cluster.pod_status import staying, wait_for_rollout
from schema.desired.plan import Plan
from schema.observed.kube import KubeLook, Pod


def verify(rig: Procedure, work: Patch) -> str:
    """A line about the new pod and its values; StepFailed once it cannot or does not come up."""
    plan, host = rig.plan, rig.run.host(rig.plan.rig.head.name)
    asked = deployment_request(plan, variables=list(work.values), edit=dict(work.edits))
    deadline = time.monotonic() + plan.chart.patience_s
    now = wait_for_rollout(
        rig.run.state, host, asked, work.generation, plan.chart.patience_s, work.former
    )
    line = _values_seen(plan, now, work)
    line += "".join(f"; {row['cache']}" for row in rig.run.did[host.name] if "cache" in row)
    return f"{line}; {wait_for_completion(rig.run.state, plan, deadline, work.former)}"


def _values_seen(plan: Plan, now: KubeLook, work: Patch) -> str:
    """The line of a proof: template and process have the values. StepFailed when one has not."""
    for name, value in {**work.values, **work.edits}.items():
        if now.variables[name].value != value:
            raise StepFailed(
                f"{name} is {now.variables[name].value!r} again: overwritten by others"
            )
    pods = [pod for pod in staying(now) if pod.phase == "Running"]
    seen = [pod for pod in pods if pod.live.processes]
    for pod in seen:
        _same_inside(pod, work.values)
    if not seen:
        inside = "no process of the pod is seen from this host, so only the template tells"
    else:
        inside = f"seen in {sum(p.live.processes for p in seen)} processes of {seen[0].name}"
        alone = [n for n in work.values if not any(p.live.values.get(n) for p in seen)]
        alone += map(repr, work.edits.values())
        inside += f", {', '.join(alone)} in the template alone" if alone else ""
    has = assignments(work.values, work.edits)
    return f"{title(plan, now)} has {has}; {now.rollout.words}; {inside}"


def _same_inside(pod: Pod, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        other = [found for found in pod.live.values.get(name, ()) if found != value]
        if other:
            raise StepFailed(
                f"{pod.name}: its process has {name}={other[0]}, not {value}: the device plugin "
                "(or the image's start) sets it after the template"
            )
