"""One nspawn host: processes, state, network, ssh, supervisor (`-m lab.host NAME`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab import core
from lab.core import (
    CACHE_IN_HOST,
    FABRIC_DEVICE,
    FABRIC_MTU,
    FABRIC_PREFIX,
    LAN_PREFIX,
    MODEL_PATH,
    SSH_USER,
    LabError,
    LabHost,
    LabSettings,
    Place,
    load_settings,
)

# Processes by identity (pid + start time), never by pattern; and their cgroups.


@dataclass(frozen=True)
class Process:
    """A process that a reused pid cannot be mistaken for. ``start`` is in clock ticks."""

    pid: int
    start: int

    def as_json(self) -> dict[str, int]:
        """The two numbers, for a state file."""
        return {"pid": self.pid, "start": self.start}


def from_json(data: object) -> Process | None:
    """The process a state file names, or None if it names none."""
    if isinstance(data, dict) and {"pid", "start"} <= data.keys():
        return Process(int(data["pid"]), int(data["start"]))
    return None


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start time (field 22) of a /proc/PID/stat line."""
    # the command name may hold spaces and brackets: count from the last ')'
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> Process | None:
    """The identity of a live process, or None if there is no such process."""
    try:
        state, start = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZX" else Process(pid, start)


def alive(process: Process | None) -> bool:
    """Whether exactly this process still runs."""
    return process is not None and identify(process.pid) == process


def send_signal(process: Process, signum: int) -> bool:
    """Signal exactly this process through a pidfd; False if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # checked after the pidfd is open: from here on it can't be another process
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def wait_gone(process: Process, seconds: float) -> bool:
    """Wait until the process has ended; False if it outlives the time."""
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def children(pid: int) -> list[int]:
    """Direct children of a process (of its main thread)."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def cgroup_mount(mounts: str) -> Path | None:
    """Where the cgroup v2 hierarchy is mounted, from the text of /proc/mounts."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def lab_cgroup(home: Path) -> Path:
    """The cgroup (v2) that holds every process of the lab at ``home``, one child a host."""
    mount = cgroup_mount(Path("/proc/mounts").read_text())
    if mount is None:
        raise LabError("no cgroup v2 hierarchy is mounted on this machine")
    # named by its home: taking one lab down can never touch another's hosts
    return mount / f"rigbook-lab-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def empty_cgroup(path: Path, seconds: float = 10) -> bool:
    """Kill what runs in a cgroup and below it, then remove it. True when it is gone."""
    deadline = time.monotonic() + seconds
    while path.exists():
        with contextlib.suppress(OSError):
            (path / "cgroup.kill").write_text("1")
        # only an empty cgroup can be removed, innermost first
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        if not path.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# What a supervisor writes about its host, and everybody else reads.


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
        return alive(self.supervisor)

    def live_leader(self) -> Process | None:
        """The host's first process (pid 1 inside), if it runs now."""
        return self.leader if alive(self.leader) else None

    def word(self) -> str:
        """One word for a table: running, booting, stopped or crashed."""
        if self.running():
            return "running" if self.live_leader() else "booting"
        return "stopped" if self.ended or not self.supervisor else "crashed"


def take_state(settings: LabSettings) -> None:
    """Note that the lab is made for this process; LabError when it is another live one's."""
    other = owner(settings)
    if other and other.pid != os.getpid():
        raise LabError(f"the {settings.place.name} lab is in use by process {other.pid}")
    me = identify(os.getpid())
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.owner_file.write_text(json.dumps(me and me.as_json()) + "\n")


def owner(settings: LabSettings) -> Process | None:
    """The live process that the lab was made for; None where there is none."""
    try:
        found = from_json(json.loads(settings.owner_file.read_text()))
    except (OSError, ValueError):
        return None
    return found if alive(found) else None


def note(settings: LabSettings, pid: int) -> None:
    """Notes a process that is started beside the hosts: `down` ends it, whoever else was killed."""
    process = identify(pid)
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
        if send_signal(process, signal.SIGKILL) and not wait_gone(process, 10):
            raise LabError(f"process {pid} does not end")
    (settings.home / "beside").unlink()


def path(settings: LabSettings, host: LabHost) -> Path:
    """The host's state file."""
    return settings.host_dir(host) / "state.json"


