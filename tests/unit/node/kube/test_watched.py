"""watch pod: a Deployment's engine that is silent is named, kept as evidence, and rolled out anew.

kubectl is a stand-in: a Deployment, its pods and a Service in files; exec runs here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.core.files import Lock
from node.engine import evidence, silence
from node.engine.answer import NO_ANSWER
from node.engine.silence import Limits
from node.kube import watched
from node.rules.engine import Reply
from tests.unit.node.kube.test_answer import KUBECTL, deployed, pod, port_of, service
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.transfers import Server, completion, serving

LOGGED = """\
if sys.argv[1] in ("rollout", "logs"):
    with open(here / "log", "a") as log:
        print(*sys.argv[1:], file=log)
    print("a line of the engine")
    sys.exit((here / "no-rollout").exists())
"""
PAGE = (
    'vllm:num_requests_running{engine="0"} 1\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    'vllm:generation_tokens_total{engine="0"} 7\n'
)
LATE = Reply(False, NO_ANSWER)
ROLLED = ["rollout restart deployment/lucebox --namespace=ai --request-timeout=30s"]


class Cluster:
    """A host that watches a Deployment; `server` is its engine."""

    def __init__(self, host: Host, server: Server) -> None:
        self.host, self.server = host, server
        host.double("kubectl", KUBECTL.replace("chosen =", f"{LOGGED}chosen ="))
        deployed(host)
        self.pods("u1")
        service(host, "127.0.0.1", port_of(server))
        self.configure(service="lucebox", port=port_of(server))

    def pods(self, uid: str, restarts: int = 0) -> None:
        boxes = [{"name": "engine", "restartCount": restarts}]
        row = pod("new", "2", metadata={"uid": uid}, containerStatuses=boxes)
        (self.host.bin / "pods.json").write_text(json.dumps({"items": [row]}))

    def configure(self, **how: object) -> None:
        ways = {"url": None, "service": None, "port": None, "container": "engine", **how}
        body = {
            "format": 1, "rig": "olares", "node": "one", "misses": 3,
            "webhook": None, "webhook_file": None, "textfile": None,
            "endpoint": {"url": "http://127.0.0.1:1", "model": "qwen", "reasoning": False,
                         "chat_template_kwargs": {}},
            "silence": {"step_s": 120, "prompt_s": 1300, "restart": True},
            "deployment": {"kubectl": "kubectl", "kubeconfig": None, "namespace": "ai",
                           "deployment": "lucebox", **ways},
        }  # fmt: skip
        path = self.host.root / "watch.json"
        path.write_text(json.dumps(body))
        self.host.env["RIGBOOK_WATCH"] = str(path)

    def look(self) -> str:
        done = self.host.run(self.host.argv("watch pod"))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def calls(self) -> list[str]:
        path = self.host.bin / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cluster(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with serving(lambda _: (200, completion(model="qwen"))) as server:
        server.page = lambda: PAGE
        made = Cluster(host, server)
        for name, value in host.environ().items():
            monkeypatch.setenv(name, value)
        yield made


def silent(cluster: Cluster, *, looks: int = 2) -> dict[str, Any]:
    """Looks at an engine that does not answer, ten minutes apart; the memory after them."""
    memory = silence.fresh_memory()
    for _ in range(looks):
        target = watched.Pod(silence.load_watch())
        target.ask = lambda _: LATE  # type: ignore[method-assign]
        if memory["judged"]["since"] is not None:
            memory["judged"]["since"] -= 599
        memory = silence.look_and_heal(
            target, Limits(500, 500), True, memory, 60, lambda *_: None
        ).memory
    return memory


def test_an_engine_that_wants_a_key_lives_and_is_asked_with_the_one_that_is_given(
    cluster: Cluster,
) -> None:
    """A restart would not change that; with its key the watch knows more."""
    server = cluster.server
    server.reply = lambda _: (200, completion(model="qwen")) if server.right() else (401, {})
    said = []
    (cluster.host.root / "key").write_text("sk-its-own")
    (cluster.host.root / "key").chmod(0o600)
    for more in ({}, {"key_file": str(cluster.host.root / "key")}):
        cluster.configure(service="lucebox", port=port_of(server), **more)
        assert cluster.look() == ""
        state = json.loads((cluster.host.state / "watch" / "state.json").read_text())
        said.append((state["status"], state["misses"], state["detail"].split(" ")[0]))
    assert said == [("up", 0, "HTTP"), ("up", 0, "qwen")]


@pytest.mark.parametrize("way", ["service", "url", "port"])
def test_it_is_asked_and_read_by_each_way(cluster: Cluster, way: str) -> None:
    port = port_of(cluster.server)
    ways = {
        "service": {"service": "lucebox", "port": port},
        "url": {"url": cluster.server.url},
        "port": {"port": port},
    }
    cluster.configure(**ways[way])
    assert cluster.look() == ""
    state = json.loads((cluster.host.state / "watch" / "state.json").read_text())
    assert state["status"] == "up" and "qwen answered" in state["detail"]
    judged = state["silence"]["judged"]
    assert judged["invocation"] == "u1+0"
    assert judged["marks"]["vllm:generation_tokens_total"] == 7


def test_a_silent_engine_is_rolled_out_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "of_the_host", lambda: {})
    memory = silent(cluster)
    assert len(memory["restarts"]) == 1 and cluster.calls()[-1:] == ROLLED
    (bundle,) = (cluster.host.state / "evidence").iterdir()
    assert {path.name for path in bundle.iterdir()} == {
        "engine.log", "metrics.txt", "pods.txt", "summary.json",
    }  # fmt: skip
    assert (bundle / "engine.log").read_text() == "a line of the engine\n"
    assert (bundle / "metrics.txt").read_text() == PAGE
    assert json.loads((bundle / "summary.json").read_text())["name"] == "Deployment ai/lucebox"


def test_a_container_that_started_anew_is_judged_anew(cluster: Cluster) -> None:
    silent(cluster, looks=1)
    target = watched.Pod(silence.load_watch())
    assert target.start() == "u1+0"
    cluster.pods("u1", 1)
    assert target.start() == "u1+1"
    (cluster.host.bin / "pods.json").write_text(json.dumps({"items": []}))
    assert target.start() is None


def test_an_operator_at_work_and_a_refusal_are_told(cluster: Cluster) -> None:
    target = watched.Pod(silence.load_watch())
    cluster.host.call("apply", {"change": change(), "steps": []})
    open_ = "not restarted: change change-1 is open (tester@here)"
    assert target.hindrance() == target.restart() == open_
    cluster.host.call("close", {"change": "change-1", "status": "COMMITTED"})
    (cluster.host.bin / "no-rollout").touch()
    assert "not restarted: " in str(target.restart())
    (cluster.host.bin / "no-rollout").unlink()
    with Lock("apply"):
        assert "the lock is held" in str(target.hindrance())
    assert target.restart() is None and cluster.calls()[-1:] == ROLLED


def test_a_cluster_that_does_not_answer_is_no_silence(cluster: Cluster) -> None:
    (cluster.host.bin / "deployment.json").unlink()
    with pytest.raises(NodeError):
        watched.Pod(silence.load_watch()).start()
    assert "is silent is not known" in cluster.look() and cluster.calls() == []


def test_a_configuration_without_a_deployment_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    path = Path(cluster.host.env["RIGBOOK_WATCH"])
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "deployment": None}))
    done = cluster.host.run(cluster.host.argv("watch pod"))
    assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout
