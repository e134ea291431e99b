"""Keeps one lab host running: mounts its root, runs systemd-nspawn, restarts it on a reboot.

Started by the lab as ``unshare --mount python -m lab.hosts.supervisor NAME``: every mount made here
lives in this process's own mount namespace and is gone with the last process of the host.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from lab.core.settings import CACHE_IN_HOST, FABRIC_DEVICE, LabError, LabHost, LabSettings, load
from lab.hosts import network, prepare, processes
from lab.hosts import state as hosts_state
from lab.hosts.processes import Process
from lab.hosts.state import HostState

REBOOT = 133
POLL_SECONDS = 0.3
NSPAWN_ENVIRONMENT = {
    "SYSTEMD_SECCOMP": "0",
    # docker needs cgroup v2 inside, and /proc/sys and /sys to be writable
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
}


def nspawn_argv(settings: LabSettings, host: LabHost) -> list[str]:
    """The systemd-nspawn command line of a host."""
    folder = settings.host_dir(host)
    containerd = [f"--bind={folder / 'containerd'}:/var/lib/containerd"] if host.containerd else []
    return [
        "systemd-nspawn",
        f"--directory={folder / 'root'}",
        "--boot",
        "--register=no",
        # no scope of systemd's: the lab's own cgroup holds the host, also where pid 1 is no systemd
        "--keep-unit",
        f"--machine={host.machine}",
        f"--network-bridge={settings.place.bridge}",
        "--capability=all",
        "--system-call-filter=add_key keyctl bpf @mount",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=read-only",
        # overlay2 works on this plain folder; overlay on overlay does not
        f"--bind={folder / 'docker'}:/var/lib/docker",
        *containerd,
        f"--bind-ro={settings.images}:{CACHE_IN_HOST}",
    ]


def mount_root(settings: LabSettings, host: LabHost, lower: Path) -> None:
    """Mount the host's overlay, and a tmpfs where nspawn keeps its sockets and locks."""
    folder = settings.host_dir(host)
    for name in ("upper", "work", "root", "docker", "containerd"):
        (folder / name).mkdir(exist_ok=True)
    options = overlay_options(settings, host, lower)
    Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
    # without this tmpfs a reboot ends with "Attempted to remove disk file system"
    mount("tmpfs", "tmpfs", Path("/run/systemd/nspawn"), "mode=0755")
    mount("overlay", "overlay", folder / "root", options)


def overlay_options(settings: LabSettings, host: LabHost, lower: Path) -> str:
    """The options of the overlay that is a host's root; a tower's has its layer on top."""
    folder = settings.host_dir(host)
    rest = f"upperdir={folder / 'upper'},workdir={folder / 'work'}"
    if not host.is_tower:
        return f"lowerdir={lower},{rest}"
    # the layer that the host was made with, also after the recipe of the layer has changed
    return f"lowerdir={(folder / 'layer').resolve()}:{lower},{rest},redirect_dir=on"


def mount(kind: str, source: str, target: Path, options: str) -> None:
    """Mount a filesystem; LabError with mount's words if it fails."""
    done = subprocess.run(
        ["mount", "-t", kind, source, str(target), "-o", options], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise LabError(done.stderr.strip())


def find_leader(nspawn_pid: int) -> Process | None:
    """The host's pid 1: the child of nspawn that is number 1 in a pid namespace of its own."""
    for pid in processes.children(nspawn_pid):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            # NSpid: number here, number in the host; nspawn's helper has only the first
            if line.startswith("NSpid:") and line.split()[2:] == ["1"]:
                return processes.identify(pid)
    return None


def start_nspawn(settings: LabSettings, host: LabHost) -> subprocess.Popen[bytes]:
    """Start systemd-nspawn in the host's own cgroup."""
    cgroup = processes.lab_cgroup(settings.home) / host.machine
    processes.empty_cgroup(cgroup)
    cgroup.mkdir(parents=True)

    def enter_cgroup() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    with (settings.host_dir(host) / "console.log").open("ab") as console:
        return subprocess.Popen(
            nspawn_argv(settings, host),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env={**os.environ, **NSPAWN_ENVIRONMENT},
            preexec_fn=enter_cgroup,
        )


def run_once(settings: LabSettings, host: LabHost, state: HostState) -> tuple[int, HostState]:
    """One life of the host, from boot to nspawn's exit code; plugs the fabric meanwhile."""
    child = start_nspawn(settings, host)
    state = replace(state, nspawn=processes.identify(child.pid), leader=None, boots=state.boots + 1)
    hosts_state.write(settings, host, state)
    while child.poll() is None:
        if state.leader is None:
            leader = find_leader(child.pid)
            if leader:
                state = replace(state, leader=leader)
                hosts_state.write(settings, host, state)
        elif host.has_fabric:
            keep_fabric(settings, state.leader)
        time.sleep(POLL_SECONDS if state.leader else 0.05)
    state = replace(state, nspawn=None, leader=None)
    return child.returncode, state


def keep_fabric(settings: LabSettings, leader: Process) -> None:
    """Plug the fabric back in when a reboot of either host has taken it away."""
    if FABRIC_DEVICE in network.devices_of(leader.pid):
        return
    try:
        if network.plug_fabric(settings):
            print("fabric plugged", flush=True)
    except LabError as error:
        # a host that ends at this very moment: the next round tries again
        print(f"fabric not plugged: {error}", flush=True)


def supervise(settings: LabSettings, host: LabHost, lower: Path) -> int:
    """Run the host until it is powered off. The exit code is 0 after a clean power-off."""
    before = hosts_state.read(settings, host)
    state = HostState(
        supervisor=processes.identify(os.getpid()), boots=before.boots, root=str(lower)
    )
    hosts_state.write(settings, host, state)
    code, reason = 1, ""
    try:
        mount_root(settings, host, lower)
        prepare.write_files(settings, host)
        code = REBOOT
        while code == REBOOT:
            code, state = run_once(settings, host, state)
            print(f"systemd-nspawn ended with exit {code}", flush=True)
        reason = "powered off" if code == 0 else f"systemd-nspawn exit {code}"
    except (LabError, OSError) as error:
        reason = str(error)
    processes.empty_cgroup(processes.lab_cgroup(settings.home) / host.machine)
    hosts_state.write(settings, host, replace(state, nspawn=None, leader=None, ended=reason))
    print(f"ended: {reason}", flush=True)
    return 0 if code == 0 else 1


def main(argv: list[str]) -> int:
    """Entry point: NAME and the path of the root tree."""
    settings = load()
    # the hosts' folders must be readable inside, whatever umask ``up`` ran under
    os.umask(0o022)
    # Ctrl-C in the terminal that ran ``up`` is not for the hosts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return supervise(settings, settings.host(argv[0]), Path(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