def read_state(settings: LabSettings, host: LabHost) -> HostState:
    """The last state written; an empty one if there is none."""
    try:
        data = json.loads(path(settings, host).read_text())
    except (OSError, ValueError):
        return HostState()
    return HostState(
        supervisor=from_json(data.get("supervisor")),
        nspawn=from_json(data.get("nspawn")),
        leader=from_json(data.get("leader")),
        boots=int(data.get("boots", 0)),
        root=str(data.get("root", "")),
        ended=str(data.get("ended", "")),
    )


def write_state(settings: LabSettings, host: LabHost, state: HostState) -> None:
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


# The LAN bridge on this machine, and the fabric: a cable between two hosts, a switch for more.


def devices(net_dev: str) -> set[str]:
    """Names of the network devices in the text of a /proc/PID/net/dev."""
    return {line.split(":")[0].strip() for line in net_dev.splitlines() if ":" in line}


def devices_of(pid: int | str) -> set[str]:
    """Network devices in the network namespace of a process; empty if it is gone."""
    try:
        return devices(Path(f"/proc/{pid}/net/dev").read_text())
    except OSError:
        return set()


def bridge_up(place: Place) -> None:
    """Make the LAN bridge with the operator's address, if it is not there."""
    bridge = place.bridge
    if bridge in devices_of("self"):
        return
    core.run_console(["ip", "link", "add", bridge, "type", "bridge"])
    address = f"{place.operator_address}/{LAN_PREFIX}"
    core.run_console(["ip", "address", "add", address, "dev", bridge])
    core.run_console(["ip", "link", "set", bridge, "up"])


def remove_links(place: Place, host_names: list[str]) -> None:
    """Remove the bridges and every link of the lab that is still on this machine."""
    present = devices_of("self")
    bridges = [place.bridge, place.fabric_bridge]
    for name in [*bridges, *place.fabric_links, *(f"vb-{host}" for host in host_names)]:
        if name in present:
            subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL)


def fabric_leaders(settings: LabSettings) -> dict[LabHost, int]:
    """Process ids of the first processes of the fabric's hosts that run now."""
    states = {host: read_state(settings, host).live_leader() for host in settings.fabric_hosts()}
    return {host: leader.pid for host, leader in states.items() if leader}


def plug_fabric(settings: LabSettings) -> bool:
    """Join two hosts by a cable (one veth pair), more by a switch (a bridge); True if this call
    did it.

    Nothing to do where the links are there or were unplugged on purpose. A cable needs both hosts;
    a switch joins each host as it comes.
    """
    with core.locked(settings.home / "fabric.lock"):
        leaders = fabric_leaders(settings)
        bare = {h: pid for h, pid in leaders.items() if FABRIC_DEVICE not in devices_of(pid)}
        if not bare or settings.fabric_down_flag.exists():
            return False
        if len(settings.fabric_hosts()) > 2:
            _plug_into_switch(settings.place, bare)
            return True
        if len(leaders) < 2:
            return False
        _delete_fabric(settings.place, leaders)
        _move_in(dict(zip(_veth(*settings.place.fabric_links[:2]), leaders.values(), strict=True)))
        return True


def _plug_into_switch(place: Place, bare: dict[LabHost, int]) -> None:
    bridge = place.fabric_bridge
    if bridge not in devices_of("self"):
        core.run_console(["ip", "link", "add", bridge, "type", "bridge"])
        core.run_console(["ip", "link", "set", bridge, "up"])
    for host, pid in bare.items():
        port = place.fabric_links[host.number - 1]
        if port in devices_of("self"):
            core.run_console(["ip", "link", "delete", port])
        _, inner = _veth(port, f"{port}h")
        core.run_console(["ip", "link", "set", port, "master", bridge, "up"])
        _move_in({inner: pid})


def _veth(first: str, second: str) -> tuple[str, str]:
    """Make a pair of links with the fabric's MTU."""
    mtu = str(FABRIC_MTU)
    core.run_console(["ip", "link", "add", first, "mtu", mtu, "type", "veth",
                 "peer", "name", second, "mtu", mtu])  # fmt: skip
    return first, second


def _move_in(ends: dict[str, int]) -> None:
    """Give each end to the host of that process id, under the fabric device's name."""
    for end, pid in ends.items():
        core.run_console(["ip", "link", "set", end, "netns", str(pid), "name", FABRIC_DEVICE])


