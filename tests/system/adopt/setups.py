"""Ways in which others serve, made on the lab's hosts: the same model on the same port."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facts.endpoint import Endpoint, ask
from lab import core
from lab.core import CACHE_IN_HOST, ENGINE_IMAGE, LabSettings
from lab.lifecycle import CONTAINERD_SUITE, write_sources
from tests.system.engine.steps import head, wait_until
from tests.system.rehearsal import Done, Lab

# A real docker compose for the lab's hosts: Debian's own package, one static program.

FOLDER = f"compose-{CONTAINERD_SUITE}"
# where each host sees the cache's images
COMPOSE_IN_HOST = f"{CACHE_IN_HOST}/{FOLDER}/docker-compose"
PACKAGE, PROGRAM = "docker-compose", "usr/libexec/docker/cli-plugins/docker-compose"


def provide(settings: LabSettings) -> None:
    """Have the hosts see the next Debian's compose, version 2; downloaded once."""
    core.build_once(settings.images / FOLDER, _download)


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


BOX, UNIT = "vllm_ds4", "vllm-former.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
SCRIPT = "/workspace/serve.sh"
HOME = "/srv/former"
CRON_LINE = f"@reboot root /usr/bin/docker start {BOX}"
UNIT_TEXT = f"""\
[Unit]
Description=a former setup: docker exec, as in the seed's third post
After=docker.service
[Service]
ExecStart=/usr/bin/docker exec {BOX} /bin/bash {SCRIPT}
Restart=on-failure
RestartSec=5
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Setup:
    """A former setup: its start on one host, and what takes it away again, whatever its state."""

    name: str
    start: Callable[[Lab, str], None]
    remove: str


def keep_script(lab: Lab, host: str) -> None:
    """Make our launch script and environment into a script of somebody else's."""
    lab.ssh(
        host,
        f"sudo mkdir -p {HOME} && "
        "(echo '#!/bin/bash'; sudo sed -n 's/^\\([A-Za-z_]*\\)=\\(.*\\)$/export \\1=\"\\2\"/p' "
        "/etc/rigbook/engine/engine.env; sudo grep -v '^#!' /etc/rigbook/engine/serve.sh) "
        f"| sudo tee {HOME}/serve.sh >/dev/null && sudo chmod 755 {HOME}/serve.sh",
    )


def has_script(lab: Lab, host: str) -> bool:
    """Whether that was done before."""
    return lab.ssh(host, f"test -x {HOME}/serve.sh && echo yes", check=False) == "yes"


def waiting_box(*more: str) -> str:
    """The docker run of a container that only waits."""
    words = ["docker", "run", "--detach", "--name", BOX, "--net", "host", "--ipc", "host", *more]
    words += ["-v", "/srv/models/tiny:/models/tiny:ro", "--entrypoint", "/bin/sleep"]
    return shlex.join([*words, ENGINE_IMAGE, "infinity"])


def copied(lab: Lab, host: str, *more: str) -> None:
    """The waiting container, with the script copied into it."""
    lab.ssh(
        host,
        f"sudo {waiting_box(*more)} >/dev/null && sudo docker exec {BOX} mkdir -p /workspace && "
        f"sudo docker cp {HOME}/serve.sh {BOX}:{SCRIPT}",
    )


def start_seed(lab: Lab, host: str) -> None:
    """The seed's: docker exec by a unit, a restart policy, a line at boot."""
    copied(lab, host, "--restart", "unless-stopped")
    lab.ssh(host, f"sudo tee {UNIT_PATH} >/dev/null", stdin=UNIT_TEXT)
    lab.ssh(host, f"echo '{CRON_LINE}' | sudo tee -a /etc/crontab >/dev/null")
    lab.ssh(host, f"sudo systemctl daemon-reload; sudo systemctl enable --now {UNIT}")


def start_compose(lab: Lab, host: str) -> None:
    """A project of docker compose, whose container's main process is the engine."""
    text = f"""\
name: llm
services:
  vllm:
    image: {ENGINE_IMAGE}
    init: true
    network_mode: host
    ipc: host
    restart: unless-stopped
    entrypoint: ["/bin/bash", "/serve.sh"]
    environment:
      FORMER: compose
    volumes:
      - /srv/models/tiny:/models/tiny:ro
      - {HOME}/serve.sh:/serve.sh:ro
"""
    lab.ssh(host, f"sudo tee {HOME}/compose.yaml >/dev/null", stdin=text)
    lab.ssh(host, f"cd {HOME} && sudo {COMPOSE_IN_HOST} up --detach 2>&1")


