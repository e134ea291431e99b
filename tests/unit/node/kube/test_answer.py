"""kube answer with a stand-in kubectl and a real HTTP server: through the Service, in the pod.

The stand-in's `exec` runs the pod's command on this machine: the script is the real one.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from node.kube import answer as kube_answer
from node.kube import kubectl
from tests.unit.node.support.host import Host
from tests.unit.node.support.transfers import Server, completion, serving

KUBECTL = """\
#!/usr/bin/env python3
# rigbook stand-in for kubectl: a Deployment, its pods and a Service in files; exec runs here
import json, os, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
with open(here / "said", "a") as said:
    print(*sys.argv[1:], file=said)
if sys.argv[1] == "exec":
    if (here / "no-python").exists():
        print("OCI runtime exec failed: python3: executable file not found", file=sys.stderr)
        sys.exit(126)
    rest = sys.argv[sys.argv.index("--") + 1:]
    assert sys.argv[2:5] == ["new", "--namespace=ai", "--container=engine"], sys.argv
    os.execvp(rest[0], rest)
chosen = [word.partition("=")[2] for word in sys.argv if word.startswith("--selector=")]
found = here / f"{sys.argv[2]}{'-'.join(['', *chosen])}.json"
if not found.exists():
    found = here / f"{sys.argv[2]}.json"
if not found.exists():
    print(f"Error from server (NotFound): {sys.argv[2]} not found", file=sys.stderr)
    sys.exit(1)
print(found.read_text())
"""


def owned(kind: str, uid: str) -> dict[str, Any]:
    """The metadata of what a ReplicaSet or a Deployment made."""
    others = {"kind": "Node", "uid": "d1"}
    return {"ownerReferences": [others, {"kind": kind, "uid": uid, "controller": True}]}


def deployed(host: Host) -> None:
    """The Deployment, its ReplicaSet, and that of another one with the same labels."""
    template = {"spec": {"containers": [{"name": "engine"}]}}
    spec = {"selector": {"matchLabels": {"app": "lucebox"}}, "template": template}
    deployment = {"metadata": {"name": "lucebox", "uid": "d1"}, "spec": spec}
    sets = [{"metadata": {"name": uid, "uid": uid, **owned("Deployment", of)}}
            for uid, of in (("rs1", "d1"), ("rs2", "d2"))]  # fmt: skip
    for name, document in (("deployment", deployment), ("replicasets", {"items": sets})):
        (host.bin / f"{name}.json").write_text(json.dumps(document))


def pod(name: str, when: str, **changes: Any) -> dict[str, Any]:
    """A pod of the Deployment, or of the ReplicaSet `of`."""
    meta = {"name": name, "creationTimestamp": when, **changes.pop("metadata", {})}
    meta.update(owned("ReplicaSet", changes.pop("of", "rs1")))
    spec = changes.pop("spec", {})
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", **changes}}


@pytest.fixture
def cluster(host: Host) -> Host:
    """A host whose kubectl is the stand-in."""
    host.double("kubectl", KUBECTL)
    pods = [pod("old", "1"), pod("new", "2"), pod("gone", "3", metadata={"deletionTimestamp": "4"}),
            pod("late", "4", phase="Pending")]  # fmt: skip
    deployed(host)
    (host.bin / "pods.json").write_text(json.dumps({"items": pods}))
    return host


def service(host: Host, address: str, *ports: int, **selector: str) -> None:
    """A Service of the cluster; of the Deployment's pods where no selector is named."""
    spec = {"clusterIP": address, "ports": [{"port": port} for port in ports],
            "selector": selector or {"app": "lucebox"}}  # fmt: skip
    row = {"metadata": {"name": "lucebox"}, "spec": spec}
    (host.bin / "service.json").write_text(json.dumps(row))
    (host.bin / "services.json").write_text(json.dumps({"items": [row]}))


def ask(host: Host, **changes: Any) -> dict[str, Any]:
    """The verb's answer."""
    request = {"kubectl": "kubectl", "namespace": "ai", "deployment": "lucebox", "model": "qwen",
               "container": "engine", "reasoning": False, "timeout_s": 5, **changes}  # fmt: skip
    return host.call("kube answer", request)


def port_of(server: Server) -> int:
    """The server's port."""
    return urlsplit(server.url).port or 0


def test_through_the_service_and_inside_the_pod(cluster: Host) -> None:
    """The image has no curl; its Python is enough."""
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        service(cluster, "127.0.0.1", port_of(server))
        through = ask(cluster, service="lucebox")
        inside = ask(cluster, port=port_of(server))
    assert (through["answered"], through["where"]) == (True, server.url)
    assert (inside["answered"], inside["where"]) == (True, f"{server.url} in new")
    assert server.got[0] == server.got[1] and server.got[0]["messages"]
    assert server.got[0]["model"] == "qwen"


