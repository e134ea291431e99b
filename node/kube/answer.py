"""kube answer: one real completion of a Deployment's pods: at a URL, through a Service, in a pod.

The host reaches a Service's address. Where it does not (or there is no Service) the pod's own
Python asks: such an image has no curl. Read-only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from node.core import mapped_files, owner, proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.engine import answer
from node.engine.config import Endpoint, endpoint
from node.kube import inspect, kubectl
from node.kube.inspect import container_of
from node.rules import engine
from node.rules.engine import Reply

# Whose pods are behind what is asked: the Deployment's, or somebody else's. Read-only.
#
# A Service's selector may fit another Deployment's pods, and a URL may lead anywhere: a completion
# from there proves nothing of this Deployment.


class Behind(NamedTuple):
    """The Deployment's pods that may answer, each as (name, uid, restarts); `foreign`: who else
    may, or that it cannot be seen, in words.
    """

    pods: frozenset[tuple[str, str, int]]
    foreign: str | None = None


def running_pods(pods: list[Json]) -> list[Json]:
    """Gives those that run and are not on their way out, in their order."""
    return [
        pod for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]  # fmt: skip


def newest_pod(client: kubectl.Client, space: str, deployment: Json, where: str) -> Behind:
    """Gives the newest pod of the Deployment that runs, which is asked itself at `where`; in the
    host's network that may be another's process. Raises CannotRead.
    """
    rows = running_pods(inspect.pods(client, space, deployment))[:1]
    if any((row.get("spec") or {}).get("hostNetwork") for row in rows):
        return _on_host(client, space, deployment, where)
    return Behind(frozenset(_identity(row) for row in rows))


def service_of(client: kubectl.Client, space: str, deployment: Json, found: Json) -> Behind:
    """Gives the pods that a Service leads to. Raises CannotRead."""
    name, selector = found["metadata"]["name"], (found.get("spec") or {}).get("selector") or {}
    if not selector:
        return Behind(frozenset(), f"Service {name} has no selector, so its pods are not known")
    words = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    rows = client.json(["get", "pods", f"--namespace={space}", f"--selector={words}"])["items"]
    return _of(client, space, deployment, running_pods(rows), f"Service {name} leads to")


def url_of_pod(client: kubectl.Client, space: str, deployment: Json, where: str) -> Behind:
    """Gives the pods behind a URL: of a Service with that address, of a pod's own, or of a process
    on this host. Raises CannotRead.
    """
    asked = urlsplit(where)
    host, port = asked.hostname or "", asked.port or (443 if asked.scheme == "https" else 80)
    for row in client.json(["get", "services", f"--namespace={space}"])["items"]:
        if _leads(row, host, port):
            return service_of(client, space, deployment, row)
    rows = client.json(["get", "pods", f"--namespace={space}"])["items"]
    own = [p for p in running_pods(rows) if (p.get("status") or {}).get("podIP") == host
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
    ours = {_uid(p): p for p in running_pods(inspect.pods(client, space, deployment))}
    found = answer.port_listeners(where)
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


_KEYS = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "url", "service",
         "port", "model", "reasoning", "timeout_s", "key_file")  # fmt: skip
_REQUIRED = ("kubectl", "namespace", "deployment", "model", "reasoning", "timeout_s")
_NO_KEY = ": set key_file in group_data, a file on the host that holds the key and is root's alone"
# prints the HTTP status (0: none) and the body; any Python 3. The key comes by stdin
_IN_POD = """
import sys,urllib.error,urllib.request as u
k=sys.stdin.read()
h={"Content-Type":"application/json"}
if k:h["Authorization"]="Bearer "+k
r=u.Request(sys.argv[1]+"/v1/chat/completions",sys.argv[2].encode(),h)
try:
    a=u.build_opener(u.ProxyHandler({})).open(r,timeout=float(sys.argv[3]))
    s,b=a.getcode(),a.read(1<<20)
except urllib.error.HTTPError as e:
    s,b=e.code,e.read(2000)
except Exception as e:
    s,b=0,str(getattr(e,"reason",e)).encode()
