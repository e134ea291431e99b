"""libvgpu with restart_pods: pods of the former library start anew, by rollout, and no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kubernetes.node import put
from tests.system.kubernetes.conftest import OLARES, Olares
from tests.system.rehearsal import Done
from tests.unit.node.support.libs import HOLDER, cc, folder, library

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
            put(olares.lab.settings, host, (path / name).read_bytes(), target, "755")
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
