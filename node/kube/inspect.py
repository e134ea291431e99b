"""kube look: a Deployment, its pods and what they say, as the cluster has it now. Read-only."""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from node.core import mapped_files, proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.kube import deployment as kube_deployment
from node.kube import kubectl, limit_state, names, patch
from node.kube.deployment import Place
from node.rules.secret import masked_line

TAIL = 200
# the wait ends at once with these: they do not mend themselves in time
_STUCK = ("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
          "CreateContainerConfigError", "CreateContainerError", "RunContainerError")  # fmt: skip
_KEYS = (
    "kubectl",
    "kubeconfig",
    "namespace",
    "deployment",
    "container",
    "variables",
    "edit",
    "set",
    "logs",
)


def inspect_deployment(request: Any) -> Json:
    """Gives the Deployment, its rollout, pods, newest event, log lines, and variables' values.

    `variables`: whose places are told, in the template and in the running processes. `edit`: of
    each pair of texts the place of the one that stands, by the old one. `set`: what a patch of
    these and of the edits would change, by the server's own dry run. `logs` false: no log is read.
    """
    body = validate.keys(request, "request", _KEYS, ("kubectl", "namespace", "deployment"))
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    space = names.name(body["namespace"], "namespace")
    wanted = body.get("container")
    box_name = None if wanted is None else names.name(wanted, "container")
    rows = validate.array(body.get("variables") or [], "variables", 50)
    asked = [names.variable(row, f"variables[{n}]") for n, row in enumerate(rows)]
    edits = names.edits_of(body.get("edit") or {}, "edit")
    deployment = get(client, space, names.name(body["deployment"], "deployment"))
    box = kube_deployment.container_of(deployment, box_name)
    found = pods(client, space, deployment)
    logs = validate.boolean(body.get("logs", True), "logs")
    answer: Json = {
        "name": deployment["metadata"]["name"],
        "uid": deployment["metadata"]["uid"],
        "resource_version": deployment["metadata"]["resourceVersion"],
        "container": box["name"],
        "containers": [b["name"] for b in deployment["spec"]["template"]["spec"]["containers"]],
        "rollout": rollout(deployment),
        "variables": {
            **{key: place_of(partial(kube_deployment.find, box, key)) for key in asked},
            **{
                old: place_of(partial(kube_deployment.find_text, box, old, new))
                for old, new in edits.items()
            },
        },
        "pods": [told(client, space, pod, box["name"], asked, logs) for pod in found],
        "event": event(client, space, [pod["metadata"]["name"] for pod in found]),
        "changes": None,
        "guard": limit_state.told(deployment, space),
    }
    if body.get("set") is not None:
        values = names.values_of(body["set"], "set")
        answer["changes"] = patch.rehearse(client, space, deployment, box, values, edits)
    return answer


def get(client: kubectl.Client, space: str, deployment: str) -> Json:
    """Gives the Deployment. Raises NodeError with kubectl's own words."""
    try:
        found: Json = client.json(["get", "deployment", deployment, f"--namespace={space}"])
    except CannotRead as error:
        gone = "NotFound" in str(error)
        raise NodeError(
            str(error), "no_deployment" if gone else "no_cluster",
            "see: kubectl get deployments -A" if gone else "see: kubectl cluster-info",
        ) from None  # fmt: skip
    return found


def place_of(find: Callable[[], Place]) -> Json:
    """Gives where a variable or a text stands and its value; or why that cannot be told."""
    try:
        place = find()
    except NodeError as error:
        return {"kind": "unclear", "index": -1, "value": None, "why": str(error)}
    return {"kind": place.kind, "index": place.at, "value": place.value, "why": None}


def rollout(deployment: Json) -> Json:
    """Gives what `kubectl rollout status` looks at: done, failed, and the numbers in words."""
    meta, spec, now = deployment["metadata"], deployment["spec"], deployment.get("status") or {}
    wanted = spec.get("replicas", 1)
    updated, total = now.get("updatedReplicas", 0), now.get("replicas", 0)
    ready = now.get("availableReplicas", 0)
    seen = now.get("observedGeneration", 0) >= meta["generation"]
    rows = {row["type"]: row for row in now.get("conditions") or []}
    late = (rows.get("Progressing") or {}).get("reason") == "ProgressDeadlineExceeded"
    done = seen and updated >= wanted and total <= updated and ready >= updated
    words = f"{updated} of {wanted} updated, {ready} available, {total} in all"
    return {"done": done, "failed": seen and late and not done, "words": words, "wanted": wanted,
            "generation": meta["generation"]}  # fmt: skip


