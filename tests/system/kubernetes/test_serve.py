"""serve and verify of a Kubernetes rig against the real API, with a real HTTP process that answers.

Hollow pods run no containers. What answers is a stand-in on the host; `k3s` there is a stand-in for
`kubectl exec` and `kubectl logs` alone, and hands everything else to the real kubectl.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.kubernetes import put_node
from tests.system.kubernetes.conftest import OLARES, Olares, deployment
from tests.system.kubernetes.kubelet import patch_status
from tests.system.kubernetes.test_gpu_limit import change_of
from tests.system.rehearsal import Done
from tests.unit.node.support.libs import HOLDER, cc, folder, library

# libvgpu with restart_pods: pods of the former library start anew, by rollout, and no other.

FOLDER = "/usr/local/vgpu"
TARGET = f"{FOLDER}/libvgpu.so"


def sha(path: Path) -> str:
    """A file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def built(olares: Olares) -> Iterator[Path]:
    """The plugin's library on the host, ours here."""
    host = olares.lab.hosts["test1"]
    olares.lab.ssh("test1", f"sudo mkdir -p {FOLDER}")
    with folder() as path:
        library(path / "original.so", 50_000, 1)
        library(path / "ours.so", 40_000, 2)
        cc(HOLDER, path / "holder")
        for name, target in (("original.so", TARGET), ("holder", f"{FOLDER}/holder")):
            put_node(olares.lab.settings, host, (path / name).read_bytes(), target, "755")
        yield path
    olares.lab.pyinfra("libvgpu", "--data", "remove=true", inventory=OLARES)
    olares.lab.ssh("test1", f"sudo pkill holder; sudo rm -rf {FOLDER}", check=False)


def pod_uid(olares: Olares) -> str:
    """The uid of the Deployment's newest pod."""
    items = json.loads(olares.cluster.kubectl("get", "pods", "-l", "app=lucebox", "-o", "json"))
    return str(
        max(items["items"], key=lambda p: p["metadata"]["creationTimestamp"])["metadata"]["uid"]
    )


def process_of(olares: Olares, uid: str, env: str = "A=1") -> None:
    """A real process with the library mapped, in the cgroup that a kubelet gives such a pod."""
    group = f"/sys/fs/cgroup/kubepods/pod{uid}"
    olares.lab.ssh("test1", f"sudo mkdir -p {group}")
    script = f"echo $$ > {group}/cgroup.procs; {env} LD_PRELOAD={TARGET} exec {FOLDER}/holder"
    olares.lab.ssh("test1", f"sudo setsid sh -c '{script}' >/dev/null 2>&1 </dev/null &")


def swap(olares: Olares, built: Path, *data: str) -> Done:
    """Runs libvgpu with our library."""
    ours = built / "ours.so"
    pairs = (f"library={ours}", f"sha256={sha(ours)}", *data)
    words = [word for pair in pairs for word in ("--data", pair)]
    return olares.lab.pyinfra("libvgpu", *words, inventory=OLARES)


def test_only_with_restart_pods_and_only_the_pods_of_the_former_library(
    olares: Olares, built: Path
) -> None:
    uid = pod_uid(olares)
    process_of(olares, uid)
    first = swap(olares, built)
    assert first.rc == 0 and "default/lucebox-" in first.text, first.text
    assert pod_uid(olares) == uid
    second = swap(olares, built, "restart_pods=true")
    assert second.rc == 0 and "Deployment default/lucebox was restarted" in second.text, second.text
    assert pod_uid(olares) != uid
    newest = pod_uid(olares)
    third = swap(olares, built, "restart_pods=true")
    assert third.rc == 0 and pod_uid(olares) == newest, third.text


