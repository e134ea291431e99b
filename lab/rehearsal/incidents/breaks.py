"""What breaks a rig by hand. Each takes the hosts and names of them; the engine serves before."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.core.settings import LabError
from lab.hosts.consoles import Hosts

ROOT = Path(__file__).resolve().parents[3]
PYINFRA = Path(sys.executable).parent / "pyinfra"
ENGINE = "rigbook-engine.service"
UNIT_FILE = f"/etc/systemd/system/{ENGINE}"
SCRIPT = "/etc/rigbook/engine/serve.sh"
ENVIRONMENT = "/etc/rigbook/engine/engine.env"
DROP_IN = f"/etc/systemd/system/{ENGINE}.d/50-ghost.conf"
GHOST = "/workspace/vllm-head-090.sh"
SEGMENT = "psm_0badcafe"
# A labelled stand-in engine: the title and the port of an orphan worker, no model.
ORPHAN = (
    "exec -a {title} python3 -c 'import socket, time; s = socket.socket(); "
    's.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("", {port})); '
    "s.listen(); time.sleep(86400)'"
)


def stop(hosts: Hosts, names: Sequence[str]) -> None:
    """The engine's units down, the last first, and nobody who starts them again."""
    for name in reversed(names):
        hosts.ssh(name, "sudo systemctl stop rigbook-pair.timer", check=False)
        hosts.ssh(name, f"sudo systemctl stop {ENGINE}")


def orphan(hosts: Hosts, host: str, port: int = 29501, title: str = "VLLM::Worker_TP1") -> None:
    """Leaves a stand-in engine behind on a host: its shell is gone, and its login."""
    inner = ORPHAN.format(title=title, port=port)
    command = f"setsid -f bash -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1"
    hosts.ssh(host, f"sudo bash -c {shlex.quote(command)}")
    time.sleep(1)


def stale_segment(hosts: Hosts, host: str, name: str = SEGMENT) -> None:
    """A shared memory segment of an engine that died ten minutes ago."""
    path = f"/dev/shm/{name}"
    hosts.ssh(host, f"sudo truncate -s 4M {path} && sudo touch -d -10min {path}")


def ghost_drop_in(hosts: Hosts, host: str) -> None:
    """A drop-in over our unit that starts a script that is nowhere."""
    text = f"[Service]\nExecStart=\nExecStart={GHOST}\n"
    hosts.ssh(host, f"sudo mkdir -p {DROP_IN.rpartition('/')[0]}")
    hosts.ssh(host, f"printf %s {shlex.quote(text)} | sudo tee {DROP_IN}")
    hosts.ssh(host, "sudo systemctl daemon-reload")


def relaunch(hosts: Hosts, name: str, *edits: str) -> None:
    """A hand's edits (sed) of a launch script, and the unit started again."""
    for edit in edits:
        hosts.ssh(name, f"sudo sed -i {shlex.quote(edit)} {SCRIPT}")
    hosts.ssh(name, f"sudo systemctl restart --no-block {ENGINE}")


def drift(hosts: Hosts, names: Sequence[str]) -> None:
    """All nodes launched by hand with half the length and the fork variable (C14)."""
    for name in names:
        script = hosts.ssh(name, f"sudo cat {SCRIPT}")
        length = script.partition("--max-model-len ")[2].split()[0]
        hosts.ssh(
            name,
            f"sudo sed -i 's/--max-model-len {length}/--max-model-len {int(length) // 2}/' {SCRIPT}"
            f" && echo VLLM_WORKER_MULTIPROC_METHOD=fork | sudo tee -a {ENVIRONMENT}",
        )
    for name in reversed(names):
        hosts.ssh(name, f"sudo systemctl restart --no-block {ENGINE}")


def ghost_of_our_unit(hosts: Hosts, host: str) -> None:
    """Our unit's own file starts a script that is nowhere: 127 at each start."""
    edit = f"s#^ExecStart=[^ ]*#ExecStart=/bin/bash {GHOST}#"
    hosts.ssh(host, f"sudo sed -i {shlex.quote(edit)} {UNIT_FILE}")
    hosts.ssh(host, f"sudo systemctl daemon-reload; sudo systemctl start --no-block {ENGINE}")


def disable(hosts: Hosts, names: Sequence[str]) -> None:
    """Stopped and disabled everywhere, as before a move that nobody finished."""
    stop(hosts, names)
    for name in names:
        hosts.ssh(name, f"sudo systemctl disable {ENGINE} rigbook-pair.timer", check=False)


def freeze(hosts: Hosts, host: str) -> None:
    """The engine's processes on a host stop where they are (SIGSTOP), the server aside."""
    found = hosts.ssh(host, "pgrep '^VLLM::'", check=False).split()
    if not found:
        raise LabError(f"{host}: no engine process to stop")
    hosts.ssh(host, f"sudo kill -STOP {' '.join(found)}")


def lose_quotes(hosts: Hosts, host: str) -> None:
    """A JSON flag of the launch script loses its quotes on the way through a shell (C7)."""
    relaunch(hosts, host, 's/.{"temperature":0}./{temperature:0}/')


def weights_of_another_loader(hosts: Hosts, host: str, path: str, user: str) -> None:
    """A model's file of another loader, in the place of this one's."""
    file = f"{path}/model.safetensors"
    hosts.ssh(
        host,
        f"sudo sh -c 'printf GGUF > {file} && truncate -s 2M {file} && chown {user}: {file}'",
    )


def rebuilt_image(hosts: Hosts, host: str, image: str) -> None:
    """Another build under the image's name on one host alone."""
    quoted = shlex.quote(image)
    hosts.ssh(
        host,
        f"id=$(sudo docker create {quoted} true) && "
        f"sudo docker commit --change 'LABEL built=here' $id {quoted} && sudo docker rm $id",
    )


def lost_program(hosts: Hosts, host: str, venv: str) -> None:
    """`pip uninstall` took the engine's program with it; the unit ends with 127 (B3)."""
    hosts.ssh(host, f"sudo rm {shlex.quote(venv)}/bin/vllm")
    hosts.ssh(host, f"sudo systemctl reset-failed {ENGINE}", check=False)
    hosts.ssh(host, f"sudo systemctl start --no-block {ENGINE}", check=False)


def head_was_started(hosts: Hosts, head: str, known: set[str]) -> bool:
    """Whether a change that is not among `known` has started the head."""
    newest = hosts.changes(head)[0]
    return str(newest["id"]) not in known and any(
        step["op"] == "unit" and step["active"] == "start" for step in newest["steps"]
    )


def killed_operator(
    hosts: Hosts, head: str, inventory: str, deploy: str, *arguments: str, budget_s: float = 900
) -> str:
    """The id of a change whose operator was killed -9 once the head had been started."""
    known = {str(change["id"]) for change in hosts.changes(head)}
    operator = subprocess.Popen(
        [str(PYINFRA), inventory, f"deploys/{deploy}.py", *arguments, "-y"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    began = time.monotonic()
    try:
        while not head_was_started(hosts, head, known):
            if time.monotonic() - began > budget_s or operator.poll() is not None:
                raise LabError(f"{deploy} did not start the head of {inventory}")
            time.sleep(1)
    finally:
        os.kill(operator.pid, signal.SIGKILL)
        operator.wait()
    return str(hosts.changes(head)[0]["id"])
