"""A Deployment that somebody else made, with HAMi's limits, is taken over, and given back.

The API, its controllers, the engine, its container and docker are real; the kubelet is a stand-in
(tests/system/kubernetes/kubelet.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from facts.endpoint import ask
from lab import engine
from lab.core import ENGINE_IMAGE
from lab.kubernetes import Cluster
from tests.system.adopt.setups import ASK_S, OURS, TAKE, gaps
from tests.system.engine.steps import head, wait_until
from tests.system.kubernetes.conftest import OLARES
from tests.system.kubernetes.kubelet import HOME, HOST, NODE, Kubelet, kubelet
from tests.system.rehearsal import ROOT, Done, Lab

NAME, APP = "written_by_a_test", "vllm"
FILES = [ROOT / f"inventory/{NAME}.py", ROOT / f"group_data/{NAME}.py",
         ROOT / f"catalog/recipes/{NAME}.yaml"]  # fmt: skip
RIG = f"inventory/{NAME}.py"
BY = f"Deployment default/{APP}"
ENV = {
    # as in catalog/recipes/tiny.yaml
    "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
ARGS = ["serve", "/models/tiny", "--served-model-name", "tiny", "--port", "8000",
        "--max-model-len", "512", "--max-num-seqs", "4", "--enforce-eager",
        "--dtype", "float32"]  # fmt: skip
ASK = """
import json, urllib.request as u
body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
request = u.Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode(),
                    {"Content-Type": "application/json"})
print(json.load(u.urlopen(request, timeout=5))["choices"][0]["message"]["content"] and "answered")
"""


def chart(host_network: bool) -> dict[str, Any]:
    """The Deployment: the lab's engine as one with a share of a card, as Olares' charts make it."""
    box = {
        "name": "engine", "image": ENGINE_IMAGE, "command": ["/opt/vllm/bin/vllm"], "args": ARGS,
        "env": [{"name": name, "value": value} for name, value in ENV.items()],
        "resources": {"limits": {"nvidia.com/gpumem": "8192"}},
        "volumeMounts": [{"name": "models", "mountPath": "/models/tiny", "readOnly": True},
                         {"name": "cache", "mountPath": "/root/.cache"},
                         {"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    spec = {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 30,
        "containers": [box],
        "volumes": [{"name": "models", "hostPath": {"path": "/srv/models/tiny"}},
                    {"name": "cache", "emptyDir": {}},
                    # the engine asks for 160 MiB, and a container has 64
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
    }  # fmt: skip
    labels = {"app": APP}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": APP, "namespace": "default"},
        "spec": {
            "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }  # fmt: skip


def without_gpus() -> str:
    """Take from the written recipe what the lab's docker has not; gives the recipe."""
    text = FILES[2].read_text()
    assert "  gpus: all\n" in text
    FILES[2].write_text(text.replace("  gpus: all\n", ""))
    return FILES[2].read_text()


class Rig:
    """The machine as its owner and a client see it."""

    def __init__(self, lab: Lab, cluster: Cluster, node: Kubelet) -> None:
        self.lab, self.cluster, self.node = lab, cluster, node

    def make(self, document: dict[str, Any]) -> None:
        """Have it serve."""
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        wait_until("the Deployment answers", 300, self.answers, poll_s=2)

    def answers(self) -> bool:
        """Whether a client gets a completion, from ours or in the pod's own network."""
        if ask(head(self.lab), ASK_S).ok:
            return True
        inside = f"runc exec $(cat {HOME}/*.id) /opt/vllm/bin/python -c {shlex.quote(ASK)}"
        return self.node.sudo(f"{inside} 2>/dev/null", check=False) == "answered"

    def replicas(self) -> tuple[int, int]:
        """How many pods the Deployment is to have, and how many there are."""
        text = self.cluster.kubectl("get", "deployment", APP, "--output=json")
        pods = self.cluster.kubectl("get", "pods", f"--selector=app={APP}", "--output=name")
        return int(json.loads(text)["spec"]["replicas"]), len(pods.split())

    def run(self, deploy: str, *words: str) -> tuple[Done, float]:
        """A deploy with the written inventory, and the longest time without an answer."""
        with gaps(self.answers) as gap:
            done = self.lab.pyinfra(deploy, *words, inventory=RIG)
        return done, gap.seconds

    def unit(self) -> str:
        """What systemd says of ours."""
        return self.lab.ssh(
            HOST, f"systemctl is-enabled {OURS} 2>&1; systemctl is-active {OURS}", check=False
        )

    def newest(self) -> dict[str, Any]:
        """The newest change of the journal."""
        return self.lab.changes(HOST)[0]


@pytest.fixture(scope="module")
def node(lab: Lab, cluster: Cluster) -> Iterator[Kubelet]:
    """The engine's image in docker, and a kubelet that runs it."""
    engine.provide_image(lab.settings, on_one=True)
    with kubelet(lab, cluster) as made:
        yield made