def test_a_pod_that_does_not_come_up_again_undoes_the_swap(olares: Olares, built: Path) -> None:
    process_of(olares, pod_uid(olares))
    olares.cluster.kubectl("cordon", "hollow1")
    try:
        done = swap(olares, built, "restart_pods=true", "deadline=10")
    finally:
        olares.cluster.kubectl("uncordon", "hollow1")
    assert done.rc == 1 and "not restarted within 10 s" in done.text, done.text
    assert "ROLLED_BACK" in done.text
    assert olares.lab.ssh("test1", f"sha256sum {TARGET}").split()[0] == sha(built / "original.so")


def test_the_plugins_version_decides_which_file_counts(olares: Olares, built: Path) -> None:
    """Fault 31: a real DaemonSet of version 2.4.0, and two files on the host."""
    olares.lab.ssh("test1", f"sudo cp {TARGET} {TARGET}.v2.4.0")
    mount = {"name": "lib", "mountPath": FOLDER}
    box = {"name": "device-plugin", "image": "projecthami/hami:v2.4.0", "volumeMounts": [mount]}
    volume = {"name": "lib", "hostPath": {"path": FOLDER}}
    labels = {"matchLabels": {"app": "hami"}}
    plugin = {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
        "spec": {"selector": labels, "template": {
            "metadata": {"labels": {"app": "hami"}},
            "spec": {"containers": [box], "volumes": [volume]}}},
    }  # fmt: skip
    unknown = swap(olares, built)
    assert unknown.rc == 1 and "libvgpu-target" in unknown.text, unknown.text
    olares.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(plugin))
    try:
        done = swap(olares, built)
    finally:
        olares.cluster.kubectl("delete", "daemonset", "hami-device-plugin", "-n", "kube-system")
    assert done.rc == 0 and "the version of the plugin's image" in done.text, done.text
    sums = olares.lab.ssh("test1", f"sha256sum {TARGET}.v2.4.0 {TARGET}").split()
    assert sums[::2] == [sha(built / "ours.so"), sha(built / "original.so")]


def test_the_value_inside_the_pods_process_is_read(olares: Olares, built: Path) -> None:
    """Fault 49: what the plugin injects shows in the process alone."""
    process_of(olares, pod_uid(olares), "CUDA_DEVICE_MEMORY_LIMIT_0=0m")
    olares.limit("limit=23000m")  # node is installed there
    request = {"kubectl": "kubectl", "kubeconfig": "/etc/rigbook-lab-kubeconfig",
               "namespace": "default", "deployment": "lucebox", "container": "engine",
               "variables": ["CUDA_DEVICE_MEMORY_LIMIT_0"]}  # fmt: skip
    text = olares.lab.ssh("test1", "sudo rignode kube look", stdin=json.dumps(request))
    answer = json.loads(text)
    assert answer["variables"]["CUDA_DEVICE_MEMORY_LIMIT_0"]["value"] == "23000m"
    live = answer["pods"][0]["live"]
    assert live == {"processes": 1, "values": {"CUDA_DEVICE_MEMORY_LIMIT_0": ["0m"]}}


ADDRESS = "10.96.0.77"
SERVICE = ("service=lucebox", "port=8000", "model=qwen", "start_budget_s=120")
POD = ("kubectl=k3s kubectl", "port=8000", "model=qwen", "deadline=60")
K3S = """\
#!/bin/sh
# rigbook stand-in for `k3s kubectl exec` (runs here) and `logs` (a file); the rest is kubectl
shift
case " $* " in
*" exec "*) while [ "$1" != -- ]; do shift; done; shift; exec "$@";;
*" logs "*) exec cat /tmp/stand_in_pod.log;;
esac
exec /usr/local/bin/kubectl "$@"
"""


def stopped(**more: Any) -> dict[str, Any]:
    """The seed's Deployment, scaled to nothing; `more` goes into the pods' spec."""
    document = deployment(CUDA_DEVICE_MEMORY_LIMIT_0="24000m")
    document["spec"]["replicas"] = 0
    document["spec"]["template"]["spec"].update(more)
    return document


