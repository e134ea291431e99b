"""A lab host with a real Kubernetes API; the seed's Deployment on it, made anew for each test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.kubernetes import Cluster, running
from tests.system.rehearsal import Done, Lab, rehearsal

OLARES = "inventory/lab_olares.py"
CARD = "hardware_mib=24463"


def deployment(args: list[str] | None = None, **env: str) -> dict[str, Any]:
    """The seed's Deployment: an engine with a limit, a sidecar that has the same variable."""
    rows = [{"name": key, "value": value} for key, value in env.items()]
    engine = {"name": "engine", "image": "lucebox:1.3.0", "command": ["sh", "-c"],
              "args": args or ["exec python3 scripts/server.py"],
              "env": [*rows, {"name": "OTHER", "value": "untouched"}]}  # fmt: skip
    sidecar = {"name": "sidecar", "image": "envoy:1",
               "env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"}]}  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "lucebox", "namespace": "default"},
        "spec": {
            "replicas": 1, "strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 60,
            "selector": {"matchLabels": {"app": "lucebox"}},
            "template": {
                "metadata": {"labels": {"app": "lucebox"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [engine, sidecar]},
            },
        },
    }  # fmt: skip


# A labelled stand-in: it is no engine. Its first answers are "loading", as while kernels compile.
STAND_IN = """
import http.server, json, sys
class Engine(http.server.BaseHTTPRequestHandler):
    early = int(sys.argv[2])
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        row = {"message": {"content": "hello"}, "finish_reason": "length"}
        loading, Engine.early = Engine.early > 0, Engine.early - 1
        raw = b"compiling" if loading else json.dumps({"model": "qwen", "choices": [row]}).encode()
        self.send_response(503 if loading else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
http.server.HTTPServer(("0.0.0.0", int(sys.argv[1])), Engine).serve_forever()
"""


class Olares:
    """The rig as an operator sees it."""

    def __init__(self, lab: Lab, cluster: Cluster) -> None:
        self.lab, self.cluster = lab, cluster

    def make(self, document: dict[str, Any]) -> None:
        """A fresh Deployment, rolled out."""
        self.cluster.kubectl("delete", "deployment", "lucebox", "--ignore-not-found", "--wait")
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        wanted = document["spec"]["replicas"] or None
        self.until(lambda: self.get()["status"].get("availableReplicas") == wanted)

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait for the cluster."""
        deadline = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < deadline, self.cluster.kubectl("get", "all", "-A")
            time.sleep(0.3)

    def get(self) -> dict[str, Any]:
        """The Deployment now."""
        text = self.cluster.kubectl("get", "deployment", "lucebox", "-o", "json")
        return dict(json.loads(text))

    def containers(self) -> list[dict[str, Any]]:
        """The containers of its template."""
        return list(self.get()["spec"]["template"]["spec"]["containers"])

    def env(self, container: int = 0) -> dict[str, str]:
        """A container's variables."""
        return {row["name"]: row.get("value", "") for row in self.containers()[container]["env"]}

    def limit(self, *pairs: str, dry: bool = False) -> Done:
        """Runs gpu_limit."""
        words = [word for pair in (CARD, *pairs) for word in ("--data", pair)]
        how = ["--dry", "--diff"] if dry else []
        return self.lab.pyinfra("gpu_limit", *how, *words, inventory=OLARES, yes=not dry)

    def run(self, deploy: str, *pairs: str, dry: bool = False) -> Done:
        """Runs a deploy with `--data` pairs."""
        words = [word for pair in pairs for word in ("--data", pair)]
        how = ["--dry", "--diff"] if dry else []
        return self.lab.pyinfra(deploy, *how, *words, inventory=OLARES, yes=not dry)

    @contextmanager
    def engine(self, port: int, early: int = 0) -> Iterator[None]:
        """A stand-in engine that listens on the host: no hollow pod runs one."""
        self.lab.ssh("test1", "cat > /tmp/stand_in_engine.py", stdin=STAND_IN)
        start = f"setsid python3 /tmp/stand_in_engine.py {port} {early}"
        pid = self.lab.ssh("test1", f"{start} >/dev/null 2>&1 </dev/null & echo $!")
        try:
            yield
        finally:
            self.lab.ssh("test1", f"kill {pid}", check=False)

    def rollback(self, *pairs: str) -> Done:
        """Runs rollback."""
        words = [word for pair in pairs for word in ("--data", pair)]
        return self.lab.pyinfra("rollback", *words, inventory=OLARES)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The rehearsal hosts."""
    with rehearsal("--no-engine") as made:
        yield made


@pytest.fixture(scope="session")
def cluster(lab: Lab) -> Iterator[Cluster]:
    """A real control plane on test1."""
    with running(lab.settings, lab.hosts["test1"]) as made:
        yield made


@pytest.fixture
def olares(lab: Lab, cluster: Cluster) -> Olares:
    """The rig with the seed's Deployment, whose limit is too small."""
    made = Olares(lab, cluster)
    made.make(deployment(CUDA_DEVICE_MEMORY_LIMIT_0="23000m"))
    return made
