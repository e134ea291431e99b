"""The life of the lab: up, down, start, stop, reboot. Safe to run twice and after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.core import cache, console
from lab.core.parallel import in_parallel
from lab.core.settings import (
    CONTAINERD_HOST,
    DEFAULT_HOSTS,
    FABRIC_DEVICE,
    MAX_HOSTS,
    LabError,
    LabHost,
    LabSettings,
    Twin,
)
from lab.hosts import debian_root, network, prepare, processes, ssh
from lab.hosts import state as hosts_state

POWEROFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5
STOP_SECONDS = 30
# what a host holds is thrown away then: no need to wait for its containers
DOWN_SECONDS = 3
REPOSITORY = Path(__file__).resolve().parents[2]


def up(
    settings: LabSettings,
    count: int | None = None,
    tower_layer: Callable[[LabSettings], Path] | None = None,
    containerd: bool = False,
    twin: Twin | None = None,
) -> None:
    """Bring ``count`` hosts up and wait until they are ready; nothing to do when they are.

    ``count`` None: those that exist, else the default lab's, and none beside a tower alone. A
    tower that exists stays; ``tower_layer`` adds one, whose engine is in the folder that this
    gives. ``containerd``: from the second host on docker has
    the containerd image store; that a lab is made with, and so is ``twin``.
    """
    exists = settings.state_file.exists()
    there = [host for host in settings.hosts() if not host.is_tower]
    towers = [host for host in settings.hosts() if host.is_tower] if exists else []
    if count is None:
        count = len(there) if exists else 0 if tower_layer else DEFAULT_HOSTS
    elif not 1 <= count <= MAX_HOSTS:
        raise LabError(f"--hosts must be 1 to {MAX_HOSTS}, not {count}")
    elif exists and len(there) != count:
        raise LabError(f"a lab of {len(there)} hosts exists; run 'down' first")
    has_it = exists and any(host.containerd for host in there)
    if containerd and exists and not has_it:
        raise LabError("a lab without the containerd store exists; run 'down' first")
    containerd = containerd or has_it
    of = settings.twin()
    if twin and exists and (of is None or of.names != twin.names or of.user != twin.user):
        raise LabError(f"hosts of another rig are in {settings.home}; 'down' first")
    twin = twin or of
    if containerd and count < CONTAINERD_HOST:
        raise LabError(f"--containerd needs --hosts {CONTAINERD_HOST} or more")
    debian_root.check_tools()
    lower = debian_root.host_root(settings)
    newer = debian_root.host_root(settings, containerd=True) if containerd else lower
    settings.images.mkdir(parents=True, exist_ok=True)
    if tower_layer and not towers:
        towers = settings.place.towers(1)
        note_layer(settings, towers[0], tower_layer(settings))
    settings.home.mkdir(parents=True, exist_ok=True)
    state: dict[str, object] = {"hosts": count}
    state |= {"towers": len(towers)} if towers else {}
    state |= {"containerd": True} if containerd else {}
    state |= {"twin": twin.as_json()} if twin else {}
    settings.state_file.write_text(json.dumps(state) + "\n")
    prepare.make_keys(settings)
    hosts = settings.hosts()
    asleep = [host for host in hosts if not hosts_state.read(settings, host).running()]
    with console.phase(f"boot {len(asleep)} of {len(hosts)} hosts", "5 s"):
        for host in asleep:
            start(settings, host, newer if host.containerd else lower)
        in_parallel(hosts, lambda host: ssh.wait_ready(settings, host))
        wait_fabric(settings)


def note_layer(settings: LabSettings, tower: LabHost, layer: Path) -> None:
    """Note with which layer this tower is made."""
    note = settings.host_dir(tower) / "layer"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    note.symlink_to(layer)


def start(settings: LabSettings, host: LabHost, lower: Path | None = None) -> None:
    """Start a host's supervisor, detached; nothing to do if it runs."""
    state = hosts_state.read(settings, host)
    if state.running():
        return
    root = Path(state.root) if state.root else lower
    if root is None or not root.is_dir():
        raise LabError(f"{host.name} was never made (or its root tree was purged): run 'up'")
    folder = settings.host_dir(host)
    folder.mkdir(parents=True, exist_ok=True)
    network.bridge_up(settings.place)
    # what a killed supervisor left running would hold the overlay and the addresses
    processes.empty_cgroup(processes.lab_cgroup(settings.home) / host.machine)
    with (folder / "supervisor.log").open("ab") as log:
        child = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private",
             sys.executable, "-m", "lab.hosts.supervisor", host.name, str(root)],
            cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
            env={**os.environ, "RIGBOOK_LAB": settings.place.name,
                 "RIGBOOK_LAB_HOME": str(settings.home), "RIGBOOK_CACHE": str(settings.cache)},
        )  # fmt: skip
    deadline = time.monotonic() + 10
    while not hosts_state.read(settings, host).running():
        if child.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"{host.name}: no supervisor; see {folder / 'supervisor.log'}")
        time.sleep(0.05)


