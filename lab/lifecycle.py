"""The life of the lab: up, down, start, stop, reboot. Safe to run twice and after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import core
from lab import host as lab_host
from lab.core import (
    CONTAINERD_HOST,
    DEFAULT_HOSTS,
    FABRIC_DEVICE,
    MAX_HOSTS,
    LabError,
    LabHost,
    LabSettings,
    Twin,
    in_parallel,
)

# Debian root trees by mmdebstrap, from the package sources this machine already uses.

SUITE = "bookworm"
# the next release: its docker has the containerd image store
CONTAINERD_SUITE = "trixie"
TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
HOST_PACKAGES = [
    "systemd-sysv", "dbus", "udev", "openssh-server", "python3", "python3-venv", "sudo",
    "iproute2", "iputils-ping", "ethtool", "kmod", "zstd", "procps", "psmisc",
    "ca-certificates", "docker.io", "iptables", "curl", "jq", "binutils", "file", "strace",
    "netcat-openbsd", "socat", "rsync", "earlyoom",
]  # fmt: skip
# each line runs in the new root; the lab adds keys, names and addresses per host at first start
HOST_SET_UP: tuple[str, ...] = (
    "useradd --create-home --shell /bin/bash rig",
    "usermod --lock root",
    "printf 'rig ALL=(ALL) NOPASSWD: ALL\\n' > /etc/sudoers.d/rig",
    "chmod 0440 /etc/sudoers.d/rig",
    "printf 'PasswordAuthentication no\\nKbdInteractiveAuthentication no\\n"
    "PermitRootLogin no\\n' > /etc/ssh/sshd_config.d/rig.conf",
    "mkdir -p /etc/docker && printf '{\"live-restore\": false}\\n' > /etc/docker/daemon.json",
    "rm -f /etc/ssh/ssh_host_*",
    "systemctl enable systemd-networkd.service ssh.service docker.service",
    # a test arms it with limits of its own
    "systemctl disable earlyoom.service",
    "systemctl mask systemd-networkd-wait-online.service getty.target console-getty.service"
    " apt-daily.timer apt-daily-upgrade.timer",
)
# That docker has its command line and BuildKit in packages of their own, and its unit uses the
# system's containerd.
CONTAINERD_PACKAGES = [*HOST_PACKAGES, "docker-cli", "docker-buildx", "containerd"]
CONTAINERD_SET_UP = (
    *HOST_SET_UP,
    'printf \'{"live-restore": false, "features": {"containerd-snapshotter": true}}\\n\''
    " > /etc/docker/daemon.json",
    "systemctl enable containerd.service",
)


def check_tools() -> None:
    """LabError with the one line that installs what is missing."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise LabError(f"programs are missing; install them: apt-get install {' '.join(missing)}")


def deb822_stanzas(text: str, suite: str) -> list[str]:
    """The stanzas of a .sources file that name the suite or its updates."""
    kept = []
    for stanza in re.split(r"\n\s*\n", text):
        suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
        if suites and any(belongs(word, suite) for word in suites[1].split()):
            kept.append(stanza.strip() + "\n")
    return kept


def one_line_entries(text: str, suite: str) -> list[str]:
    """The ``deb`` lines of a .list file that name the suite or its updates."""
    kept = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?\S+\s+(\S+)", line.strip())
        if match and belongs(match[1], suite):
            kept.append(line.strip() + "\n")
    return kept


def belongs(word: str, suite: str) -> bool:
    """Whether a suite name is the suite itself, its updates or its security fixes."""
    return word in (suite, f"{suite}-updates", f"{suite}-security")


def write_sources(folder: Path, suite: str = SUITE) -> list[Path]:
    """This machine's own sources, as files for mmdebstrap; [] = its defaults.

    They name SUITE; for another suite its name is put in their place.
    """
    apt = Path("/etc/apt")
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    stanzas = [
        stanza
        for path in sorted((apt / "sources.list.d").glob("*.sources"))
        for stanza in deb822_stanzas(path.read_text(), SUITE)
    ]
    entries = [
        entry
        for path in lists
        if path.is_file()
        for entry in one_line_entries(path.read_text(), SUITE)
    ]
    files = []
    for name, blocks in (("own.sources", stanzas), ("own.list", entries)):
        if blocks:
            files.append(folder / name)
            files[-1].write_text("\n".join(blocks).replace(SUITE, suite))
    return files


