"""What breaks a rig by hand. Each takes the hosts and names of them; the engine serves before."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.core.settings import LabError
from lab.engine import stand_ins
from lab.hosts.consoles import Hosts

ROOT = Path(__file__).resolve().parents[3]
PYINFRA = Path(sys.executable).parent / "pyinfra"
ENGINE = "rigbook-engine.service"
UNIT_FILE = f"/etc/systemd/system/{ENGINE}"
SCRIPT = "/etc/rigbook/engine/serve.sh"
ENVIRONMENT = "/etc/rigbook/engine/engine.env"
DROP_IN = f"/etc/systemd/system/{ENGINE}.d/50-ghost.conf"
GHOST = "/workspace/vllm-head-090.sh"
DEPLOY_S = 1800
OLD_UNIT = "vllm-old.service"
DISK = "/mnt/second"
WHEELS_NOTE = "/etc/rigbook-lab/wheels"
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


def relaunch(hosts: Hosts, name: str, edit: str) -> None:
    """A hand's edit (sed) of a launch script, and the unit started again."""
    hosts.ssh(name, f"sudo sed -i {shlex.quote(edit)} {SCRIPT}")
    hosts.ssh(name, f"sudo systemctl restart --no-block {ENGINE}")


def with_flag(flag: str, value: int) -> str:
    """The edit of a launch script that gives a flag this value."""
    return rf"s/\(--{flag}\) [0-9]*/\1 {value}/"


def drift(hosts: Hosts, names: Sequence[str]) -> None:
    """All nodes launched by hand with half the length and the fork variable (C14)."""
    for name in reversed(names):
        script = hosts.ssh(name, f"sudo cat {SCRIPT}")
        length = int(script.partition("--max-model-len ")[2].split()[0])
        hosts.ssh(name, "echo VLLM_WORKER_MULTIPROC_METHOD=fork | "
                        f"sudo tee -a {ENVIRONMENT} >/dev/null")  # fmt: skip
        relaunch(hosts, name, with_flag("max-model-len", length // 2))


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


def file_of_another_revision(hosts: Hosts, host: str, path: str) -> None:
    """The end of a shard is another revision's: the size and the header are the same (D17)."""
    file = shlex.quote(f"{path}/model.safetensors")
    text = f"size=$(stat -c %s {file}); printf other | dd of={file} bs=1 seek=$((size - 5)) " \
           "conv=notrunc status=none"  # fmt: skip
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def old_unit(hosts: Hosts, host: str) -> None:
    """A unit that starts another engine at the next boot, stopped now (D15)."""
    unit = "[Service]\nExecStart=/bin/sleep infinity\nExecStartPre=/bin/echo vllm serve\n" \
           "[Install]\nWantedBy=multi-user.target\n"  # fmt: skip
    hosts.ssh(host, f"sudo tee /etc/systemd/system/{OLD_UNIT}", stdin=unit)
    hosts.ssh(host, f"sudo systemctl daemon-reload && sudo systemctl enable -q {OLD_UNIT}")


def no_old_unit(hosts: Hosts, host: str) -> None:
    """That unit's file away."""
    hosts.ssh(host, f"sudo rm /etc/systemd/system/{OLD_UNIT} && sudo systemctl daemon-reload")


def rebuilt_image(hosts: Hosts, host: str, image: str) -> None:
    """Another build under the image's name on one host alone."""
    quoted = shlex.quote(image)
    hosts.ssh(
        host,
        f"id=$(sudo docker create {quoted} true) && "
        f"sudo docker commit --change 'LABEL built=here' $id {quoted} && sudo docker rm $id",
    )


def image_of_other_files(hosts: Hosts, host: str, image: str, texts: Mapping[str, str]) -> None:
    """Another build under the image's name on one host alone, with these files in it."""
    hosts.ssh(host, f"sudo sh -c {shlex.quote(stand_ins.command(image, texts))}")


def run_deploy(inventory: str, deploy: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A runbook on the twin, as the operator would type it."""
    return subprocess.run(
        [str(PYINFRA), inventory, f"deploys/{deploy}.py", *arguments, "-y"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=DEPLOY_S, check=False,
    )  # fmt: skip


def backed_up(inventory: str, *arguments: str) -> None:
    """A backup as of every night; LabError where it fails."""
    done = run_deploy(inventory, "backup", *arguments)
    if done.returncode != 0:
        raise LabError(f"no backup could be made:\n{done.stdout}")


def pip_install(hosts: Hosts, host: str, venv: Mapping[str, str], version: str) -> None:
    """Another version of the engine, installed into the venv that serves, and started."""
    path = shlex.quote(venv["path"])
    hosts.ssh(host, f"sudo -u $(stat -Lc %U {path}) {path}/bin/python -m pip install --quiet "
                    f"--no-index --no-deps --find-links={shlex.quote(venv['wheels'])} "
                    f"vllm=={version}")  # fmt: skip
    hosts.ssh(host, f"sudo systemctl restart --no-block {ENGINE}")


def lose_wheel(hosts: Hosts, host: str, wheels: str, version: str) -> None:
    """The folder of wheels without one version's; `find_wheel` puts the lab's own back."""
    text = (
        f"mkdir -p {WHEELS_NOTE.rpartition('/')[0]}; readlink -f {wheels} > {WHEELS_NOTE}; "
        f'rm {wheels}; mkdir {wheels}; for f in $(cat {WHEELS_NOTE})/*; do case "$f" in '
        f"*/vllm-{version}*) ;; *) ln -s $f {wheels}/;; esac; done"
    )
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def find_wheel(hosts: Hosts, host: str, wheels: str) -> None:
    """The folder of wheels as the lab has it."""
    text = f"rm -rf {wheels} && ln -s $(cat {WHEELS_NOTE}) {wheels}"
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


def second_disk(hosts: Hosts, host: str) -> None:
    """Another disk (a tmpfs stands in for it), mounted."""
    text = f"mkdir -p {DISK} && mount -t tmpfs -o size=6g,mode=0755 tmpfs {DISK}"
    hosts.ssh(host, f"mountpoint -q {DISK} || sudo sh -c {shlex.quote(text)}")


def no_second_disk(hosts: Hosts, host: str) -> None:
    """That disk away again."""
    hosts.ssh(host, f"sudo umount {DISK}")


def lose_disk(hosts: Hosts, host: str, venv: str) -> None:
    """What lay on the engine's own disk is gone: the venv, the backups, the journal (D18)."""
    text = f"rm -rf $(readlink -f {venv}) /var/lib/rigbook"
    hosts.ssh(host, f"sudo sh -c {shlex.quote(text)}")


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