def unplug_fabric(settings: LabSettings) -> None:
    """Take the fabric's links away and keep them away until ``fabric up``."""
    settings.fabric_down_flag.touch()
    with core.locked(settings.home / "fabric.lock"):
        _delete_fabric(settings.place, fabric_leaders(settings))


def _delete_fabric(place: Place, leaders: dict[LabHost, int]) -> None:
    present = devices_of("self")
    for end in place.fabric_links:
        if end in present:
            subprocess.run(["ip", "link", "delete", end], stderr=subprocess.DEVNULL)
    for pid in leaders.values():
        if FABRIC_DEVICE in devices_of(pid):
            # the other end goes with it, so the second delete may find nothing
            subprocess.run(
                ["nsenter", "--target", str(pid), "--net",
                 "ip", "link", "delete", FABRIC_DEVICE], stderr=subprocess.DEVNULL,
            )  # fmt: skip


# What makes one lab host itself: name, machine-id, keys, addresses, the stand-in's state.

# the seed's cards and driver
TOWER_GPU = {
    "name": "NVIDIA GeForce RTX 5060 Ti", "compute_cap": "12.0", "memory_mib": 16311,
    "reserved_mib": 0,
}  # fmt: skip
TOWER_DRIVER = "580.126.09"
STAND_IN = Path(__file__).parents[0] / "files" / "nvidia-smi"


def make_keys(settings: LabSettings) -> None:
    """Make the login key and the hosts' keys once, and known_hosts from them."""
    folder = settings.ssh_key.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = []
    for name in ["id_ed25519", *(f"{host.name}_host_key" for host in settings.hosts())]:
        if not (folder / name).exists():
            core.run_console(
                [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    f"rigbook lab {name}",
                    "-f",
                    folder / name,
                ]
            )
    for host in settings.hosts():
        key = " ".join((folder / f"{host.name}_host_key.pub").read_text().split()[:2])
        lines.append(f"{host.name},{host.address} {key}\n")
    settings.known_hosts.write_text("".join(lines))


def machine_id(settings: LabSettings, host: LabHost) -> str:
    """A machine-id of its own for each host, the same for the same lab and name."""
    return hashlib.sha256(f"{settings.home}/{host.name}".encode()).hexdigest()[:32]


def gpu_state(host: LabHost) -> dict[str, object]:
    """The stand-in's state on a fresh host: one GB10, as on a DGX Spark; on a tower two cards."""
    if host.is_tower:
        cards = [
            {**TOWER_GPU, "uuid": _uuid(f"{host.name} {n}"), "bus_id": f"00000000:0{n + 1}:00.0"}
            for n in range(2)
        ]
        return {"kind": "discrete", "driver": TOWER_DRIVER, "gpus": cards}
    uuid = _uuid(host.name)
    return {"kind": "gb10", "driver": "580.95.05", "gpus": [{"name": "NVIDIA GB10", "uuid": uuid}]}