def test_no_container_is_guessed_where_a_pod_has_several(cluster: Host) -> None:
    """kubectl takes a pod's first: Olares puts a sidecar of its own into each pod."""
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        assert ask(cluster, port=port_of(server), container=None)["answered"]
        deployment = json.loads((cluster.bin / "deployment.json").read_text())
        boxes = [{"name": "envoy"}, {"name": "engine"}]
        deployment["spec"]["template"]["spec"]["containers"] = boxes
        (cluster.bin / "deployment.json").write_text(json.dumps(deployment))
        told = ask(cluster, port=port_of(server), container=None)
        assert "needs container; there are: envoy, engine" in told["error"]
        assert ask(cluster, port=port_of(server))["answered"]


def test_a_service_that_leads_to_somebody_elses_pod_is_no_proof(cluster: Host) -> None:
    """Fault 55: its selector fits another Deployment's pod as well: nobody knows who answered."""
    rows = {"items": [pod("new", "2"), pod("former", "1", of="rs2")]}
    (cluster.bin / "pods-part=llm.json").write_text(json.dumps(rows))
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        service(cluster, "127.0.0.1", port_of(server), part="llm")
        for words in ({"service": "lucebox"}, {"url": server.url}):
            answer = ask(cluster, **words)
            assert (answer["answered"], answer["final"]) == (False, True)
            assert answer["detail"] == (
                "what answers is not Deployment lucebox alone: Service lucebox leads to pod former"
            )


def test_another_deployments_pod_with_the_same_labels_is_not_ours(cluster: Host) -> None:
    """A copy of the Deployment under another name: its newer pod answered for ours."""
    rows = [pod("new", "2"), pod("twin", "3", of="rs2"), pod("bare", "4", of="d1")]
    (cluster.bin / "pods.json").write_text(json.dumps({"items": rows}))
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        service(cluster, "127.0.0.1", port_of(server))
        through = ask(cluster, service="lucebox")
        inside = ask(cluster, port=port_of(server))
    assert (through["answered"], through["final"]) == (False, True)
    assert through["detail"].endswith("Service lucebox leads to pod bare, twin")
    assert (inside["answered"], inside["where"]) == (True, f"{server.url} in new")


@pytest.mark.parametrize("way", ["service", "url", "port"])
def test_an_engine_that_wants_a_key_is_proven_with_its_key_alone(cluster: Host, way: str) -> None:
    """A proxy answers 401 while the engine behind it is dead. The key is in no command line."""
    (cluster.root / "key").write_text("sk-its-own\n")
    (cluster.root / "key").chmod(0o600)
    key = {"key_file": str(cluster.root / "key")}
    with serving(lambda _: (401, {})) as server:
        server.reply = lambda _: (
            (401, {}) if not server.right() else (200, completion(model="qwen"))
        )
        service(cluster, "127.0.0.1", port_of(server))
        ways: dict[str, Any] = {"service": {"service": "lucebox"}, "url": {"url": server.url},
                                "port": {"port": port_of(server)}}  # fmt: skip
        without, right = ask(cluster, **ways[way]), ask(cluster, **ways[way], **key)
        (cluster.root / "key").write_text("sk-anothers\n")
        wrong = ask(cluster, **ways[way], **key)
        (cluster.root / "key").chmod(0o644)
        opened = ask(cluster, **ways[way], **key)
    assert (without["answered"], without["wants_key"], without["final"]) == (False, True, True)
    assert "wants a key: set key_file" in without["detail"]
    assert (right["answered"], right["wants_key"]) == (True, False)
    assert not wrong["answered"] and "is not the engine's" in wrong["detail"]
    assert "sk-" not in json.dumps([without, right, wrong, opened])
    assert opened["code"] == "secret_unusable"
    assert server.keys == [None, "Bearer sk-its-own", "Bearer sk-anothers"]
    assert "sk-" not in (cluster.bin / "said").read_text()


def test_somebody_elses_pod_gets_no_key(cluster: Host) -> None:
    (cluster.root / "key").write_text("sk-its-own\n")
    (cluster.root / "key").chmod(0o600)
    (cluster.bin / "pods.json").write_text(json.dumps({"items": [pod("twin", "3", of="rs2")]}))
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        service(cluster, "127.0.0.1", port_of(server))
        answer = ask(cluster, service="lucebox", key_file=str(cluster.root / "key"))
    assert not answer["answered"] and "leads to pod twin" in answer["detail"]
    assert server.keys == []