@pytest.fixture
def host(olares: Olares) -> Iterator[Olares]:
    """A Service whose address is on the host: the lab has no kube-proxy. And the stand-in k3s."""
    olares.make(stopped())
    spec = {"clusterIP": ADDRESS, "selector": {"app": "lucebox"},
            "ports": [{"name": "http", "port": 8000}, {"name": "other", "port": 9}]}  # fmt: skip
    service = {"apiVersion": "v1", "kind": "Service", "spec": spec,
               "metadata": {"name": "lucebox", "namespace": "default"}}  # fmt: skip
    olares.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(service))
    olares.lab.ssh("test1", f"sudo ip address replace {ADDRESS}/32 dev lo")
    put_node(
        olares.lab.settings, olares.lab.hosts["test1"], K3S.encode(), "/usr/local/bin/k3s", "755"
    )
    olares.lab.ssh("test1", "cat > /tmp/stand_in_pod.log", stdin="loading\nlast words\n")
    yield olares
    olares.cluster.kubectl("delete", "service", "lucebox")
    olares.lab.ssh("test1", f"sudo ip address del {ADDRESS}/32 dev lo; sudo rm /usr/local/bin/k3s")


def replicas(olares: Olares) -> int:
    """How many pods the Deployment is to have."""
    return int(olares.get()["spec"]["replicas"])


def test_serve_starts_the_deployment_and_waits_for_a_real_completion(host: Olares) -> None:
    """Through the Service; not ready while the kernels compile; a second run changes nothing."""
    dry = host.run("serve", *SERVICE, dry=True)
    assert dry.rc == 0 and "0 pods become 1" in dry.text and replicas(host) == 0, dry.text
    with host.engine(8000, early=2):
        done = host.run("serve", *SERVICE)
        assert done.rc == 0, done.text
        assert "no completion yet: HTTP 503: compiling" in done.text
        assert f"qwen answers at http://{ADDRESS}:8000: qwen answered in" in done.text
        assert replicas(host) == 1
        again = host.run("serve", *SERVICE)
        assert again.counts("Start the head") == ("1", "-", "-", "1"), again.text
        assert again.counts("A real chat completion") == ("1", "-", "-", "1")
        assert host.run("verify", *SERVICE).rc == 0
    back = host.rollback(f"change={change_of(done)}")
    assert back.rc == 0 and replicas(host) == 0, back.text


def test_the_pods_own_python_asks(host: Olares) -> None:
    """The image has no curl. The stand-in runs the very script on the host."""
    with host.engine(8000):
        done = host.run("serve", *POD)
        assert done.rc == 0, done.text
        assert "qwen answers at http://127.0.0.1:8000 in lucebox-" in done.text
        assert host.run("verify", *POD).rc == 0


def test_without_an_answer_the_start_is_taken_back(host: Olares) -> None:
    done = host.run("serve", *SERVICE, "deadline=15")
    assert done.rc == 1 and "Connection refused" in done.text, done.text
    assert "ROLLED_BACK" in done.text and replicas(host) == 0


def ghosts(olares: Olares) -> list[str]:
    """The pods of the node without a kubelet; others may still be on their way out."""
    found = olares.cluster.kubectl(
        "get", "pods", "--field-selector=spec.nodeName=ghost", "--output=name"
    )
    return [line.partition("/")[2] for line in found.splitlines()]


def loop(olares: Olares) -> None:
    """What a kubelet reports of a container that ends again and again, once the pod is there."""
    olares.until(lambda: bool(ghosts(olares)))
    row = {"name": "engine", "ready": False, "restartCount": 3, "image": "x", "imageID": "",
           "state": {"waiting": {"reason": "CrashLoopBackOff"}}}  # fmt: skip
    for name in ghosts(olares):
        patch_status(olares.lab, name, {"phase": "Running", "containerStatuses": [row]})


