"""A real Kubernetes control plane, built once from Debian's source package and cached.

Debian 12 ships etcd as a package and Kubernetes 1.20.2 as a source with its vendor tree; nothing is
installed on this machine: packages are unpacked into the build's own folder. The cache is named by
the source's .dsc, which names every file of it by hash.

Kubernetes 1.20.2 vendors reflect2 1.0.1, which calls into Go's maps as they were before 1.18: its
API server may die of pretty JSON [ran], which curl, browsers and ?pretty get, never kubectl or the
controllers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings
from lab.hosts import debian_root

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
    with cache.locked(settings.cache / "kubernetes" / ".lock"):
        cache.remove(work)
        work.mkdir(parents=True)
        try:
            return _build(settings, work)
        finally:
            cache.remove(work)


def _build(settings: LabSettings, work: Path) -> Path:
    with console.phase("Kubernetes: source and compiler", "1 minute"):
        dsc = _fetch(work)
    target = settings.cache / "kubernetes" / cache.file_hash(dsc)[:12]
    with console.phase("Kubernetes: build", "10 minutes on two cores"):
        cache.build_once(target, lambda part: _compile(work, dsc, part))
    return target


def _fetch(work: Path) -> Path:
    """The source and the packages, from this machine's own sources, checked by apt."""
    for folder in ("lists/partial", "parts", "debs", "root"):
        (work / folder).mkdir(parents=True)
    for path in debian_root.write_sources(work / "parts"):
        text = path.read_text()
        path.write_text(text.replace("Types: deb\n", "Types: deb deb-src\n"))
        if path.suffix == ".list":
            path.write_text(text + text.replace("deb ", "deb-src ", 1))
    options = [
        "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={work}/parts",
        "-o", f"Dir::State::Lists={work}/lists", "-o", "APT::Sandbox::User=root", "-qq",
    ]  # fmt: skip
    log = work / "apt.log"
    console.run(["apt-get", *options, "update"], log=log)
    console.run(["apt-get", *options, "download", *PACKAGES], log=log, cwd=work / "debs")
    console.run(["apt-get", *options, "source", "--download-only", SOURCE], log=log, cwd=work)
    for package in sorted((work / "debs").glob("*.deb")):
        console.run(["dpkg", "-x", package, work / "root"], log=log)
    return next(work.glob("*.dsc"))


def _compile(work: Path, dsc: Path, part: Path) -> None:
    """The binaries in `part`; the build's output is in the log that a failure names."""
    console.run(["dpkg-source", "-x", dsc, work / "src"], log=work / "source.log")
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
    console.run(["nice", "make", "generated_files"], log=log, cwd=work / "src", env=env)
    for name in BUILT:
        console.say(f"Kubernetes: {name}")
        console.run(["nice", "make", f"WHAT=cmd/{name}"], log=log, cwd=work / "src", env=env)
    part.mkdir()
    for name in BUILT:
        shutil.copy(work / "src/_output/bin" / name, part / name)
    for name in SHIPPED:
        shutil.copy(root / "usr/bin" / name, part / name)
    log.unlink()
