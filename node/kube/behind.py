"""Whose pods are behind what is asked: the Deployment's, or somebody else's. Read-only.

A Service's selector may fit another Deployment's pods, and a URL may lead anywhere: a completion
from there proves nothing of this Deployment.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from node.core import mapped_files, proc
from node.core.errors import Json
from node.engine import port_holder
from node.kube import inspect, kubectl


class Behind(NamedTuple):
    """The Deployment's pods that may answer, each as (name, uid, restarts); `foreign`: who else
    may, or that it cannot be seen, in words.
    """

    pods: frozenset[tuple[str, str, int]]
    foreign: str | None = None


def running(pods: list[Json]) -> list[Json]:
    """Gives those that run and are not on their way out, in their order."""
    return [
        pod for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]  # fmt: skip


def newest(client: kubectl.Client, space: str, deployment: Json, where: str) -> Behind:
    """Gives the newest pod of the Deployment that runs, which is asked itself at `where`; in the
    host's network that may be another's process. Raises CannotRead.
    """
    rows = running(inspect.pods(client, space, deployment))[:1]
    if any((row.get("spec") or {}).get("hostNetwork") for row in rows):
        return _on_host(client, space, deployment, where)
    return Behind(frozenset(_identity(row) for row in rows))


def service(client: kubectl.Client, space: str, deployment: Json, found: Json) -> Behind:
    """Gives the pods that a Service leads to. Raises CannotRead."""
    name, selector = found["metadata"]["name"], (found.get("spec") or {}).get("selector") or {}
    if not selector:
        return Behind(frozenset(), f"Service {name} has no selector, so its pods are not known")
    words = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    rows = client.json(["get", "pods", f"--namespace={space}", f"--selector={words}"])["items"]
    return _of(client, space, deployment, running(rows), f"Service {name} leads to")


def url(client: kubectl.Client, space: str, deployment: Json, where: str) -> Behind:
    """Gives the pods behind a URL: of a Service with that address, of a pod's own, or of a process
    on this host. Raises CannotRead.
    """
    asked = urlsplit(where)
    host, port = asked.hostname or "", asked.port or (443 if asked.scheme == "https" else 80)
    for row in client.json(["get", "services", f"--namespace={space}"])["items"]:
        if _leads(row, host, port):
            return service(client, space, deployment, row)
    rows = client.json(["get", "pods", f"--namespace={space}"])["items"]
    own = [p for p in running(rows) if (p.get("status") or {}).get("podIP") == host
           and not (p.get("spec") or {}).get("hostNetwork")]  # fmt: skip
    if own:
        return _of(client, space, deployment, own, f"{where} is of")
    return _on_host(client, space, deployment, where)


def _leads(row: Json, host: str, port: int) -> bool:
    spec, status = row.get("spec") or {}, row.get("status") or {}
    outside = (status.get("loadBalancer") or {}).get("ingress") or []
    addresses = {spec.get("clusterIP"), *(spec.get("clusterIPs") or []),
                 *(spec.get("externalIPs") or []), *(a.get("ip") for a in outside)}  # fmt: skip
    ports = spec.get("ports") or []
    inside = host in addresses and any(int(p["port"]) == port for p in ports)
    return inside or any(int(p.get("nodePort") or 0) == port for p in ports)


def _on_host(client: kubectl.Client, space: str, deployment: Json, where: str) -> Behind:
    """Gives the pods whose processes hold the URL's port on this host."""
    ours = {_uid(p): p for p in running(inspect.pods(client, space, deployment))}
    found = port_holder.listeners(where)
    for row in found:
        of = mapped_files.pod_of(proc.cgroup(row.pid)) if row.pid else None
        if of not in ours:
            held = f"port {row.port} of this host is held by pid {row.pid} ({row.process})"
            return Behind(frozenset(), held)
    if not found:
        said = f"no Service, no pod and no process on this host has {where}, so whose it is"
        return Behind(frozenset(), f"{said} is not seen; set service or port in place of url")
    uids = {mapped_files.pod_of(proc.cgroup(row.pid or 0)) for row in found}
    return Behind(frozenset(_identity(p) for uid, p in ours.items() if uid in uids))


def _of(client: kubectl.Client, space: str, deployment: Json, rows: list[Json], how: str) -> Behind:
    """Gives those rows that are the Deployment's, and who else is among them."""
    ours = {_uid(p) for p in inspect.pods(client, space, deployment)}
    others = sorted(str(p["metadata"]["name"]) for p in rows if _uid(p) not in ours)
    foreign = f"{how} pod {', '.join(others)}" if others else None
    return Behind(frozenset(_identity(p) for p in rows if _uid(p) in ours), foreign)


def _uid(found: Json) -> str:
    return str(found["metadata"].get("uid") or found["metadata"]["name"])


def _identity(found: Json) -> tuple[str, str, int]:
    rows: list[Any] = (found.get("status") or {}).get("containerStatuses") or []
    restarts = sum(int(row.get("restartCount", 0)) for row in rows)
    return str(found["metadata"]["name"]), _uid(found), restarts
