"""The user-space half of a driver's change: a new CDI spec, and a container by it.

Debian 13's docker knows CDI, that of Debian 12 does not. Stand-ins, which say so: nvidia-ctk, the
container's nvidia-smi, the library, and the module's folder in /sys/module.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from facts import pack
from tests.system.rehearsal import Lab

OLD, NEW = "580.126.09", "580.142"
HOST, IMAGE, SPEC = "test2", "rigbook/gpu-user:1", "/etc/cdi/nvidia.yaml"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
TOOL = f"""#!/bin/sh
# rigbook stand-in for nvidia-smi in a container: tells the library that the CDI spec has brought
for library in {LIBRARIES}/libnvidia-ml.so.*; do echo "${{library##*.so.}}"; done
"""
CTK = f"""#!/bin/sh
# rigbook stand-in for nvidia-ctk: a spec with the library that lies here now
[ "$*" = "cdi generate" ] || exit 2
for library in {LIBRARIES}/libnvidia-ml.so.*; do :; done
echo "stand-in for nvidia-ctk" >&2
cat <<E
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    env:
    - RIGBOOK_STAND_IN=gpu
containerEdits:
  mounts:
  - hostPath: $library
    containerPath: $library
    options: [ro, nosuid, nodev, bind]
  - hostPath: /opt/stand-in/nvidia-smi
    containerPath: /usr/bin/nvidia-smi
    options: [ro, nosuid, nodev, bind]
E
"""
# an image with a shell and nothing else; this docker reads CDI specs only where it is told to
SET_UP = f"""set -e
install -d /opt/stand-in /etc/cdi
cp /etc/docker/daemon.json /opt/stand-in/daemon.json
cp /etc/rigbook-lab/gpu.json /opt/stand-in/gpu.json
jq '.features.cdi = true' /opt/stand-in/daemon.json > /etc/docker/daemon.json
systemctl restart docker.service
tar -chf - /bin/sh /lib64/ld-linux-x86-64.so.2 {LIBRARIES}/libc.so.6 2>/dev/null \\
    | docker import - {IMAGE} >/dev/null
# systemd-nspawn's /sys is a tmpfs that has no /sys/module
mkdir -p /sys/module
mount -t tmpfs tmpfs /sys/module
install -d /sys/module/nvidia
echo 0 > /sys/module/nvidia/refcnt
"""
# a set-up that broke off may have left docker at its start limit
CLEAR = f"""
umount /sys/module
rmdir /sys/module
rm -f /usr/local/bin/nvidia-ctk {LIBRARIES}/libnvidia-ml.so.* {SPEC}
cp /opt/stand-in/daemon.json /etc/docker/daemon.json
cp /opt/stand-in/gpu.json /etc/rigbook-lab/gpu.json
systemctl reset-failed docker.service
systemctl restart docker.service
docker rmi -f {IMAGE} >/dev/null 2>&1
rm -rf /opt/stand-in
true
"""


def root(lab: Lab, script: str) -> str:
    """Runs a script as root on the host; its output."""
    return lab.ssh(HOST, "sudo -n bash -s", stdin=script)


def node(lab: Lab, verb: str, **request: object) -> dict[str, Any]:
    """What the program on the host says to a verb; where it fails, its error."""
    command, body = pack.install_call(verb, request)
    words = f"sudo -n sh -c {shlex.quote(command)}"
    said = lab.ssh(HOST, words, check=False, stdin=body)
    return dict(json.loads(said.splitlines()[-1]))


def drive(lab: Lab, version: str) -> None:
    """This version's library and module are there, as after a driver's change."""
    root(
        lab,
        f"""set -e
        rm -f {LIBRARIES}/libnvidia-ml.so.*
        echo stand-in > {LIBRARIES}/libnvidia-ml.so.{version}
        echo {version} > /sys/module/nvidia/version
        jq '.driver = "{version}"' /opt/stand-in/gpu.json > /etc/rigbook-lab/gpu.json""",
    )


def proof(lab: Lab, version: str) -> dict[str, Any]:
    """What `driver prove` says, a container with all GPUs included."""
    devices = ["nvidia.com/gpu=all"]
    return node(lab, "driver prove", module="nvidia", version=version, cuda=False, image=IMAGE,
                devices=devices)  # fmt: skip


def named(lab: Lab) -> dict[str, list[str]]:
    """The versions that the CDI specs name."""
    return dict(node(lab, "driver", module="nvidia")["cdi"])


@pytest.fixture
def gpu(lab: Lab) -> Iterator[Lab]:
    """A host with the old driver's stand-ins, and a CDI spec of them."""
    try:
        root(lab, SET_UP)
        for path, text in (("/usr/local/bin/nvidia-ctk", CTK), ("/opt/stand-in/nvidia-smi", TOOL)):
            lab.ssh(HOST, f"sudo install -m 0755 /dev/stdin {path}", stdin=text)
        drive(lab, OLD)
        root(lab, f"nvidia-ctk cdi generate 2>/dev/null > {SPEC}")
        yield lab
    finally:
        root(lab, CLEAR)


def test_a_container_fails_by_the_former_spec_and_works_by_the_new_one(gpu: Lab) -> None:
    works = ["nvidia-smi agrees", "a container has the GPU"]
    said = proof(gpu, OLD)
    assert said["lines"] == [f"module and library are {OLD}", *works], said
    assert named(gpu) == {SPEC: [OLD]}
    former = root(gpu, f"cat {SPEC}")
    drive(gpu, NEW)
    failed = proof(gpu, NEW)["error"]
    assert "a container with the GPU" in failed and OLD in failed, failed
    text = node(gpu, "driver cdi")["text"]
    change = {"id": "20261124T000000Z-driver-c0d1", "deploy": "driver", "operator": "a test"}
    step = {"op": "file", "path": SPEC, "content": text, "mode": "0644"}
    made = node(gpu, "apply", change={**change, "waivers": []}, steps=[step])
    assert made["ok"] and named(gpu) == {SPEC: [NEW]}, made
    said = proof(gpu, NEW)
    assert said["lines"] == [f"module and library are {NEW}", *works], said
    assert node(gpu, "undo", change=change["id"])["status"] == "ROLLED_BACK"
    assert root(gpu, f"cat {SPEC}") == former
    drive(gpu, OLD)
    assert proof(gpu, OLD)["lines"][1:] == works


def test_a_library_beside_another_module_is_not_proven(gpu: Lab) -> None:
    root(gpu, f"echo {NEW} > /sys/module/nvidia/version")
    assert f"programs load {OLD}" in proof(gpu, NEW)["error"]
    assert f"the loaded nvidia module is {NEW}" in proof(gpu, OLD)["error"]