def bootstrap(
    target: Path,
    variant: str,
    packages: Sequence[str],
    set_up: Sequence[str],
    log: Path,
    suite: str = SUITE,
) -> None:
    """Make a root tree at ``target``; mmdebstrap's output goes to ``log``."""
    script = " && ".join(set_up)
    with tempfile.TemporaryDirectory() as folder:
        core.run_console(
            [
                "mmdebstrap",
                "--format=directory",
                f"--variant={variant}",
                f"--include={','.join(packages)}",
                '--aptopt=APT::Install-Recommends "false"',
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                *([f"--customize-hook=chroot \"$1\" sh -ec '{_quoted(script)}'"] if script else []),
                suite,
                target,
                *write_sources(Path(folder), suite),
            ],
            log=log,
        )


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")


def host_root(settings: LabSettings, containerd: bool = False) -> Path:
    """The cached root tree of a lab host, built if it is not there.

    `containerd`: of one whose docker keeps images in the containerd store.
    """
    suite, packages, set_up = SUITE, HOST_PACKAGES, HOST_SET_UP
    if containerd:
        suite, packages, set_up = CONTAINERD_SUITE, CONTAINERD_PACKAGES, CONTAINERD_SET_UP
    recipe = [suite, "minbase", packages, set_up, "no-doc-1"]
    target = settings.roots / f"host-{core.recipe_hash(recipe)}"
    if target.exists():
        return target
    settings.roots.mkdir(parents=True, exist_ok=True)
    log = settings.roots / f"{target.name}.log"
    with core.phase(f"host root tree of {suite} by mmdebstrap", "2 minutes"):
        core.build_once(
            target, lambda part: bootstrap(part, "minbase", packages, set_up, log, suite)
        )
    return target


POWEROFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5
STOP_SECONDS = 30
# what a host holds is thrown away then: no need to wait for its containers
DOWN_SECONDS = 3
REPOSITORY = Path(__file__).resolve().parents[1]


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
    check_tools()
    lower = host_root(settings)
    newer = host_root(settings, containerd=True) if containerd else lower
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
    lab_host.make_keys(settings)
    hosts = settings.hosts()
    asleep = [host for host in hosts if not lab_host.read_state(settings, host).running()]
    with core.phase(f"boot {len(asleep)} of {len(hosts)} hosts", "5 s"):
        for host in asleep:
            start(settings, host, newer if host.containerd else lower)
        in_parallel(hosts, lambda host: lab_host.wait_ready(settings, host))
        wait_fabric(settings)


def note_layer(settings: LabSettings, tower: LabHost, layer: Path) -> None:
    """Note with which layer this tower is made."""
    note = settings.host_dir(tower) / "layer"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    note.symlink_to(layer)


def start(settings: LabSettings, host: LabHost, lower: Path | None = None) -> None:
    """Start a host's supervisor, detached; nothing to do if it runs."""
    state = lab_host.read_state(settings, host)
    if state.running():
        return
    root = Path(state.root) if state.root else lower
    if root is None or not root.is_dir():
        raise LabError(f"{host.name} was never made (or its root tree was purged): run 'up'")
    folder = settings.host_dir(host)
    folder.mkdir(parents=True, exist_ok=True)
    lab_host.bridge_up(settings.place)
    # what a killed supervisor left running would hold the overlay and the addresses
    lab_host.empty_cgroup(lab_host.lab_cgroup(settings.home) / host.machine)
    with (folder / "supervisor.log").open("ab") as log:
        child = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private",
             sys.executable, "-m", "lab.host", host.name, str(root)],
            cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
            env={**os.environ, "RIGBOOK_LAB": settings.place.name,
                 "RIGBOOK_LAB_HOME": str(settings.home), "RIGBOOK_CACHE": str(settings.cache)},
        )  # fmt: skip
    deadline = time.monotonic() + 10
    while not lab_host.read_state(settings, host).running():
        if child.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"{host.name}: no supervisor; see {folder / 'supervisor.log'}")
        time.sleep(0.05)


