"""A stand-in for a kubelet whose containers are real ones: the hollow node runs none.

It takes the pods of one app on NODE, which no other kubelet has. runc runs each from the image that
docker has on the host: with the host folders, the cgroup and, without hostNetwork, the network of
its own that a kubelet would give it; the status goes to the API. As HAMi's device plugin it makes
`nvidia.com/gpumem` the variable of that limit.
"""

from __future__ import annotations

import json
import secrets
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lab.core import ENGINE_IMAGE
from lab.kubernetes import SERVER, TOKENS, Cluster, put_node
from tests.system.rehearsal import Lab

HOST, NODE, HOME = "test1", "olares1", "/run/stand-in-kubelet"
KUBECTL, REAL = "/usr/local/bin/kubectl", "/usr/local/bin/kubectl.real"
EVERY_S = 0.5
EXEC = f"""\
#!/bin/sh
# rigbook stand-in for `kubectl exec`, which needs a kubelet; the rest is kubectl
[ "$1" = exec ] || exec {REAL} "$@"
id=$(cat {HOME}/"$2".id) || exit 1
while [ "$1" != -- ]; do shift; done
shift
exec runc exec "$id" "$@"
"""
END = """\
runc kill {id} TERM
n=0
until [ "$(runc state {id} | jq -r .status)" = stopped ] || [ $n -gt {grace} ]; do
    sleep 1; n=$((n + 1))
done
runc delete --force {id}
umount {bundle}/root
rm -rf {bundle} {home}/{name}.id
"""


def patch_status(lab: Lab, pod: str, status: dict[str, Any]) -> None:
    """Write a pod's status, as a kubelet does."""
    # not as curl, to whom the API server writes pretty JSON: see lab/kubernetes.py
    lab.ssh(
        HOST,
        f"curl -sSfk -A lab -m 30 -X PATCH -H 'Authorization: Bearer {TOKENS['admin'][0]}' "
        "-H 'Content-Type: application/strategic-merge-patch+json' --data-binary @- "
        f"{SERVER}/api/v1/namespaces/default/pods/{pod}/status",
        stdin=json.dumps({"status": status}),
    )


