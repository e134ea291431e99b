"""The restart of a Deployment's pods: whether what they started with lasts, by a look at them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from node.change.transaction import undo
from node.core.errors import NodeError
from node.kube import deployment_step
from tests.unit.node.support.host import Host, apply_request, change


class Cluster:
    """A stand-in for the API: one Deployment, its pods, and rollouts that begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generation = 1
        self.pods: list[dict[str, Any]] = [self.pod(-600)]
        self.error: NodeError | None = None
        monkeypatch.setattr(deployment_step.kubectl, "client", lambda *_: self)
        monkeypatch.setattr(deployment_step.inspect, "get", lambda *_: self.get())
        monkeypatch.setattr(deployment_step.inspect, "pods", lambda *_: self.pods)

    def pod(self, at_s: float, phase: str = "Running") -> dict[str, Any]:
        """A pod that was made some seconds from now."""
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + at_s))
        return {"metadata": {"uid": "u", "creationTimestamp": made}, "status": {"phase": phase}}

    def get(self) -> dict[str, Any]:
        if self.error:
            raise self.error
        box = {"containers": [{"name": "dp"}]}
        return {"metadata": {"name": "dp", "generation": self.generation},
                "spec": {"template": {"spec": box}}}  # fmt: skip

    def run(self, argv: list[str], timeout_s: float) -> SimpleNamespace:
        self.generation += 1
        return SimpleNamespace(rc=0, last_line=lambda: "")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose one pod runs since ten minutes."""
    return Cluster(monkeypatch)


def swapped(host: Host, first: bool = True) -> None:
    """A change that made a folder and then restarted the pods."""
    made = {"op": "directory", "path": str(host.root / "made"), "mode": "0755"}
    if first:
        host.call("apply", apply_request(made))
    deployment_step.restart_deployment(
        {
            "change": change(),
            "kubectl": "kubectl",
            "namespace": "hami",
            "deployment": "dp",
            "pod": "u",
        }
    )


def test_a_restart_alone_leaves_the_same_pods_anew(host: Host, cluster: Cluster) -> None:
    swapped(host, first=False)
    cluster.pods = [cluster.pod(1)]
    assert undo({})["status"] == "ROLLED_BACK"


def test_a_pod_that_did_not_start_has_nothing_of_it(host: Host, cluster: Cluster) -> None:
    swapped(host)
    cluster.pods.append(cluster.pod(1, "Pending"))
    assert undo({})["status"] == "ROLLED_BACK"


def test_pods_that_started_keep_it_until_they_are_restarted(host: Host, cluster: Cluster) -> None:
    swapped(host)
    cluster.pods = [cluster.pod(1)]
    for _ in range(2):
        with pytest.raises(NodeError, match=r"hami/dp keep .*kubectl rollout restart") as told:
            undo({})
        assert told.value.code == "undo_incomplete"
    assert not (host.root / "made").exists()
    cluster.generation += 1
    assert undo({})["status"] == "ROLLED_BACK"


@pytest.mark.parametrize(("code", "status"), [
    ("no_deployment", "ROLLED_BACK"), ("no_cluster", "INCONSISTENT"),
])  # fmt: skip
def test_a_deployment_that_is_gone_has_no_pods_and_an_api_that_is_silent_is_no_proof(
    host: Host, cluster: Cluster, code: str, status: str
) -> None:
    swapped(host)
    cluster.error = NodeError("no answer", code)
    try:
        assert undo({})["status"] == status
    except NodeError as error:
        assert (error.code, status) == ("undo_incomplete", "INCONSISTENT")
        assert "cannot be looked at: no answer" in str(error)
