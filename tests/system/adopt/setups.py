"""Ways in which others serve, made on the lab's hosts: the same model on the same port."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from lab.core.settings import ENGINE_IMAGE
from tests.system.adopt.compose import COMPOSE_IN_HOST
from tests.system.rehearsal import Lab

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
