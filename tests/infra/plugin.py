"""From a pyinfra inventory file to a plan and to ssh connections for testinfra."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import testinfra
from testinfra.host import Host

from schema import load
from schema.core import SpecError
from schema.plan import Plan

ROOT = Path(__file__).resolve().parent.parent.parent
LOAD_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5
# What pyinfra's paramiko can and OpenSSH without a terminal cannot.
PARAMIKO_ONLY = ("ssh_password", "ssh_key_password", "ssh_paramiko_connect_kwargs")


@dataclass(frozen=True)
class Rig:
    """A rig under test: the inventory as remedies name it, the KEY=VALUE that were given with it,
    its plan, its hosts' merged data."""

    inventory: str
    pairs: tuple[str, ...]
    plan: Plan
    hosts: Mapping[str, Mapping[str, object]]


def load_rig(inventory: str, pairs: Sequence[str] = ()) -> Rig:
    """The rig of an inventory file; `pairs` are KEY=VALUE as for pyinfra's --data.

    SpecError has one line a problem: no such file, a file that does not run, wrong data.
    """
    if not Path(inventory).is_file():
        known = ", ".join(f"inventory/{f.name}" for f in sorted((ROOT / "inventory").glob("*.py")))
        raise SpecError(f"--rig: {inventory} is not a file; there are: {known or 'none'}")
    path = Path(inventory).resolve()
    # Short, so that errors and remedies name it as the operator does.
    named = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    command = [sys.executable, "-m", "tests.infra.rigdata", named, *pairs]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SpecError(f"{named}: did not load within {LOAD_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise SpecError(*problem_lines(done.stderr, named))
    document = json.loads(done.stdout.splitlines()[-1])
    plan = load.plan(document["hosts"], document["sources"], ROOT)
    return Rig(named, tuple(pairs), plan, document["hosts"])


def problem_lines(stderr: str, inventory: str) -> list[str]:
    """The problems that the loader named; of a crash only its last line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    if not lines:
        return [f"{inventory}: the loader ended without a word"]
    return [f"{inventory}: {lines[-1]}"] if "Traceback" in stderr else lines


def ssh_config(name: str, data: Mapping[str, object], socket: Path) -> str:
    """The text of an ssh_config for one host: pyinfra's ssh_ keys, and one shared connection.

    The operator's own ssh_config comes last, so it adds what the rig's data leaves open, as
    pyinfra does. SpecError names a key that OpenSSH cannot use without a terminal.
    """
    for key in PARAMIKO_ONLY:
        if data.get(key):
            raise SpecError(f"host {name}: {key}: tests/infra logs in by ssh_key or an agent")
    lines = ["Host *", f"User {_word(name, 'ssh_user', data['ssh_user'])}"]
    if data.get("ssh_port"):
        lines.append(f"Port {_word(name, 'ssh_port', data['ssh_port'])}")
    if data.get("ssh_key"):
        lines += [f"IdentityFile {_path(name, 'ssh_key', data['ssh_key'])}", "IdentitiesOnly yes"]
    if data.get("ssh_known_hosts_file"):
        known = _path(name, "ssh_known_hosts_file", data["ssh_known_hosts_file"])
        lines.append(f"UserKnownHostsFile {known}")
    strict = data.get("ssh_strict_host_key_checking") or "yes"
    lines += [
        f"StrictHostKeyChecking {_word(name, 'ssh_strict_host_key_checking', strict)}",
        "BatchMode yes",
        f"ConnectTimeout {CONNECT_TIMEOUT_S}",
        "ServerAliveInterval 5",
        "ControlMaster auto",
        f"ControlPath {_path(name, 'ControlPath', socket)}",
        "ControlPersist 60",
        f"Include {_path(name, 'ssh_config_file', data.get('ssh_config_file') or '~/.ssh/config')}",
    ]
    return "\n".join([lines[0], *(f"    {line}" for line in lines[1:]), ""])


def _word(name: str, key: str, value: object) -> str:
    """A value as one double-quoted word; ssh_config has no escape for a quote or a newline."""
    text = str(value)
    if '"' in text or not text.isprintable():
        raise SpecError(f"host {name}: {key}: {text!a} cannot stand in an ssh_config")
    return f'"{text}"'


def _path(name: str, key: str, value: object) -> str:
    """A path as one word; `%` starts a token there."""
    return _word(name, key, value if key == "ssh_config_file" else str(value).replace("%", "%%"))


class Connections:
    """testinfra hosts of a rig, one ssh connection each, shared by all of its commands."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        # Straight in /tmp: a socket's path may have 108 bytes, and ssh adds 17 of its own.
        self.folder = Path(tempfile.mkdtemp(prefix="rigbook-", dir="/tmp"))
        try:
            for node in rig.plan.rig.nodes:
                text = ssh_config(node.name, rig.hosts[node.name], self.folder / str(node.rank))
                self.config(node.name).write_text(text)
        except SpecError:
            shutil.rmtree(self.folder)
            raise

    def host(self, name: str) -> Host:
        """The testinfra host of a node; its commands run as root."""
        data = self._rig.hosts[name]
        sudo = bool(data.get("_sudo", data["ssh_user"] != "root"))
        return testinfra.get_host(
            f"ssh://{self.target(name)}",
            ssh_config=str(self.config(name)),
            # The config has the control master; testinfra's own options would override it.
            controlpersist=0,
            timeout=CONNECT_TIMEOUT_S,
            sudo=sudo,
        )

    def close(self) -> None:
        """Ends the connections and removes their sockets."""
        for name in self._rig.hosts:
            command = ["ssh", "-F", str(self.config(name)), "-O", "exit", self.target(name)]
            subprocess.run(command, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self.folder)

    def config(self, name: str) -> Path:
        """The ssh_config of a node."""
        return self.folder / f"{name}.conf"

    def target(self, name: str) -> str:
        """What ssh is told to connect to."""
        return str(self._rig.hosts[name].get("ssh_hostname") or name)