def start_script(lab: Lab, host: str) -> None:
    """As eugr's launch-cluster.sh: --rm, docker cp, docker exec --detach."""
    copied(lab, host, "--rm")
    run_script(lab, host)


def run_script(lab: Lab, host: str) -> None:
    """What a person types to have its engine serve."""
    line = f"bash {SCRIPT} > /proc/1/fd/1 2>&1"
    lab.ssh(host, f"sudo docker exec --detach {BOX} bash -c '{line}'")


SEED = Setup(
    "seed", start_seed,
    f"systemctl disable --now {UNIT}; rm -f {UNIT_PATH}; docker rm -f {BOX}; "
    f"sed -i '/docker start {BOX}/d' /etc/crontab; systemctl daemon-reload; "
    f"systemctl reset-failed {UNIT}",
)  # fmt: skip
COMPOSE = Setup(
    "compose", start_compose, f"cd {HOME} && {COMPOSE_IN_HOST} down; docker rm -f llm-vllm-1"
)
SCRIPTED = Setup("script", start_script, f"docker rm -f {BOX}")


# What the tests of a take-over do again and again: watch the answers, take, give back.

OURS = "rigbook-engine.service"
TAKE = ("--data", "take=true")
# An answer takes a third of a second; an engine that is being ended may hold a question that long.
ASK_S, EVERY_S = 5.0, 0.3


@dataclass
class Gap:
    """The longest time without an answer, in seconds, while it was watched."""

    seconds: float = 0.0
    answered: list[float] = field(default_factory=list)


def watched(endpoint: Endpoint) -> AbstractContextManager[Gap]:
    """Asks for completions again and again, as a client would, and measures the longest gap."""
    return gaps(lambda: ask(endpoint, ASK_S).ok)


@contextmanager
def gaps(answers: Callable[[], bool]) -> Iterator[Gap]:
    """The same with any way to ask for a completion."""
    gap, over = Gap(), threading.Event()

    def watch() -> None:
        last = time.monotonic()
        while not over.is_set():
            if answers():
                gap.seconds = max(gap.seconds, time.monotonic() - last)
                last = time.monotonic()
                gap.answered.append(last)
            over.wait(EVERY_S)
        gap.seconds = max(gap.seconds, time.monotonic() - last)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gap
    finally:
        # one more question after the run's own proof
        time.sleep(2)
        over.set()
        thread.join()


def serves(lab: Lab, setup: Setup) -> None:
    """The former setup answers."""
    for host in ("test2", "test1"):
        setup.start(lab, host)
    answers(lab)


def answers(lab: Lab) -> None:
    """The former setup's head gives a completion, once it has loaded."""
    wait_until("the former setup answers", 300, lambda: ask(head(lab), 20).ok, poll_s=3)


def newest(lab: Lab, host: str = "test1") -> dict[str, Any]:
    """The newest change of a host's journal."""
    return lab.changes(host)[0]


def take(lab: Lab, *more: str) -> tuple[Done, Gap]:
    """A take-over, and the gap in the answers."""
    with watched(head(lab)) as gap:
        done = lab.pyinfra("adopt", *TAKE, *more)
    return done, gap


def give_back(lab: Lab) -> tuple[Done, Gap]:
    """A rollback of the newest change, and the gap in the answers."""
    with watched(head(lab)) as gap:
        done = lab.pyinfra("rollback", "--data", f"change={newest(lab)['id']}")
    return done, gap


def runs(lab: Lab, host: str) -> dict[str, str]:
    """What tells one state of a former setup from another: units, containers, the crontab."""
    states = "; ".join(
        f"echo {unit} $(systemctl is-enabled {unit} 2>/dev/null) $(systemctl is-active {unit})"
        for unit in (UNIT, OURS)
    )
    box = "{{.Name}} {{.State.Running}} {{.HostConfig.RestartPolicy.Name}}"
    return {
        "units": lab.ssh(host, states),
        "boxes": lab.ssh(host, f"sudo docker ps -aq | xargs -r sudo docker inspect -f '{box}'"),
        "crontab": lab.ssh(host, "cat /etc/crontab 2>/dev/null; true"),
        "files": lab.ssh(host, "sudo ls -A /etc/rigbook 2>/dev/null; true"),
    }  # fmt: skip