@pytest.fixture
def rig(lab: Lab, cluster: Cluster, node: Kubelet) -> Iterator[Rig]:
    """Nothing of a former test, and nothing left of this one."""
    for path in FILES:
        path.unlink(missing_ok=True)
    made = Rig(lab, cluster, node)
    yield made
    if FILES[0].exists() and "No such" not in made.unit():
        change = made.newest()
        if (change["deploy"], change["status"]) == ("adopt", "COMMITTED"):
            made.run("rollback", "--data", f"change={change['id']}")
    cluster.kubectl("delete", "deployment", APP, "--ignore-not-found", "--wait")
    wait_until("the pods are gone", 60, lambda: not node.running)
    for path in FILES:
        path.unlink(missing_ok=True)


def test_a_deployment_is_taken_over_and_given_back(rig: Rig) -> None:
    """In its pod's own network, which the operator does not reach."""
    rig.make(chart(host_network=False))
    done = rig.lab.pyinfra("adopt", "--data", f"write={NAME}", inventory=OLARES)
    assert done.rc == 0, done.text
    for line in (
        "vLLM: pid", f"in pod {APP}-", "rank 0, port 8000",
        f"started by {BY}: pod default/{APP}-", f"at the next boot: default/{APP}",
        "mount /srv/models/tiny at /models/tiny (read-only)",
        "it was in its pod's network", "emptyDir cache at /root/.cache has no key here",
        "limit nvidia.com/gpumem=8192 has no key here", "is in the cluster's store",
        "HAMi held the engine to CUDA_DEVICE_MEMORY_LIMIT_0=8192m",
        "option network differs: it runs with pod, the recipe renders host",
    ):  # fmt: skip
        assert line in done.text, line
    assert "not looked at" not in done.text and done.text.count(" differs:") == 1, done.text
    without_gpus()
    refused = rig.lab.pyinfra("serve", inventory=RIG)
    assert refused.rc == 1 and "second-supervisor" in refused.text, refused.text
    assert "nothing was changed" in refused.text and rig.replicas() == (1, 1)

    assert "shm_size: 256m" in FILES[2].read_text()

    done, took = rig.run("adopt", *TAKE)
    assert done.rc == 0 and "COMMITTED" in done.text, done.text
    assert f"scale {BY} to 0 pods" in done.text and f": {BY}" in done.text, done.text
    assert rig.replicas() == (0, 0) and rig.unit() == "enabled\nactive"
    assert ask(head(rig.lab), 20).ok and rig.newest()["status"] == "COMMITTED"
    verify = rig.lab.pyinfra("verify", inventory=RIG)
    assert verify.rc == 0, verify.text
    again = rig.lab.pyinfra("adopt", *TAKE, inventory=RIG)
    assert again.rc == 0 and "nothing to take over" in again.text, again.text

    # the chart's owner wants it again: two supervisors
    rig.cluster.kubectl("scale", "deployment", APP, "--replicas=1")
    wait_until("the pod's engine runs", 60, lambda: bool(rig.node.running))
    twice = rig.lab.pyinfra("restart", inventory=RIG)
    assert twice.rc == 1 and "second-supervisor" in twice.text, twice.text
    rig.cluster.kubectl("scale", "deployment", APP, "--replicas=0")
    wait_until("it is gone", 60, lambda: not rig.node.running)

    back, gave = rig.run("rollback", "--data", f"change={rig.newest()['id']}")
    assert back.rc == 0 and f"tiny of {HOST}: {BY} serves again" in back.text, back.text
    assert rig.replicas() == (1, 1) and "active" not in rig.unit().split()
    assert rig.answers() and rig.newest()["status"] == "ROLLED_BACK"
    same = next(row for row in done.text.splitlines() if "renders the same" in row)
    print(f"TABLE | Deployment, pod's network | {same.split('same: ')[1]} the same | 2 differ | "
          f"take {took:.0f} s | back {gave:.0f} s |")  # fmt: skip


def test_one_that_ours_cannot_follow_goes_back_and_serves(rig: Rig) -> None:
    """In the host's network: the same address before and after."""
    rig.make(chart(host_network=True))
    done = rig.lab.pyinfra("adopt", "--data", f"write={NAME}", inventory=OLARES)
    assert done.rc == 0 and "nothing differs" in done.text, done.text
    recipe = without_gpus()
    assert "dtype: float32" in recipe
    FILES[2].write_text(recipe.replace("dtype: float32", "dtype: no-such-type"))
    done, gap = rig.run("adopt", *TAKE, "--data", "waive=arguments-refused",
                        "--data", "reason=a test")  # fmt: skip
    assert done.rc == 1 and "COMMITTED" not in done.text, done.text
    assert "ROLLED_BACK" in done.text and "serves again" in done.text, done.text
    assert rig.replicas() == (1, 1) and rig.answers()
    assert rig.newest()["status"] == "ROLLED_BACK"
    print(f"TABLE | Deployment, host's network, ours breaks | goes back by itself | {gap:.0f} s |")
