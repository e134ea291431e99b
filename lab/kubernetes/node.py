"""A Kubernetes node on a lab host: real etcd, API, controllers and scheduler, and a hollow node.

The processes run in the host's own network namespace, so that kubectl on it finds the API at
127.0.0.1, as on a machine with k3s. The hollow node (kubemark) runs no containers.
`python -m lab.kubernetes.node` keeps one up until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.core import console
from lab.core.settings import LabError, LabHost, LabSettings, load
from lab.hosts import ssh, state
from lab.kubernetes import build

SERVER = "https://127.0.0.1:6443"
# on the host; group_data/lab_olares.py names it
KUBECONFIG = "/etc/rigbook-lab-kubeconfig"
TOKENS = {"admin": ("lab-admin", "system:masters"), "viewer": ("lab-viewer", "lab:viewers")}
READY_S = 60


def kubeconfig(user: str) -> str:
    """A kubeconfig of one of TOKENS (JSON is YAML)."""
    cluster = {"server": SERVER, "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": TOKENS[user][0]}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
    )


class Cluster:
    """The processes of one cluster, and kubectl as its administrator."""

    def __init__(self, settings: LabSettings, host: LabHost, folder: Path) -> None:
        self.settings = settings
        leader = state.read(settings, host).live_leader()
        if leader is None:
            raise LabError(f"{host.name} does not run: python -m lab up")
        self.address = host.address
        self.folder, self.bin = folder, build.binaries(settings)
        self.inside = ["nsenter", f"--net=/proc/{leader.pid}/ns/net"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for user in TOKENS:
            (folder / f"{user}.conf").write_text(kubeconfig(user))
        rows = [f'{token},{user},{user},"{group}"' for user, (token, group) in TOKENS.items()]
        (folder / "tokens").write_text("\n".join(rows) + "\n")

    def spawn(self, name: str, *arguments: str) -> None:
        """Start one of the binaries; its output goes to a log in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.inside, str(self.bin / name), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        state.note(self.settings, process.pid)
        self.processes[name] = process

    def start(self) -> None:
        """Start everything and wait until the node is ready."""
        console.run(["openssl", "genrsa", "-out", self.folder / "sa.key", "2048"])
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self.spawn(
            "etcd", "--data-dir=etcd", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.spawn(
            "kube-apiserver", f"--etcd-servers={client}", "--service-cluster-ip-range=10.96.0.0/24",
            "--token-auth-file=tokens", "--service-account-key-file=sa.key",
            "--service-account-signing-key-file=sa.key", "--service-account-issuer=https://lab",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
            "--bind-address=127.0.0.1", f"--advertise-address={self.address}", "--secure-port=6443",
            "--cert-dir=certs",
        )  # fmt: skip
        self.wait("the API", lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok")
        config = "--kubeconfig=admin.conf"
        self.spawn(
            "kube-controller-manager", config, "--leader-elect=false", "--port=0",
            "--secure-port=0",
            "--controllers=deployment,replicaset,daemonset,namespace,garbagecollector,nodelifecycle",
        )  # fmt: skip
        self.spawn("kube-scheduler", config, "--leader-elect=false", "--port=0", "--secure-port=0")
        self.spawn("kubemark", "--morph=kubelet", "--name=hollow1", config)
        self.wait("the node", self.node_ready)

    def node_ready(self) -> bool:
        """Whether the hollow node takes pods."""
        text = self.kubectl("get", "nodes", "--no-headers", check=False)
        return " Ready " in text

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait for something of the cluster; LabError names the logs."""
        deadline = time.monotonic() + READY_S
        while not ready():
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise LabError(f"{what} does not come up: {self.last_words(dead)}")
            time.sleep(0.3)

    def last_words(self, dead: list[str]) -> str:
        """The last log line of each process that ended."""
        lines = [(self.folder / f"{name}.log").read_text().strip()[-300:] for name in dead]
        return "; ".join(lines) or f"no answer within {READY_S} s"

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """kubectl's output, as the administrator; LabError with its words when it fails."""
        argv = [*self.inside, str(self.bin / "kubectl"), f"--kubeconfig={self.folder}/admin.conf"]
        done = subprocess.run([*argv, *words], input=stdin, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise LabError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def stop(self) -> None:
        """End the processes that this object started."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in reversed(self.processes.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                continue
            process.kill()
            process.wait()


def equip(settings: LabSettings, host: LabHost, cluster: Cluster) -> None:
    """Put kubectl and the administrator's kubeconfig on the host."""
    for path, target, mode in (
        (cluster.bin / "kubectl", "/usr/local/bin/kubectl", "755"),
        (cluster.folder / "admin.conf", KUBECONFIG, "600"),
    ):
        put(settings, host, path.read_bytes(), target, mode)


def put(settings: LabSettings, host: LabHost, raw: bytes, target: str, mode: str) -> None:
    """Write a file on a host, as root."""
    argv: Sequence[str] = [
        *ssh.ssh_argv(settings, host),
        f"sudo install -m {mode} /dev/stdin {target}",
    ]
    done = subprocess.run(argv, input=raw, capture_output=True)
    if done.returncode != 0:
        raise LabError(f"{host.name}: {target}: {done.stderr.decode(errors='replace')}")


@contextmanager
def running(settings: LabSettings, host: LabHost) -> Iterator[Cluster]:
    """A cluster on a host of the lab for the time of the block."""
    # of a cluster whose owner was killed
    state.end_noted(settings)
    folder = settings.home / "cluster"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cluster = Cluster(settings, host, folder)
    try:
        cluster.start()
        equip(settings, host, cluster)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Keep a cluster up on the first host until Ctrl-C."""
    settings = load()
    try:
        with running(settings, settings.hosts()[0]) as cluster:
            console.say(f"the cluster is up; on {settings.hosts()[0].name}: sudo kubectl "
                        f"--kubeconfig={KUBECONFIG} get nodes; Ctrl-C ends it")  # fmt: skip
            cluster.processes["etcd"].wait()
    except KeyboardInterrupt:
        return 0
    except LabError as error:
        print(f"lab: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
