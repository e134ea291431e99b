"""The hosts of a lab as a person at their consoles sees them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from lab.core.settings import LabError, LabSettings
from lab.hosts.ssh import ssh_argv


class Hosts:
    """The hosts of one lab, by name; commands run as the lab's login user, who may sudo."""

    def __init__(self, settings: LabSettings) -> None:
        self.settings = settings
        self.hosts = {host.name: host for host in settings.hosts()}

    def ssh(self, host: str, command: str, check: bool = True, stdin: str = "") -> str:
        """Runs a shell command on a host; its standard output.

        All commands for a host share one connection. LabError when it fails, unless not `check`.
        """
        done = subprocess.run(
            [*self.shared(host), command], input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise LabError(f"{host}: {command}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def shared(self, host: str, *more: str) -> list[str]:
        """ssh to a host over the connection that its other commands use."""
        socket = self.settings.ssh_key.parent / "%h.socket"
        shared = ("-oControlMaster=auto", "-oControlPersist=15", f"-oControlPath={socket}", *more)
        *words, target = ssh_argv(self.settings, self.hosts[host])
        return [*words, *shared, target]

    def changes(self, host: str) -> list[dict[str, Any]]:
        """The host's journal, newest first."""
        text = self.ssh(host, "echo '{}' | sudo rignode journal")
        return list(json.loads(text)["changes"])

    def unit(self, host: str, *names: str) -> list[str]:
        """Values of properties of the engine's unit."""
        wanted = ",".join(names)
        text = self.ssh(host, f"systemctl show -p {wanted} rigbook-engine.service")
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        return [values[name] for name in names]