def test_a_url_is_followed_to_the_pods_behind_it(cluster: Host) -> None:
    """Of a Service, of a pod's own address, or of a process on this host, which is in no pod."""
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        url = server.url
        service(cluster, "127.0.0.1", port_of(server))
        assert ask(cluster, url=url)["answered"]
        service(cluster, "10.96.0.10", port_of(server))
        foreign = ask(cluster, url=url)
        held = f"port {port_of(server)} of this host is held by pid {os.getpid()} ("
        assert not foreign["answered"] and foreign["final"] and held in foreign["detail"]
        for name, answered in (("new", True), ("other", False)):
            rows = {"items": [pod("new", "2"), pod(name, "2", podIP="127.0.0.1")]}
            (cluster.bin / "pods.json").write_text(json.dumps(rows))
            (cluster.bin / "pods-app=lucebox.json").write_text(
                json.dumps({"items": [pod("new", "2")]})
            )
            assert ask(cluster, url=url)["answered"] is answered


def test_who_answers_at_an_address_of_nobody_here_is_not_seen(
    cluster: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingress with a name of its own, say."""
    monkeypatch.setenv("PATH", f"{cluster.bin}:{os.environ['PATH']}")
    service(cluster, "10.96.0.10", 8000)
    deployment = json.loads((cluster.bin / "deployment.json").read_text())
    client = kubectl.client("kubectl", None)
    seen = kube_answer.url_of_pod(client, "ai", deployment, "http://127.9.9.9:1")
    assert seen.pods == frozenset() and seen.foreign is not None
    assert "is not seen; set service or port in place of url" in seen.foreign


def test_a_pod_in_the_hosts_network_may_be_answered_for_by_a_process_of_the_host(
    cluster: Host,
) -> None:
    rows = {"items": [pod("new", "2", spec={"hostNetwork": True})]}
    (cluster.bin / "pods.json").write_text(json.dumps(rows))
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        answer = ask(cluster, port=port_of(server))
    assert not answer["answered"] and f"is held by pid {os.getpid()} (" in answer["detail"]


def test_a_pod_that_starts_anew_meanwhile_is_asked_again(cluster: Host) -> None:
    def restarted(_: object) -> tuple[int, object]:
        rows = [pod("new", "2", containerStatuses=[{"name": "engine", "restartCount": 1}])]
        (cluster.bin / "pods.json").write_text(json.dumps({"items": rows}))
        return 200, completion(model="qwen")

    with serving(restarted) as server:
        service(cluster, "127.0.0.1", port_of(server))
        first, second = ask(cluster, service="lucebox"), ask(cluster, service="lucebox")
    assert (first["answered"], first["final"]) == (False, False)
    assert "started anew while it was asked" in first["detail"] and second["answered"]


@pytest.mark.parametrize(("status", "body", "final", "said"), [
    (500, {"detail": "dflash daemon has exited unexpectedly"}, True, "HTTP 500: "),
    (503, b"loading", False, "HTTP 503: loading"),
    (200, completion(""), True, "the completion is empty"),
    (200, b"<html>", True, "HTTP 200 without a completion"),
])  # fmt: skip
def test_both_ways_judge_alike(
    cluster: Host, status: int, body: object, final: bool, said: str
) -> None:
    with serving(lambda _: (status, body)) as server:
        service(cluster, "127.0.0.1", 80, port_of(server))
        answers = [ask(cluster, service="lucebox", port=port_of(server)),
                   ask(cluster, port=port_of(server))]  # fmt: skip
    for answer in answers:
        assert (answer["answered"], answer["final"]) == (False, final) and said in answer["detail"]


def test_nothing_listens_no_python_no_pod(cluster: Host) -> None:
    """Not yet, every time: the start's budget ends the wait."""
    with serving(lambda _: (200, {})) as server:
        port = port_of(server)
    refused = ask(cluster, port=port)
    assert (refused["answered"], refused["final"]) == (False, False)
    assert "Connection refused" in refused["detail"]
    (cluster.bin / "no-python").touch()
    assert "executable file not found" in ask(cluster, port=port)["detail"]
    (cluster.bin / "pods.json").write_text(json.dumps({"items": [pod("x", "1", phase="Failed")]}))
    assert ask(cluster, port=port)["detail"] == "no pod of it runs"


@pytest.mark.parametrize(("changes", "code", "said"), [
    ({}, "bad_request", ""), ({"port": 0}, "bad_request", ""),
    ({"service": "a;b"}, "bad_request", ""), ({"service": "lucebox"}, "no_cluster", ""),
    ({"port": 1, "deployment": "-x"}, "bad_request", ""),
    ({"service": "None", "ports": (80,)}, "no_service", "has no address of its own"),
    ({"service": "10.0.0.1", "ports": (80, 81)}, "no_service", "has the ports 80, 81"),
])  # fmt: skip
def test_what_cannot_be_asked(cluster: Host, changes: dict[str, Any], code: str, said: str) -> None:
    """A row with `ports` has a Service of that address, which does not say where to ask."""
    if ports := changes.get("ports"):
        service(cluster, changes["service"], *ports)
        changes = {"service": "lucebox"}
    answer = ask(cluster, **changes)
    assert (answer["ok"], answer["code"]) == (False, code) and said in answer["error"], answer
