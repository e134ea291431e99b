"""kube answer: one real completion of a Deployment's pods: at a URL, through a Service, in a pod.

The host reaches a Service's address. Where it does not (or there is no Service) the pod's own
Python asks: such an image has no curl. Read-only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.engine import completion
from node.engine.config import Endpoint, endpoint
from node.files import secret_env
from node.kube import behind, inspect, kubectl, names
from node.kube.behind import Behind
from node.kube.deployment import container_of
from node.rules import completion as rules
from node.rules.completion import Reply

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
    space = names.name(body["namespace"], "namespace")
    port = body.get("port")
    port = None if port is None else int(validate.number(port, "port", 1, 65535))
    timeout_s = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    path = body.get("key_file")
    key = None if path is None else secret_env.of_file("key", validate.path(path, "key_file"))
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
    name = names.name(body["deployment"], "deployment")
    box = body.get("container")
    box = None if box is None else names.name(box, "container")
    chosen = body.get("service")
    chosen = None if chosen is None else names.name(chosen, "service")
    if chosen is None and port is None and body.get("url") is None:
        raise validate.bad("give 'url', 'service' or 'port'")
    if chosen is not None:
        row = client.json(["get", "service", chosen, f"--namespace={space}"])
        url = of_service(chosen, row, port)
        look = partial(behind.service, client, space, inspect.get(client, space, name), row)
    elif port is None:
        url = _endpoint(body, body["url"]).url
        look = partial(behind.url, client, space, inspect.get(client, space, name), url)
    else:
        where = _endpoint(body, f"http://127.0.0.1:{port}")
        deployment = inspect.get(client, space, name)
        # kubectl would take the pod's first one, which may be a sidecar that was put into it
        box = container_of(deployment, box)["name"]
        rows = behind.running(inspect.pods(client, space, deployment))
        if not rows:
            return "no pod", Reply(False, "no pod of it runs")
        pod = str(rows[0]["metadata"]["name"])
        look = partial(behind.newest, client, space, deployment, where.url)
        asked = partial(_in_pod, client, space, pod, box, where, timeout_s)
        return f"{where.url} in {pod}", _ours(name, look, asked, key)
    return url, _ours(name, look, partial(completion.ask, _endpoint(body, url), timeout_s), key)


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
    script = [where.url, json.dumps(completion.question(where)), f"{timeout_s:g}"]
    started = time.monotonic()
    # kubectl takes its own flags before the `--` alone
    done = client.run(words, timeout_s + 10, ["--", "python3", "-c", _IN_POD, *script], key or "")
    status, _, text = done.out.partition("\n")
    if done.rc != 0 or not status.isdigit():
        return Reply(False, f"kubectl exec: {done.last_line()[:300]}")
    if status == "0":
        return Reply(False, " ".join(text.split())[:200])
    if status != "200":
        return rules.refused(int(status), text)
    return completion.judge(text.encode(), where, time.monotonic() - started)
