"""What a supervisor writes about its host, and everybody else reads."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from lab.core.settings import LabError, LabHost, LabSettings
from lab.hosts import processes
from lab.hosts.processes import Process


@dataclass(frozen=True)
class HostState:
    """State of one host: its processes by identity, how often it booted, why it ended."""

    supervisor: Process | None = None
    nspawn: Process | None = None
    leader: Process | None = None
    boots: int = 0
    root: str = ""
    ended: str = ""

    def running(self) -> bool:
        """Whether the host's supervisor is alive."""
        return processes.alive(self.supervisor)

    def live_leader(self) -> Process | None:
        """The host's first process (pid 1 inside), if it runs now."""
        return self.leader if processes.alive(self.leader) else None

    def word(self) -> str:
        """One word for a table: running, booting, stopped or crashed."""
        if self.running():
            return "running" if self.live_leader() else "booting"
        return "stopped" if self.ended or not self.supervisor else "crashed"


def take(settings: LabSettings) -> None:
    """Note that the lab is made for this process; LabError when it is another live one's."""
    other = owner(settings)
    if other and other.pid != os.getpid():
        raise LabError(f"the {settings.place.name} lab is in use by process {other.pid}")
    me = processes.identify(os.getpid())
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.owner_file.write_text(json.dumps(me and me.as_json()) + "\n")


def owner(settings: LabSettings) -> Process | None:
    """The live process that the lab was made for; None where there is none."""
    try:
        found = processes.from_json(json.loads(settings.owner_file.read_text()))
    except (OSError, ValueError):
        return None
    return found if processes.alive(found) else None


def note(settings: LabSettings, pid: int) -> None:
    """Notes a process that is started beside the hosts: `down` ends it, whoever else was killed."""
    process = processes.identify(pid)
    if process is not None:
        with (settings.home / "beside").open("a") as file:
            file.write(f"{process.pid} {process.start}\n")


def end_noted(settings: LabSettings) -> None:
    """Ends the noted processes that still run."""
    try:
        rows = [line.split() for line in (settings.home / "beside").read_text().splitlines()]
    except OSError:
        return
    for pid, start in rows:
        process = Process(int(pid), int(start))
        if processes.send(process, signal.SIGKILL) and not processes.wait_gone(process, 10):
            raise LabError(f"process {pid} does not end")
    (settings.home / "beside").unlink()


def path(settings: LabSettings, host: LabHost) -> Path:
    """The host's state file."""
    return settings.host_dir(host) / "state.json"


def read(settings: LabSettings, host: LabHost) -> HostState:
    """The last state written; an empty one if there is none."""
    try:
        data = json.loads(path(settings, host).read_text())
    except (OSError, ValueError):
        return HostState()
    return HostState(
        supervisor=processes.from_json(data.get("supervisor")),
        nspawn=processes.from_json(data.get("nspawn")),
        leader=processes.from_json(data.get("leader")),
        boots=int(data.get("boots", 0)),
        root=str(data.get("root", "")),
        ended=str(data.get("ended", "")),
    )


def write(settings: LabSettings, host: LabHost, state: HostState) -> None:
    """Replace the state file in one step."""
    data = {
        "supervisor": state.supervisor and state.supervisor.as_json(),
        "nspawn": state.nspawn and state.nspawn.as_json(),
        "leader": state.leader and state.leader.as_json(),
        "boots": state.boots,
        "root": state.root,
        "ended": state.ended,
    }
    target = path(settings, host)
    temporary = target.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(target)