def test_a_crash_loop_ends_the_wait_at_once_with_the_last_lines(host: Olares) -> None:
    """Incident A4. The pod is of a node without a kubelet: its status is the one written here."""
    host.make(stopped(nodeName="ghost"))
    writer = threading.Thread(target=loop, args=(host,))
    writer.start()
    try:
        done = host.run("serve", "kubectl=k3s kubectl", *SERVICE, "deadline=300")
    finally:
        writer.join()
        host.cluster.kubectl(
            "delete", "pods", "-l", "app=lucebox", "--force", "--grace-period=0", check=False
        )
    assert done.rc == 1 and "CrashLoopBackOff, 3 restarts" in done.text, done.text
    assert "last words" in done.text and done.seconds < 120
    assert "ROLLED_BACK" in done.text and replicas(host) == 0


def gguf(name: str, tensors: int = 0) -> bytes:
    """A GGUF header: version 3, its architecture, and tensors whose bytes are missing."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    rows = b"".join(
        text(f"t{n}") + struct.pack("<IQIQ", 1, 1 << 20, 0, n << 22) for n in range(tensors)
    )
    return (b"GGUF" + struct.pack("<IQQ", 3, tensors, 1) + text("general.architecture")
            + struct.pack("<I", 8) + text(name) + rows)  # fmt: skip


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (gguf("qwen3"), "it is gguf; its loader reads safetensors"),
        (struct.pack("<Q", 64) + b'{"t": {"dtype": "BF16"', "cut off in its header"),
        (None, "No such file"),
    ],
    ids=["the other format", "cut off", "not there"],
)
def test_a_drafter_of_the_wrong_format_stops_it_before_the_pod_starts(
    host: Olares, draft: bytes | None, said: str
) -> None:
    """Incident A2: target and drafter, real files on the host."""
    files = {"/srv/target.gguf": gguf("qwen3"), "/srv/draft.safetensors": draft}
    for path, raw in files.items():
        if raw is not None:
            put_node(host.lab.settings, host.lab.hosts["test1"], raw, path, "644")
    models = json.dumps({"/srv/target.gguf": "gguf", "/srv/draft.safetensors": "safetensors"})
    done = host.run("serve", *SERVICE, f"models={models}")
    assert done.rc == 1 and "model-file" in done.text and said in done.text, done.text
    assert "/srv/target.gguf" not in done.text and replicas(host) == 0
    doctor = host.run("doctor", f"models={models}")
    assert doctor.rc == 1 and said in doctor.text, doctor.text
    host.lab.ssh("test1", "sudo rm -f /srv/target.gguf /srv/draft.safetensors")


def test_a_target_that_was_not_downloaded_whole_is_named(host: Olares) -> None:
    put_node(
        host.lab.settings, host.lab.hosts["test1"], gguf("qwen3", 3), "/srv/target.gguf", "644"
    )
    models = json.dumps({"/srv/target.gguf": "gguf"})
    done = host.run("serve", *SERVICE, f"models={models}")
    assert done.rc == 1 and "cut off: its header promises 12583" in done.text, done.text
    host.lab.ssh("test1", "sudo rm -f /srv/target.gguf")


# watch of a Kubernetes rig against the real API: a Deployment that is silent is rolled out anew.
#
# Hollow pods run no containers: what answers is a labelled stand-in on the host, with /metrics
# whose
# tokens stand still once /tmp/silent is there.

WATCH_ADDRESS = "10.96.0.78"
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
    spec = {"clusterIP": WATCH_ADDRESS, "selector": {"app": "lucebox"}, "ports": [{"port": 8000}]}
    service = {"apiVersion": "v1", "kind": "Service", "spec": spec,
               "metadata": {"name": "lucebox", "namespace": "default"}}  # fmt: skip
    olares.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(service))
    olares.lab.ssh("test1", f"sudo ip address replace {WATCH_ADDRESS}/32 dev lo")
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
        olares.lab.ssh("test1", f"sudo ip address del {WATCH_ADDRESS}/32 dev lo")


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
