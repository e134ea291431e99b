"""The pod that an engine runs in, and the Deployment that made it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from node.core import masking, proc
from node.core.errors import CannotRead, Json, NodeError
from node.kube import kubectl
from node.rules.secret import MASK

# kubepods.slice/…-pod1234_…​.slice of systemd's driver, kubepods/…/pod1234-… of cgroupfs
_POD = re.compile(r"kubepods.*pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")
# what a pod is given to end by itself where its spec does not say
GRACE_S = 30
_SHM = "/dev/shm"
# a quantity as charts write sizes (kubernetes.io, "Resource Management": units of memory)
_SIZE = re.compile(r"(\d+)([KMG]?)(i?)")
# the cluster's own token, which no chart asks for
_TOKEN = "/var/run/secrets/kubernetes.io/"


def uid_of(cgroup: str) -> str | None:
    """Gives the UID of the pod in a cgroup path, or None."""
    found = _POD.search(cgroup)
    return found.group(1).replace("_", "-") if found else None


def _owner(row: Json, kind: str) -> str | None:
    """Gives the name of the owner of that kind, or None."""
    for owner in row["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == kind:
            return str(owner["name"])
    return None


def _deployment(client: kubectl.Client, pod: Json) -> Json | None:
    """Gives the Deployment above a pod, or None."""
    made_by = _owner(pod, "ReplicaSet")
    if made_by is None:
        return None
    where = ["--namespace", pod["metadata"]["namespace"]]
    name = _owner(client.json(["get", "replicaset", made_by, *where]), "Deployment")
    if name is None:
        return None
    found: Json = client.json(["get", "deployment", name, *where])
    return found


def _volumes(pod: Json, box: Json) -> list[Json]:
    """Gives the mounts of a container that come from the host."""
    paths = {row["name"]: row["hostPath"]["path"] for row in pod["spec"].get("volumes") or []
             if "hostPath" in row}  # fmt: skip
    return [
        {
            "source": paths[row["name"]],
            "target": row["mountPath"],
            "read_only": bool(row.get("readOnly")),
        }
        for row in box.get("volumeMounts") or []
        if row["name"] in paths
    ]


def _shm_bytes(pod: Json, box: Json) -> int:
    """Gives the limit of what is mounted in memory at /dev/shm; 0 where none is told."""
    names = [row["name"] for row in box.get("volumeMounts") or [] if row["mountPath"] == _SHM]
    for row in pod["spec"].get("volumes") or []:
        size = _SIZE.fullmatch(str((row.get("emptyDir") or {}).get("sizeLimit", "")))
        if row["name"] in names and size:
            step = 1024 if size.group(3) else 1000
            return int(size.group(1)) * int(step ** ("KMG".find(size.group(2) or "-") + 1))
    return 0


def _others(pod: Json, box: Json) -> Iterator[str]:
    """Gives what a recipe has no key for: volumes of the cluster's, and limits as HAMi's."""
    kinds = {row["name"]: next((key for key in row if key != "name"), "volume")
             for row in pod["spec"].get("volumes") or []}  # fmt: skip
    shm = _shm_bytes(pod, box)
    for row in box.get("volumeMounts") or []:
        kind, path = kinds.get(row["name"], "volume"), row["mountPath"]
        told = kind == "hostPath" or path.startswith(_TOKEN) or (path == _SHM and shm)
        if not told:
            yield f"{kind} {row['name']} at {path}"
    for name, value in sorted(((box.get("resources") or {}).get("limits") or {}).items()):
        yield f"limit {name}={value}"


def _container(pod: Json, identifier: str) -> Json:
    """Gives a FormerContainer of a pod's container."""
    spec = pod["spec"]
    states = (pod.get("status") or {}).get("containerStatuses") or []
    state: Json = next((s for s in states if str(s.get("containerID")).endswith(identifier)), {})
    boxes = spec["containers"]
    box = next((b for b in boxes if b["name"] == state.get("name")), boxes[0])
    image_id = str(state.get("imageID", ""))
    environ = {row["name"]: str(row.get("value", "")) for row in box.get("env") or []}
    limits = (box.get("resources") or {}).get("limits") or {}
    return {
        "id": identifier,
        "name": f"{pod['metadata']['name']}/{box['name']}",
        "image": box["image"],
        "image_id": image_id,
        "digests": [image_id.rpartition("://")[2]] if "@sha256:" in image_id else [],
        "tags": [],
        "state": next(iter(state.get("state") or {"unknown": None})),
        "main": [*(box.get("command") or []), *(box.get("args") or [])],
        "env": {name: MASK if masking.is_secret(name, value) else value
                for name, value in sorted(environ.items())},
        "image_env": {},
        "mounts": _volumes(pod, box),
        "restart_policy": "no",
        "auto_remove": False,
        "network_mode": "host" if spec.get("hostNetwork") else "pod",
        "ipc_mode": "host" if spec.get("hostIPC") else "private",
        "shm_bytes": _shm_bytes(pod, box),
        "privileged": bool((box.get("securityContext") or {}).get("privileged")),
        "runtime": str(spec.get("runtimeClassName") or ""),
        "gpus": any("gpu" in name for name in limits),
        "labels": {},
        "other_options": list(_others(pod, box)),
        "changed": [],
    }  # fmt: skip


def look(cgroup: str, unread: list[str]) -> tuple[Json | None, Json]:
    """Gives the container of an engine in a pod, None when it could not be read, and its
    supervisor. What could not be read is added to `unread`.
    """
    uid, identifier = uid_of(cgroup), proc.container_of(cgroup) or ""
    row: Json = {"kind": "pod", "name": f"pod {uid}", "starts_at_boot": True,
                 "evidence": f"cgroup {cgroup}"}  # fmt: skip
    try:
        client = kubectl.client("auto")
        pods: Any = client.json(["get", "pods", "--all-namespaces"])["items"]
        pod = next((p for p in pods if p["metadata"]["uid"] == uid), None)
        if pod is None:
            raise CannotRead(f"the cluster has no pod with UID {uid}")
        deployment = _deployment(client, pod)
    except (CannotRead, NodeError, KeyError) as error:
        unread.append(f"the pod of an engine: {error}")
        return None, row
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    row.update(namespace=space, name=f"{space}/{name}", evidence=f"pod {space}/{name} of nobody's")
    found = _container(pod, identifier)
    if deployment is not None:
        meta, template = deployment["metadata"], deployment["spec"]["template"]["spec"]
        names = [box["name"] for box in template["containers"]]
        own = found["name"].rpartition("/")[2]
        row.update(
            deployment=meta["name"],
            name=f"{space}/{meta['name']}",
            evidence=f"pod {space}/{name} of Deployment {space}/{meta['name']}",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            template_container=own if own in names else names[0],
            grace_s=pod["spec"].get("terminationGracePeriodSeconds", GRACE_S),
        )
    return found, row
