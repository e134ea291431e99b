"""A real docker compose for the lab's hosts: Debian's own package, one static program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.core import cache
from lab.core.settings import CACHE_IN_HOST, LabSettings
from lab.hosts.debian_root import CONTAINERD_SUITE, write_sources

FOLDER = f"compose-{CONTAINERD_SUITE}"
# where each host sees the cache's images
COMPOSE_IN_HOST = f"{CACHE_IN_HOST}/{FOLDER}/docker-compose"
PACKAGE, PROGRAM = "docker-compose", "usr/libexec/docker/cli-plugins/docker-compose"


def provide(settings: LabSettings) -> None:
    """Have the hosts see the next Debian's compose, version 2; downloaded once."""
    cache.build_once(settings.images / FOLDER, _download)


def _download(part: Path) -> None:
    part.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "parts").mkdir()
        for path in write_sources(folder / "parts", CONTAINERD_SUITE):
            path.chmod(0o644)
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": f"{folder}/parts",
            "Dir::State::lists": f"{folder}/lists",
            "Dir::Cache": f"{folder}/cache",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "cache/archives/partial").mkdir(parents=True)
        for words in ([*apt, "update"], [*apt, "download", PACKAGE]):
            subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (deb,) = folder.glob("*.deb")
        subprocess.run(["dpkg", "-x", str(deb), f"{folder}/tree"], check=True)
        shutil.copy2(folder / "tree" / PROGRAM, part / "docker-compose")