def _uuid(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def network_file(device: str, address: str, mtu: int | None) -> str:
    """A systemd-networkd file that gives a device one fixed address."""
    link = f"[Link]\nMTUBytes={mtu}\n\n" if mtu else ""
    return (
        f"[Match]\nName={device}\n\n{link}"
        f"[Network]\nAddress={address}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    )


def write_files(settings: LabSettings, host: LabHost) -> None:
    """Write the host's own files into its mounted root; later starts renew only the stand-in."""
    root = settings.host_dir(host) / "root"
    write_prepared(root / "usr/bin/nvidia-smi", STAND_IN.read_text(), 0o755)
    done = settings.host_dir(host) / "prepared"
    if done.exists():
        return
    hosts = [f"{other.address} {other.name}\n" for other in settings.hosts()]
    keys = settings.ssh_key.parent
    twin = settings.twin()
    files = {
        "etc/hostname": f"{host.name}\n",
        "etc/hosts": "127.0.0.1 localhost\n" + "".join(hosts),
        "etc/machine-id": machine_id(settings, host) + "\n",
        "etc/systemd/network/10-lan.network": network_file(
            "host0", f"{host.address}/{LAN_PREFIX}", None
        ),
        "etc/rigbook-lab/gpu.json": json.dumps(gpu_state(host), indent=1) + "\n",
    }
    if not host.is_tower:
        files["etc/systemd/network/10-fabric.network"] = network_file(
            FABRIC_DEVICE, f"{host.fabric_address}/{FABRIC_PREFIX}", FABRIC_MTU
        )
    for name, text in files.items():
        write_prepared(root / name, text, 0o644)
    for suffix, mode in (("", 0o600), (".pub", 0o644)):
        text = (keys / f"{host.name}_host_key{suffix}").read_text()
        write_prepared(root / f"etc/ssh/ssh_host_ed25519_key{suffix}", text, mode)
    if twin and twin.user != SSH_USER:
        add_user(root, twin.user)
        let_in(root, twin.user, keys)
    owner = let_in(root, SSH_USER, keys)
    models = root / MODEL_PATH.lstrip("/")
    models.mkdir(parents=True, exist_ok=True)
    for path in (models.parent, models):
        os.chown(path, owner.st_uid, owner.st_gid)
    done.touch()


def add_user(root: Path, name: str) -> None:
    """A login user beside the lab's own, with the same rights."""
    core.run_console(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", name])
    write_prepared(root / f"etc/sudoers.d/{name}", f"{name} ALL=(ALL) NOPASSWD: ALL\n", 0o440)


def let_in(root: Path, user: str, keys: Path) -> os.stat_result:
    """Lets the lab's key in as this user; gives who owns the home."""
    home = root / "home" / user
    authorized = home / ".ssh/authorized_keys"
    write_prepared(authorized, (keys / "id_ed25519.pub").read_text(), 0o600)
    authorized.parent.chmod(0o700)
    owner = home.stat()
    for path in (authorized, authorized.parent):
        os.chown(path, owner.st_uid, owner.st_gid)
    return owner


def write_prepared(path: Path, text: str, mode: int) -> None:
    """Write one file of the host anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    # made with its mode: a private key is never readable, not even for a moment
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
        stream.write(text)


# ssh to the lab's hosts, and waiting until a host is ready.

READY_SECONDS = 120
BOOT_LOOK_S = 15


def ssh_argv(settings: LabSettings, host: LabHost) -> list[str]:
    """The ssh command line to a host, without the remote command."""
    return [
        "ssh",
        "-F/dev/null",
        f"-i{settings.ssh_key}",
        "-oIdentitiesOnly=yes",
        "-oBatchMode=yes",
        "-oStrictHostKeyChecking=yes",
        f"-oUserKnownHostsFile={settings.known_hosts}",
        "-oGlobalKnownHostsFile=/dev/null",
        "-oConnectTimeout=5",
        "-oServerAliveInterval=15",
        f"{SSH_USER}@{host.address}",
    ]


def sudo(
    settings: LabSettings, host: LabHost, command: str, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a shell command as root on a host; the result is the caller's to judge."""
    argv = [*ssh_argv(settings, host), "sudo", "-n", "sh"]
    try:
        return subprocess.run(argv, input=command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {timeout:.0f} s")


def wait_ready(settings: LabSettings, host: LabHost) -> None:
    """Wait until ssh answers, systemd has booted and docker answers; LabError in plain words."""
    began = time.monotonic()
    step, seen = "ssh", ""
    while True:
        if not read_state(settings, host).running():
            log = settings.host_dir(host) / "console.log"
            raise LabError(f"{host.name}: its supervisor ended; see {log}")
        step, seen = _look(settings, host)
        if step == "ready":
            core.say_console(f"{host.name}: {seen} after {time.monotonic() - began:.1f} s")
            return
        if time.monotonic() - began > READY_SECONDS:
            raise LabError(f"{host.name}: no {step} within {READY_SECONDS} s: {seen}")
        time.sleep(0.3)


def _look(settings: LabSettings, host: LabHost) -> tuple[str, str]:
    """What is still missing, and how it looks.

    An engine's start is not waited for: it lasts until its first answer, and belongs to the boot
    of a host that serves.
    """
    docker_says = "echo 0" if host.is_tower else "docker info --format '{{.ServerVersion}}' 2>&1"
    script = (
        f"timeout {BOOT_LOOK_S} systemctl is-system-running --wait >/dev/null; "
        "echo $(systemctl is-system-running); "
        "echo $(systemctl list-jobs --no-legend | awk '$4 == \"running\" {print $2}'); "
        f"{docker_says}; "
        "systemctl list-units --failed --plain --no-legend | cut -d' ' -f1"
    )
    done = sudo(settings, host, script, timeout=READY_SECONDS)
    if done.returncode != 0:
        return "ssh", done.stderr.strip()
    state, jobs, docker, *failed = done.stdout.split("\n")
    starts_only_ours = jobs and all(job.startswith("rigbook-") for job in jobs.split())
    if state not in ("running", "degraded") and not (state == "starting" and starts_only_ours):
        return "systemd", f"{state} {jobs}".strip()
    if not docker[:1].isdigit():
        return "docker", docker
    names = " ".join(name for name in failed if name)
    has = "no docker" if host.is_tower else f"docker {docker}"
    return "ready", f"systemd {state}, {has}" + (f", failed: {names}" if names else "")


def interactive(settings: LabSettings, host: LabHost, command: Sequence[str]) -> int:
    """ssh in the foreground, with the terminal; its exit code comes back."""
    return subprocess.call([*ssh_argv(settings, host), *command])


# The hosts of a lab as a person at their consoles sees them.


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


# Keeps one lab host running: mounts its root, runs systemd-nspawn, restarts it on a reboot.
#
# Started by the lab as ``unshare --mount python -m lab.host NAME``: every mount made
# here
# lives in this process's own mount namespace and is gone with the last process of the host.

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
    for pid in children(nspawn_pid):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            # NSpid: number here, number in the host; nspawn's helper has only the first
            if line.startswith("NSpid:") and line.split()[2:] == ["1"]:
                return identify(pid)
    return None


def start_nspawn(settings: LabSettings, host: LabHost) -> subprocess.Popen[bytes]:
    """Start systemd-nspawn in the host's own cgroup."""
    cgroup = lab_cgroup(settings.home) / host.machine
    empty_cgroup(cgroup)
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
    state = replace(state, nspawn=identify(child.pid), leader=None, boots=state.boots + 1)
    write_state(settings, host, state)
    while child.poll() is None:
        if state.leader is None:
            leader = find_leader(child.pid)
            if leader:
                state = replace(state, leader=leader)
                write_state(settings, host, state)
        elif host.has_fabric:
            keep_fabric(settings, state.leader)
        time.sleep(POLL_SECONDS if state.leader else 0.05)
    state = replace(state, nspawn=None, leader=None)
    return child.returncode, state


def keep_fabric(settings: LabSettings, leader: Process) -> None:
    """Plug the fabric back in when a reboot of either host has taken it away."""
    if FABRIC_DEVICE in devices_of(leader.pid):
        return
    try:
        if plug_fabric(settings):
            print("fabric plugged", flush=True)
    except LabError as error:
        # a host that ends at this very moment: the next round tries again
        print(f"fabric not plugged: {error}", flush=True)


def supervise(settings: LabSettings, host: LabHost, lower: Path) -> int:
    """Run the host until it is powered off. The exit code is 0 after a clean power-off."""
    before = read_state(settings, host)
    state = HostState(supervisor=identify(os.getpid()), boots=before.boots, root=str(lower))
    write_state(settings, host, state)
    code, reason = 1, ""
    try:
        mount_root(settings, host, lower)
        write_files(settings, host)
        code = REBOOT
        while code == REBOOT:
            code, state = run_once(settings, host, state)
            print(f"systemd-nspawn ended with exit {code}", flush=True)
        reason = "powered off" if code == 0 else f"systemd-nspawn exit {code}"
    except (LabError, OSError) as error:
        reason = str(error)
    empty_cgroup(lab_cgroup(settings.home) / host.machine)
    write_state(settings, host, replace(state, nspawn=None, leader=None, ended=reason))
    print(f"ended: {reason}", flush=True)
    return 0 if code == 0 else 1


def main(argv: list[str]) -> int:
    """Entry point: NAME and the path of the root tree."""
    settings = load_settings()
    # the hosts' folders must be readable inside, whatever umask ``up`` ran under
    os.umask(0o022)
    # Ctrl-C in the terminal that ran ``up`` is not for the hosts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return supervise(settings, settings.host(argv[0]), Path(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
