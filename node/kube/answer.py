"""kube answer: one real completion of a Deployment's engine: through its Service, or in its pod.

The host reaches a Service's address. Where it does not (or there is no Service) the pod's own
Python asks: such an image has no curl. Read-only.
"""

from __future__ import annotations

import json
import time
from typing import Any

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.engine import completion
from node.engine.config import Endpoint, endpoint
from node.kube import inspect, kubectl
from node.rules import completion as rules
from node.rules.completion import Reply

_KEYS = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "service", "port",
         "model", "reasoning", "timeout_s")  # fmt: skip
_REQUIRED = ("kubectl", "namespace", "deployment", "model", "reasoning", "timeout_s")
# prints the HTTP status (0: none) and the body; any Python 3
_IN_POD = """
import sys,urllib.error,urllib.request as u
r=u.Request(sys.argv[1]+"/v1/chat/completions",sys.argv[2].encode(),{"Content-Type":"application/json"})
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
    """Gives whether a completion came back with content, from where, in words, and whether to ask
    again. `service` (with `port` where it has several): through it; else `port` inside a pod.
    """
    body = validate.keys(request, "request", _KEYS, _REQUIRED)
    client = kubectl.client(body["kubectl"], body.get("kubeconfig"))
    space = inspect.name(body["namespace"], "namespace")
    port = body.get("port")
    port = None if port is None else int(validate.number(port, "port", 1, 65535))
    timeout_s = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    try:
        if body.get("service") is not None:
            where = _of_service(client, space, inspect.name(body["service"], "service"), port)
            reply = completion.ask(_endpoint(body, where), timeout_s)
        else:
            if port is None:
                raise validate.bad("give 'service' or 'port'")
            name = inspect.name(body["deployment"], "deployment")
            deployment = inspect.get(client, space, name)
            box = body.get("container")
            where, reply = _in_pod(
                client, space, deployment, None if box is None else inspect.name(box, "container"),
                _endpoint(body, f"http://127.0.0.1:{port}"), timeout_s,
            )  # fmt: skip
    except CannotRead as error:
        raise NodeError(str(error), "no_cluster", "see: kubectl get service") from None
    return {"answered": reply.ok or reply.wants_key, "detail": reply.detail, "final": reply.final,
            "model": reply.model, "where": where}  # fmt: skip


def _endpoint(body: Json, url: str) -> Endpoint:
    rest = {"model": body["model"], "reasoning": body["reasoning"], "chat_template_kwargs": {}}
    return endpoint({"url": url, **rest}, "request")


def _of_service(client: kubectl.Client, space: str, name: str, port: Any) -> str:
    """Gives the URL of a Service: its own address, as the host reaches it."""
    spec: Json = client.json(["get", "service", name, f"--namespace={space}"])["spec"]
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
    client: kubectl.Client,
    space: str,
    deployment: Json,
    box: Any,
    where: Endpoint,
    timeout_s: float,
) -> Any:
    """Gives (where, reply): the newest running pod's own Python asks its engine."""
    rows = [
        pod for pod in inspect.pods(client, space, deployment)
        if (pod.get("status") or {}).get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]  # fmt: skip
    if not rows:
        return "no pod", Reply(False, "no pod of it runs")
    pod = str(rows[0]["metadata"]["name"])
    words = ["exec", pod, f"--namespace={space}", *([f"--container={box}"] if box else [])]
    script = [where.url, json.dumps(completion.question(where)), f"{timeout_s:g}"]
    started = time.monotonic()
    # kubectl takes its own flags before the `--` alone
    done = client.run(words, timeout_s + 10, ["--", "python3", "-c", _IN_POD, *script])
    status, _, text = done.out.partition("\n")
    name = f"{where.url} in {pod}"
    if done.rc != 0 or not status.isdigit():
        return name, Reply(False, f"kubectl exec: {done.last_line()[:300]}")
    if status == "0":
        return name, Reply(False, " ".join(text.split())[:200])
    if status != "200":
        return name, rules.refused(int(status), text)
    return name, completion.judge(text.encode(), where, time.monotonic() - started)
