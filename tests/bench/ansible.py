"""The twenty checks as an Ansible run, with everything that Ansible writes in temporary folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from schema.desired.plan import Plan
from tests.bench.checks import checks, host_vars
from tests.infra.plugin import Connections, Rig

# On the hosts; Ansible makes it there, the bench removes it.
REMOTE_TMP = "/tmp/rigbook-bench-ansible"
TIMEOUT_S = 180


class AnsibleRun:
    """A playbook of twenty tasks that change nothing: pipelining, five forks, ControlPersist."""

    def __init__(self, rig: Rig, connections: Connections) -> None:
        self._rig = rig
        self._connections = connections
        self._folder = Path(tempfile.mkdtemp(prefix="rigbook-", dir="/tmp"))
        plan = rig.plan
        hosts = {node.name: self._host(plan, node.name) for node in plan.rig.nodes}
        # Of its own and empty: an ansible.cfg of the operator's must not slip in.
        (self._folder / "ansible.cfg").write_text("")
        self._write("inventory.yaml", {"all": {"hosts": hosts}})
        tasks = [{"name": c.name, **c.task} for c in checks(plan, plan.rig.head)]
        self._write("playbook.yaml", [{"hosts": "all", "become": True, "tasks": tasks}])

    def _host(self, plan: Plan, name: str) -> dict[str, object]:
        """A host's variables; its files go where the copy tasks find them."""
        (self._folder / name).mkdir()
        for document in plan.documents[name]:
            file = self._folder / name / document.path.rpartition("/")[2]
            file.write_text(document.content)
        return {
            "ansible_host": self._connections.target(name),
            "ansible_ssh_common_args": f"-F {self._connections.config(name)}",
            "ansible_remote_tmp": REMOTE_TMP,
            **host_vars(plan, plan.rig.node(name)),
        }

    def _write(self, name: str, document: object) -> None:
        (self._folder / name).write_text(yaml.safe_dump(document, sort_keys=False))

    def run(self, tuned: bool) -> None:
        """One run from a cold connection; RuntimeError unless every task was ok and unchanged.

        `tuned`: without fact gathering and with the interpreter named, which no check needs.
        """
        sockets = Path(tempfile.mkdtemp(prefix="rigbook-", dir="/tmp"))
        environ = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self._folder / "ansible.cfg"),
            "ANSIBLE_HOME": str(self._folder),
            "ANSIBLE_LOCAL_TEMP": str(self._folder / "tmp"),
            # For the task that runs here; the hosts have a variable of their own.
            "ANSIBLE_REMOTE_TMP": str(self._folder / "tmp"),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_FORKS": "5",
            "ANSIBLE_GATHERING": "explicit" if tuned else "implicit",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
            "ANSIBLE_SSH_CONTROL_PATH": f"{sockets}/%%C",
            "ANSIBLE_NOCOLOR": "1",
        }
        extra = ["-e", "ansible_python_interpreter=/usr/bin/python3"] if tuned else []
        program = Path(sys.executable).parent / "ansible-playbook"
        command = [str(program), "-i", "inventory.yaml", "playbook.yaml", *extra]
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        finally:
            self._end_masters(sockets)
        recap = re.findall(r"^(\S+) +: ok=(\d+) +changed=(\d+)", done.stdout, re.M)
        # The completion runs once, on the first host.
        if (
            done.returncode != 0
            or len(recap) != len(self._rig.hosts)
            or any(changed != "0" or int(ok) < 19 for _, ok, changed in recap)
        ):
            raise RuntimeError(f"ansible-playbook: {done.stdout[-3000:]}{done.stderr[-1000:]}")

    def _end_masters(self, sockets: Path) -> None:
        for socket in sockets.iterdir():
            command = ["ssh", "-F", "/dev/null", "-S", str(socket), "-O", "exit", "any"]
            subprocess.run(command, capture_output=True, timeout=10, check=False)
        shutil.rmtree(sockets)

    def close(self) -> None:
        """Removes what Ansible wrote, here and on the hosts."""
        for name in self._rig.hosts:
            self._connections.host(name).run("rm -rf -- %s", REMOTE_TMP)
        shutil.rmtree(self._folder)