def wait_fabric(settings: LabSettings, seconds: float = 15) -> None:
    """Wait until the fabric's link is in each host, if there are several and it is wanted."""
    joined = settings.fabric_hosts()
    deadline = time.monotonic() + seconds
    while len(joined) > 1 and not settings.fabric_down_flag.exists():
        leaders = network.fabric_leaders(settings)
        bare = [h for h in joined if FABRIC_DEVICE not in network.devices_of(leaders.get(h, 0))]
        if not bare:
            return
        if time.monotonic() > deadline:
            names = ", ".join(host.name for host in bare)
            raise LabError(f"no {FABRIC_DEVICE} in {names} after {seconds:.0f} s")
        time.sleep(0.1)


def stop(settings: LabSettings, host: LabHost, seconds: float = STOP_SECONDS) -> None:
    """Power a host off, as from inside; after ``seconds`` kill exactly what is its own."""
    state = hosts_state.read(settings, host)
    leader = state.live_leader()
    if leader and state.running() and processes.send(leader, POWEROFF):
        processes.wait_gone(leader, seconds)
    supervisor = state.supervisor
    if supervisor and not processes.wait_gone(supervisor, 3):
        for signum in (signal.SIGTERM, signal.SIGKILL):
            processes.send(supervisor, signum)
            if processes.wait_gone(supervisor, 3):
                break
    if not processes.empty_cgroup(processes.lab_cgroup(settings.home) / host.machine):
        raise LabError(f"{host.name}: processes in its cgroup do not end")


def reboot(settings: LabSettings, host: LabHost) -> None:
    """Reboot a host, as from inside, and wait until it is ready again."""
    leader = hosts_state.read(settings, host).live_leader()
    if not leader or not processes.send(leader, REBOOT):
        raise LabError(f"{host.name} is not running")
    if not processes.wait_gone(leader, STOP_SECONDS):
        raise LabError(f"{host.name} did not go down within {STOP_SECONDS} s")
    ssh.wait_ready(settings, host)
    wait_fabric(settings)


def _every_host(settings: LabSettings) -> list[LabHost]:
    """Those of this lab, and all that one can have: a crash may have lost the lab's own list."""
    place = settings.place
    return settings.hosts() + place.hosts(MAX_HOSTS) + place.towers(1)


def down(settings: LabSettings) -> None:
    """Stop everything and remove all of it; also after a crash, and when run twice."""
    hosts_dir = settings.home / "hosts"
    of_a_rig = settings.twin() is not None
    hosts_state.end_noted(settings)
    known = {host.machine: host for host in _every_host(settings)}
    hosts = [host for host in known.values() if settings.host_dir(host).exists()]
    if hosts:
        with console.phase(f"stop {len(hosts)} hosts", "5 s"):
            in_parallel(hosts, lambda host: stop(settings, host, DOWN_SECONDS))
    network.remove_links(settings.place, [*known])
    with contextlib.suppress(OSError):
        processes.lab_cgroup(settings.home).rmdir()
    with console.phase("remove the lab's files"):
        cache.remove(hosts_dir)
        cache.remove(settings.home)
        if of_a_rig:
            cache.remove(REPOSITORY / "build" / settings.place.name)