class Kubelet:
    """The pods that it runs, by name the id of their container."""

    def __init__(self, lab: Lab, cluster: Cluster) -> None:
        self.lab, self.cluster = lab, cluster
        self.running: dict[str, str] = {}
        self.sudo(f"mkdir -p {HOME}")
        (self.image,) = json.loads(self.sudo(f"docker image inspect {ENGINE_IMAGE}"))
        self.sudo(f"cd {HOME} && rm -f config.json && runc spec")
        self.spec = self.sudo(f"cat {HOME}/config.json")

    def sudo(self, script: str, check: bool = True) -> str:
        """A script of root's on the host."""
        return self.lab.ssh(HOST, "sudo sh -s", check, stdin=script)

    def sync(self) -> None:
        """Start the pods that are new, and end those that are to go."""
        listed = json.loads(self.cluster.kubectl("get", "pods", "--output=json"))["items"]
        for pod in listed:
            if pod["spec"].get("nodeName") != NODE:
                continue
            name, meta = pod["metadata"]["name"], pod["metadata"]
            if "deletionTimestamp" in meta:
                self.end(name, meta["deletionGracePeriodSeconds"])
                self.cluster.kubectl(
                    "delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found"
                )
            elif name not in self.running:
                self.start(pod)

    def start(self, pod: dict[str, Any]) -> None:
        """Run a pod's first container, and tell the API."""
        name, box = pod["metadata"]["name"], pod["spec"]["containers"][0]
        identifier = secrets.token_hex(32)
        bundle = f"{HOME}/{identifier}"
        layers = self.image["GraphDriver"]["Data"]
        lower = ":".join(filter(None, (layers["UpperDir"], layers.get("LowerDir"))))
        self.sudo(
            f"cd {HOME} && mkdir -p {bundle}/upper {bundle}/work {bundle}/root && mount -t overlay "
            f"overlay -o lowerdir={lower},upperdir={bundle}/upper,workdir={bundle}/work "
            f"{bundle}/root"
        )
        document = json.dumps(self.document(pod, box, identifier)).encode()
        host = self.lab.hosts[HOST]
        put_node(self.lab.settings, host, document, f"{bundle}/config.json", "600")
        run = f"runc run --detach --bundle {bundle} {identifier} </dev/null >{bundle}/log 2>&1"
        self.sudo(f"{run} || {{ cat {bundle}/log; exit 1; }}")
        self.sudo(f"echo {identifier} >{HOME}/{shlex.quote(name)}.id")
        self.running[name] = identifier
        since = {"startedAt": pod["metadata"]["creationTimestamp"]}
        row = {"name": box["name"], "ready": True, "restartCount": 0, "image": box["image"],
               "imageID": self.image["Id"], "containerID": f"containerd://{identifier}",
               "state": {"running": since}}  # fmt: skip
        patch_status(self.lab, name, {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "hostIP": host.address, "podIP": "10.244.0.7", "containerStatuses": [row],
        })  # fmt: skip

    def document(self, pod: dict[str, Any], box: dict[str, Any], identifier: str) -> dict[str, Any]:
        """The container for runc."""
        found: dict[str, Any] = json.loads(self.spec)
        given = [f"{row['name']}={row['value']}" for row in box["env"]]
        held = box.get("resources", {}).get("limits", {}).get("nvidia.com/gpumem")
        given += [f"CUDA_DEVICE_MEMORY_LIMIT_0={held}m"] if held else []
        found["process"].update(
            terminal=False,
            args=[*box["command"], *box.get("args", [])],
            env=[*self.image["Config"]["Env"], "KUBERNETES_SERVICE_HOST=10.96.0.1", *given],
            rlimits=[],
        )
        found["root"] = {"path": "root", "readonly": False}
        found["hostname"] = pod["metadata"]["name"]
        folders = {row["name"]: row["hostPath"]["path"] for row in pod["spec"]["volumes"]
                   if "hostPath" in row}  # fmt: skip
        found["mounts"] += [
            {"source": folders[row["name"]], "destination": row["mountPath"], "type": "bind",
             "options": ["rbind", "ro" if row.get("readOnly") else "rw"]}
            for row in box["volumeMounts"] if row["name"] in folders
        ]  # fmt: skip
        sizes = {row["name"]: row["emptyDir"]["sizeLimit"] for row in pod["spec"]["volumes"]
                 if row.get("emptyDir", {}).get("medium") == "Memory"}  # fmt: skip
        for row in box["volumeMounts"]:
            if row["name"] in sizes:
                (mount,) = (m for m in found["mounts"] if m["destination"] == row["mountPath"])
                size = sizes[row["name"]].removesuffix("i").lower()
                mount["options"] = ["nosuid", "nodev", "mode=1777", f"size={size}"]
        linux = found["linux"]
        linux["cgroupsPath"] = f"/kubepods/pod{pod['metadata']['uid']}/{identifier}"
        if pod["spec"].get("hostNetwork"):
            linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "network"]
        return found

    def end(self, name: str, grace_s: int) -> None:
        """TERM, the grace period, KILL; nothing of the container stays."""
        identifier = self.running.pop(name, None)
        if identifier is not None:
            bundle = f"{HOME}/{identifier}"
            self.sudo(
                END.format(id=identifier, bundle=bundle, home=HOME, name=name, grace=grace_s),
                check=False,
            )


@contextmanager
def kubelet(lab: Lab, cluster: Cluster) -> Iterator[Kubelet]:
    """The stand-in, for the time of a block; root's kubectl finds the cluster without a word."""
    host, failed = lab.hosts[HOST], list[BaseException]()
    lab.ssh(HOST, f"sudo mv {KUBECTL} {REAL}; sudo mkdir -p /root/.kube")
    put_node(lab.settings, host, EXEC.encode(), KUBECTL, "755")
    put_node(lab.settings, host, (cluster.folder / "admin.conf").read_bytes(), "/root/.kube/config",
        "600")  # fmt: skip
    made, over = Kubelet(lab, cluster), threading.Event()
    thread = threading.Thread(target=_loop, args=(made.sync, over, failed))
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
        for name in list(made.running):
            made.end(name, 0)
        lab.ssh(HOST, f"sudo mv {REAL} {KUBECTL}; sudo rm -rf /root/.kube {HOME}")
    assert not failed, failed


def _loop(sync: Callable[[], None], over: threading.Event, failed: list[BaseException]) -> None:
    while not over.wait(EVERY_S):
        try:
            sync()
        except BaseException as error:
            failed.append(error)
            raise
