"""watch of a Kubernetes rig against the real API: a Deployment that is silent is rolled out anew.

Hollow pods run no containers: what answers is a labelled stand-in on the host, with /metrics whose
tokens stand still once /tmp/silent is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.kubernetes.conftest import Olares, deployment

ADDRESS = "10.96.0.78"
STATE = "/var/lib/rigbook/watch/state.json"
WATCH = ("service=lucebox", "port=8000", "model=qwen", "interval=10", "silent_s=30")
ENGINE = """
import http.server, json, os, time
class Engine(http.server.BaseHTTPRequestHandler):
    tokens = 0
    def say(self, raw):
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def do_GET(self):
        self.say(b'vllm:num_requests_running{engine="0"} 1\\n'
                 b'vllm:generation_tokens_total{engine="0"} %d\\n' % Engine.tokens)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        while os.path.exists("/tmp/silent"):
            time.sleep(1)
        Engine.tokens += 1
        row = {"message": {"content": "hello"}, "finish_reason": "length"}
        self.say(json.dumps({"model": "qwen", "choices": [row]}).encode())
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Engine).serve_forever()
"""


@pytest.fixture
def engine(olares: Olares) -> Iterator[Olares]:
    """A Service whose address is on the host, and the engine behind it."""
    olares.make(deployment(CUDA_DEVICE_MEMORY_LIMIT_0="24000m"))
    spec = {"clusterIP": ADDRESS, "selector": {"app": "lucebox"}, "ports": [{"port": 8000}]}
    service = {"apiVersion": "v1", "kind": "Service", "spec": spec,
               "metadata": {"name": "lucebox", "namespace": "default"}}  # fmt: skip
    olares.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(service))
    olares.lab.ssh("test1", f"sudo ip address replace {ADDRESS}/32 dev lo")
    olares.lab.ssh("test1", "rm -f /tmp/silent; cat > /tmp/silent_engine.py", stdin=ENGINE)
    start = "setsid python3 /tmp/silent_engine.py >/dev/null 2>&1 </dev/null & echo $!"
    pid = olares.lab.ssh("test1", start)
    olares.lab.ssh("test1", f"sudo rm -f {STATE}")
    try:
        yield olares
    finally:
        olares.run("watch", "remove=true")
        olares.lab.ssh("test1", f"rm -f /tmp/silent; kill {pid}", check=False)
        olares.cluster.kubectl("delete", "service", "lucebox")
        olares.lab.ssh("test1", f"sudo ip address del {ADDRESS}/32 dev lo")


def state(olares: Olares) -> dict[str, Any]:
    """What the watch knows."""
    found: dict[str, Any] = json.loads(olares.lab.ssh("test1", f"sudo cat {STATE}"))
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_a_silent_deployment_is_told_and_rolled_out_where_asked(
    engine: Olares, restart: bool
) -> None:
    done = engine.run("watch", *WATCH, f"restart={str(restart).lower()}")
    assert done.rc == 0, done.text
    assert state(engine)["status"] == "up"
    again = engine.run("watch", *WATCH, f"restart={str(restart).lower()}")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text
    before = engine.get()["metadata"]["generation"]
    engine.lab.ssh("test1", "touch /tmp/silent")
    began = time.monotonic()
    while not state(engine)["silence"]["reason"]:
        assert time.monotonic() - began < 180
        time.sleep(2)
    print(f"REPLAY named after {time.monotonic() - began:.0f} s")
    assert engine.lab.ssh("test1", "sudo ls /var/lib/rigbook/evidence").split()
    time.sleep(15)
    now = engine.get()["metadata"]["generation"]
    assert now == before + 1 if restart else now == before
    assert len(state(engine)["silence"]["restarts"]) == int(restart)
