"""serve and verify of a Kubernetes rig against the real API, with a real HTTP process that answers.

Hollow pods run no containers. What answers is a stand-in on the host; `k3s` there is a stand-in for
`kubectl exec` and `kubectl logs` alone, and hands everything else to the real kubectl.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lab.kubernetes.node import put
from tests.system.kubernetes.conftest import Olares, deployment
from tests.system.kubernetes.kubelet import patch_status
from tests.system.kubernetes.test_gpu_limit import change_of

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
    put(olares.lab.settings, olares.lab.hosts["test1"], K3S.encode(), "/usr/local/bin/k3s", "755")
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
            put(host.lab.settings, host.lab.hosts["test1"], raw, path, "644")
    models = json.dumps({"/srv/target.gguf": "gguf", "/srv/draft.safetensors": "safetensors"})
    done = host.run("serve", *SERVICE, f"models={models}")
    assert done.rc == 1 and "model-file" in done.text and said in done.text, done.text
    assert "/srv/target.gguf" not in done.text and replicas(host) == 0
    doctor = host.run("doctor", f"models={models}")
    assert doctor.rc == 1 and said in doctor.text, doctor.text
    host.lab.ssh("test1", "sudo rm -f /srv/target.gguf /srv/draft.safetensors")


def test_a_target_that_was_not_downloaded_whole_is_named(host: Olares) -> None:
    put(host.lab.settings, host.lab.hosts["test1"], gguf("qwen3", 3), "/srv/target.gguf", "644")
    models = json.dumps({"/srv/target.gguf": "gguf"})
    done = host.run("serve", *SERVICE, f"models={models}")
    assert done.rc == 1 and "cut off: its header promises 12583" in done.text, done.text
    host.lab.ssh("test1", "sudo rm -f /srv/target.gguf")
