"""A real API server and a hollow node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab import core, lifecycle
from lab import host as lab_host
from lab.core import LabError, LabHost, LabSettings, load_settings

# A Kubernetes control plane built from Debian's source, on a lab host.

# A real Kubernetes control plane, built once from Debian's source package and cached.
#
# Debian 12 ships etcd as a package and Kubernetes 1.20.2 as a source with its vendor tree; nothing
# is
# installed on this machine: packages are unpacked into the build's own folder. The cache is named
# by
# the source's .dsc, which names every file of it by hash.
#
# Kubernetes 1.20.2 vendors reflect2 1.0.1, which calls into Go's maps as they were before 1.18:
# its
# API server may die of pretty JSON [ran], which curl, browsers and ?pretty get, never kubectl or
# the
# controllers.

SOURCE = "kubernetes"
PACKAGES = ("golang-1.19-go", "golang-1.19-src", "etcd-server", "kubernetes-client", "rsync",
            "libpopt0")  # fmt: skip
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubemark")
SHIPPED = ("etcd", "kubectl")
TOOLS = ("apt-get", "dpkg-source", "dpkg", "make", "gcc")


def binaries(settings: LabSettings) -> Path:
    """The folder of the binaries, built if they are not there (10 to 35 minutes, once)."""
    done = sorted((settings.cache / "kubernetes").glob("*/kubemark"))
    if done:
        return done[-1].parent
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise LabError(f"programs are missing for the build of Kubernetes: {', '.join(missing)}")
    work = settings.cache / "kubernetes" / ".build"
    with core.locked(settings.cache / "kubernetes" / ".lock"):
        core.remove_tree(work)
        work.mkdir(parents=True)
        try:
            return _build(settings, work)
        finally:
            core.remove_tree(work)


def _build(settings: LabSettings, work: Path) -> Path:
    with core.phase("Kubernetes: source and compiler", "1 minute"):
        dsc = _fetch(work)
    target = settings.cache / "kubernetes" / core.file_hash(dsc)[:12]
    with core.phase("Kubernetes: build", "10 minutes on two cores"):
        core.build_once(target, lambda part: _compile(work, dsc, part))
    return target


def _fetch(work: Path) -> Path:
    """The source and the packages, from this machine's own sources, checked by apt."""
    for folder in ("lists/partial", "parts", "debs", "root"):
        (work / folder).mkdir(parents=True)
    for path in lifecycle.write_sources(work / "parts"):
        text = path.read_text()
        path.write_text(text.replace("Types: deb\n", "Types: deb deb-src\n"))
        if path.suffix == ".list":
            path.write_text(text + text.replace("deb ", "deb-src ", 1))
    options = [
        "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={work}/parts",
        "-o", f"Dir::State::Lists={work}/lists", "-o", "APT::Sandbox::User=root", "-qq",
    ]  # fmt: skip
    log = work / "apt.log"
    core.run_console(["apt-get", *options, "update"], log=log)
    core.run_console(["apt-get", *options, "download", *PACKAGES], log=log, cwd=work / "debs")
    core.run_console(["apt-get", *options, "source", "--download-only", SOURCE], log=log, cwd=work)
    for package in sorted((work / "debs").glob("*.deb")):
        core.run_console(["dpkg", "-x", package, work / "root"], log=log)
    return next(work.glob("*.dsc"))


def _compile(work: Path, dsc: Path, part: Path) -> None:
    """The binaries in `part`; the build's output is in the log that a failure names."""
    core.run_console(["dpkg-source", "-x", dsc, work / "src"], log=work / "source.log")
    root, go = work / "root", work / "root/usr/lib/go-1.19"
    env = {
        **os.environ,
        "GOROOT": str(go),
        "PATH": f"{go}/bin:{root}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu",
        "GOFLAGS": "-mod=vendor",
        "GOPROXY": "off",
        "GOCACHE": str(work / "gocache"),
        "HOME": str(work),
        "KUBE_GIT_VERSION": "v1.20.2",
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_TREE_STATE": "clean",
        "KUBE_GIT_MAJOR": "1",
        "KUBE_GIT_MINOR": "20",
        "GOLDFLAGS": "-s -w",
    }
    log = part.parent / f"{part.name}.log"
    core.run_console(["nice", "make", "generated_files"], log=log, cwd=work / "src", env=env)
    for name in BUILT:
        core.say_console(f"Kubernetes: {name}")
        core.run_console(["nice", "make", f"WHAT=cmd/{name}"], log=log, cwd=work / "src", env=env)
    part.mkdir()
    for name in BUILT:
        shutil.copy(work / "src/_output/bin" / name, part / name)
    for name in SHIPPED:
        shutil.copy(root / "usr/bin" / name, part / name)
    log.unlink()


# A Kubernetes node on a lab host: real etcd, API, controllers and scheduler, and a hollow node.
#
# The processes run in the host's own network namespace, so that kubectl on it finds the API at
# 127.0.0.1, as on a machine with k3s. The hollow node (kubemark) runs no containers.
# `python -m lab.kubernetes` keeps one up until Ctrl-C.

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
        leader = lab_host.read_state(settings, host).live_leader()
        if leader is None:
            raise LabError(f"{host.name} does not run: python -m lab up")
        self.address = host.address
        self.folder, self.bin = folder, binaries(settings)
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
        lab_host.note(self.settings, process.pid)
        self.processes[name] = process

    def start(self) -> None:
        """Start everything and wait until the node is ready."""
        core.run_console(["openssl", "genrsa", "-out", self.folder / "sa.key", "2048"])
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
        put_node(settings, host, path.read_bytes(), target, mode)


def put_node(settings: LabSettings, host: LabHost, raw: bytes, target: str, mode: str) -> None:
    """Write a file on a host, as root."""
    argv: Sequence[str] = [
        *lab_host.ssh_argv(settings, host),
        f"sudo install -m {mode} /dev/stdin {target}",
    ]
    done = subprocess.run(argv, input=raw, capture_output=True)
    if done.returncode != 0:
        raise LabError(f"{host.name}: {target}: {done.stderr.decode(errors='replace')}")


@contextmanager
def running(settings: LabSettings, host: LabHost) -> Iterator[Cluster]:
    """A cluster on a host of the lab for the time of the block."""
    # of a cluster whose owner was killed
    lab_host.end_noted(settings)
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
    settings = load_settings()
    try:
        with running(settings, settings.hosts()[0]) as cluster:
            core.say_console(f"the cluster is up; on {settings.hosts()[0].name}: sudo kubectl "
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