def wait_fabric(settings: LabSettings, seconds: float = 15) -> None:
    """Wait until the fabric's link is in each host, if there are several and it is wanted."""
    joined = settings.fabric_hosts()
    deadline = time.monotonic() + seconds
    while len(joined) > 1 and not settings.fabric_down_flag.exists():
        leaders = lab_host.fabric_leaders(settings)
        bare = [h for h in joined if FABRIC_DEVICE not in lab_host.devices_of(leaders.get(h, 0))]
        if not bare:
            return
        if time.monotonic() > deadline:
            names = ", ".join(host.name for host in bare)
            raise LabError(f"no {FABRIC_DEVICE} in {names} after {seconds:.0f} s")
        time.sleep(0.1)


def stop(settings: LabSettings, host: LabHost, seconds: float = STOP_SECONDS) -> None:
    """Power a host off, as from inside; after ``seconds`` kill exactly what is its own."""
    state = lab_host.read_state(settings, host)
    leader = state.live_leader()
    if leader and state.running() and lab_host.send_signal(leader, POWEROFF):
        lab_host.wait_gone(leader, seconds)
    supervisor = state.supervisor
    if supervisor and not lab_host.wait_gone(supervisor, 3):
        for signum in (signal.SIGTERM, signal.SIGKILL):
            lab_host.send_signal(supervisor, signum)
            if lab_host.wait_gone(supervisor, 3):
                break
    if not lab_host.empty_cgroup(lab_host.lab_cgroup(settings.home) / host.machine):
        raise LabError(f"{host.name}: processes in its cgroup do not end")


def reboot(settings: LabSettings, host: LabHost) -> None:
    """Reboot a host, as from inside, and wait until it is ready again."""
    leader = lab_host.read_state(settings, host).live_leader()
    if not leader or not lab_host.send_signal(leader, REBOOT):
        raise LabError(f"{host.name} is not running")
    if not lab_host.wait_gone(leader, STOP_SECONDS):
        raise LabError(f"{host.name} did not go down within {STOP_SECONDS} s")
    lab_host.wait_ready(settings, host)
    wait_fabric(settings)


def _every_host(settings: LabSettings) -> list[LabHost]:
    """Those of this lab, and all that one can have: a crash may have lost the lab's own list."""
    place = settings.place
    return settings.hosts() + place.hosts(MAX_HOSTS) + place.towers(1)


def down(settings: LabSettings) -> None:
    """Stop everything and remove all of it; also after a crash, and when run twice."""
    hosts_dir = settings.home / "hosts"
    of_a_rig = settings.twin() is not None
    lab_host.end_noted(settings)
    known = {host.machine: host for host in _every_host(settings)}
    hosts = [host for host in known.values() if settings.host_dir(host).exists()]
    if hosts:
        with core.phase(f"stop {len(hosts)} hosts", "5 s"):
            in_parallel(hosts, lambda host: stop(settings, host, DOWN_SECONDS))
    lab_host.remove_links(settings.place, [*known])
    with contextlib.suppress(OSError):
        lab_host.lab_cgroup(settings.home).rmdir()
    with core.phase("remove the lab's files"):
        core.remove_tree(hosts_dir)
        core.remove_tree(settings.home)
        if of_a_rig:
            core.remove_tree(REPOSITORY / "build" / settings.place.name)


# What there is: hosts with their processes and addresses, and what the cache holds.


def show_status(settings: LabSettings) -> None:
    """Print a table of the hosts and one of the cache."""
    if settings.state_file.exists():
        print(f"{'HOST':6} {'STATE':9} {'LAN':12} {'FABRIC':22} {'SUPERVISOR':>10} "
              f"{'PID 1':>8} {'BOOTS':>5}  DISK")  # fmt: skip
        for host in settings.hosts():
            state = lab_host.read_state(settings, host)
            leader = state.live_leader()
            plugged = leader and FABRIC_DEVICE in lab_host.devices_of(leader.pid)
            fabric = f"{host.fabric_address} {'plugged' if plugged else 'unplugged'}"
            size = core.human(core.disk_usage(settings.host_dir(host) / "upper"))
            print(f"{host.name:6} {state.word():9} {host.address:12} "
                  f"{fabric if host.has_fabric else '-':22} "
                  f"{state.supervisor.pid if state.supervisor else '-':>10} "
                  f"{leader.pid if leader else '-':>8} {state.boots:>5}  {size}")  # fmt: skip
    else:
        print(f"no lab ({settings.home} holds none)")
    for folder in (settings.roots, settings.images):
        for path in sorted(folder.glob("[!.]*")) if folder.is_dir() else []:
            if path.suffix != ".log":
                print(f"cached {path.name}: {core.human(core.disk_usage(path))}")