print(s)
print(b.decode("utf-8","replace"))
"""


def ask_pod(request: Any) -> Json:
    """Gives whether a completion of the Deployment's own pods came back with content, from where,
    in words, and whether to ask again. `url`; `service` (with `port` where it has several): through
    it; else `port` inside a pod. `key_file`: a file that holds the key that the engine wants.
    """
    body = validate.keys(request, "request", _KEYS, _REQUIRED)
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    space = kubectl.kube_name(body["namespace"], "namespace")
    port = body.get("port")
    port = None if port is None else int(validate.number(port, "port", 1, 65535))
    timeout_s = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    path = body.get("key_file")
    key = None if path is None else owner.of_file("key", validate.path(path, "key_file"))
    try:
        where, reply = _asked(body, client, space, port, timeout_s, key)
    except CannotRead as error:
        raise NodeError(str(error), "no_cluster", "see: kubectl get service") from None
    detail = reply.detail
    if reply.wants_key:
        detail += _NO_KEY if key is None else f": the one in {path} is not the engine's"
    return {"answered": reply.ok, "detail": detail, "final": reply.final, "model": reply.model,
            "where": where, "wants_key": reply.wants_key}  # fmt: skip


def _asked(
    body: Json, client: kubectl.Client, space: str, port: Any, timeout_s: float, key: str | None
) -> Any:
    """Gives (where, reply) of the way that the request names."""
    name = kubectl.kube_name(body["deployment"], "deployment")
    box = body.get("container")
    box = None if box is None else kubectl.kube_name(box, "container")
    chosen = body.get("service")
    chosen = None if chosen is None else kubectl.kube_name(chosen, "service")
    if chosen is None and port is None and body.get("url") is None:
        raise validate.bad("give 'url', 'service' or 'port'")
    if chosen is not None:
        row = client.json(["get", "service", chosen, f"--namespace={space}"])
        url = of_service(chosen, row, port)
        look = partial(service_of, client, space, inspect.get(client, space, name), row)
    elif port is None:
        url = _endpoint(body, body["url"]).url
        look = partial(url_of_pod, client, space, inspect.get(client, space, name), url)
    else:
        where = _endpoint(body, f"http://127.0.0.1:{port}")
        deployment = inspect.get(client, space, name)
        # kubectl would take the pod's first one, which may be a sidecar that was put into it
        box = container_of(deployment, box)["name"]
        rows = running_pods(inspect.pods(client, space, deployment))
        if not rows:
            return "no pod", Reply(False, "no pod of it runs")
        pod = str(rows[0]["metadata"]["name"])
        look = partial(newest_pod, client, space, deployment, where.url)
        asked = partial(_in_pod, client, space, pod, box, where, timeout_s)
        return f"{where.url} in {pod}", _ours(name, look, asked, key)
    return url, _ours(
        name, look, partial(answer.ask_completion, _endpoint(body, url), timeout_s), key
    )


def _ours(
    name: str, look: Callable[[], Behind], ask: Callable[[str | None], Reply], key: str | None
) -> Reply:
    """Gives the reply of the Deployment's own pods, the same before and after it, or why not.

    Who else may answer gets no key.
    """
    before = after = look()
    if key is not None and not before.pods and before.foreign is None:
        return Reply(False, "no pod of it runs")
    if key is None or before.foreign is None:
        reply = ask(key)
        if not (reply.ok or reply.wants_key):
            return reply
        after = look()
    foreign = before.foreign or after.foreign
    if foreign is not None:
        return Reply(False, f"what answers is not Deployment {name} alone: {foreign}", True)
    if before != after or not after.pods:
        return Reply(False, "its pods were started anew while it was asked")
    return reply


def _endpoint(body: Json, url: str) -> Endpoint:
    rest = {"model": body["model"], "reasoning": body["reasoning"], "chat_template_kwargs": {}}
    return endpoint({"url": url, **rest}, "request")


def of_service(name: str, row: Json, port: Any) -> str:
    """Gives the URL of a Service: its own address, as the host reaches it."""
    spec: Json = row["spec"]
    address = spec.get("clusterIP")
    if address in (None, "", "None"):
        raise NodeError(f"Service {name} has no address of its own", "no_service",
                        "set port without service: the pod is asked itself")  # fmt: skip
    ports: list[int] = [int(row["port"]) for row in spec.get("ports") or []]
    if port is None and len(ports) == 1:
        port = ports[0]
    if port not in ports:
        listed = ", ".join(map(str, ports))
        raise NodeError(f"Service {name} has the ports {listed}", "no_service", "set port")
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def _in_pod(
    client: kubectl.Client, space: str, pod: str, box: str, where: Endpoint, timeout_s: float,
    key: str | None,
) -> Reply:  # fmt: skip
    """Gives the reply to a pod's own Python, which asks its engine."""
    words = ["exec", pod, f"--namespace={space}", f"--container={box}", "--stdin"]
    script = [where.url, json.dumps(answer.question(where)), f"{timeout_s:g}"]
    started = time.monotonic()
    # kubectl takes its own flags before the `--` alone
    done = client.run(words, timeout_s + 10, ["--", "python3", "-c", _IN_POD, *script], key or "")
    status, _, text = done.out.partition("\n")
    if done.rc != 0 or not status.isdigit():
        return Reply(False, f"kubectl exec: {done.last_line()[:300]}")
    if status == "0":
        return Reply(False, " ".join(text.split())[:200])
    if status != "200":
        return engine.refused(int(status), text)
    return answer.judge_completion(text.encode(), where, time.monotonic() - started)