def pods(client: kubectl.Client, space: str, deployment: Json) -> list[Json]:
    """Gives the Deployment's pods, newest first: those of its own ReplicaSets, by their owner's
    uid. Labels are anybody's; they only spare the server the other pods.
    """
    labels = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    more = [f"--namespace={space}", *([f"--selector={selector}"] if selector else [])]
    owners = {deployment["metadata"]["uid"]}
    for kind in ("replicasets", "pods"):
        items = [row for row in client.json(["get", kind, *more])["items"]
                 if any(ref.get("controller") and ref.get("uid") in owners
                        for ref in row["metadata"].get("ownerReferences") or [])]  # fmt: skip
        owners = {row["metadata"].get("uid") for row in items}
    return sorted(items, key=lambda p: str(p["metadata"]["creationTimestamp"]), reverse=True)[:20]


def told(
    client: kubectl.Client, space: str, pod: Json, box: str, names: list[str], logs: bool
) -> Json:
    """Gives one pod: phase, readiness, why it waits, restarts, its last log lines."""
    status = pod.get("status") or {}
    rows = {row["name"]: row for row in status.get("containerStatuses") or []}
    mine = rows.get(box) or {}
    waiting = ((mine.get("state") or {}).get("waiting")) or {}
    restarts = int(mine.get("restartCount", 0))
    stuck = waiting.get("reason") if waiting.get("reason") in _STUCK else None
    pod_name = pod["metadata"]["name"]
    uid = pod["metadata"]["uid"]
    return {
        "name": pod_name,
        "uid": uid,
        "hash": str((pod["metadata"].get("labels") or {}).get("pod-template-hash", "")),
        "phase": str(status.get("phase", "")),
        "leaving": "deletionTimestamp" in pod["metadata"],
        "ready": sum(1 for row in rows.values() if row.get("ready")),
        "containers": len((pod.get("spec") or {}).get("containers") or []),
        "restarts": restarts,
        "waiting": str(waiting.get("reason") or "") or None,
        "stuck": stuck,
        "age_s": age(status.get("startTime")),
        "log": log_of(client, space, pod_name, box, bool(stuck and restarts)) if logs else [],
        "live": live(uid, names),
    }


def age(stamp: Any) -> float | None:
    """Gives how many seconds ago a pod was taken by its node; None for one that was not yet."""
    try:
        return time.time() - calendar.timegm(time.strptime(str(stamp), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None


def log_of(client: kubectl.Client, space: str, pod: str, box: str, previous: bool) -> list[str]:
    """Gives a container's last log lines (of its last life where it is in a crash loop)."""
    words = ["logs", pod, f"--namespace={space}", f"--container={box}", f"--tail={TAIL}"]
    try:
        done = client.run([*words, "--previous"] if previous else words, 8)
    except CannotRead:
        return []
    return [masked_line(line)[:500] for line in done.out.splitlines()] if done.rc == 0 else []


def event(client: kubectl.Client, space: str, names: list[str]) -> str | None:
    """Gives the newest event of the pods, in a line; None where there is none to be read."""
    try:
        items = client.json(["get", "events", f"--namespace={space}"])["items"]
    except CannotRead:
        return None
    rows: list[tuple[str, str]] = []
    for item in items:
        about = (item.get("involvedObject") or {}).get("name")
        if about in names:
            when = item.get("lastTimestamp") or item.get("eventTime") or ""
            text = " ".join(str(item.get("message", "")).split())[:200]
            rows.append((str(when), f"{item.get('reason', '')}: {text}"))
    return max(rows)[1] if rows else None


def live(uid: str, names: list[str]) -> Json:
    """Gives what the pod's processes on this host really have of the variables.

    The plugin may inject the same variable: only the process tells which one won.
    """
    found: list[Json] = []
    if not names:
        return {"processes": 0, "values": {}}
    for pid in proc.pids():
        if mapped_files.pod_of(proc.cgroup(pid)) == uid and os.path.exists(f"/proc/{pid}/exe"):
            environ = proc.environ(pid)
            found.append({key: environ.get(key) for key in names})
    # a pause container has none of them
    values = {key: sorted({row[key] for row in found if row[key] is not None}) for key in names}
    return {"processes": len(found), "values": values}
