"""How a host is kept alive, as node's `host` tells it. Times are Unix seconds, sizes bytes."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schema.core import Device, Frozen, SpecError, build_parse, mac_address
from schema.snapshot import NodeSnapshot, Unreadable

# What a host would boot next, as `node kernel` reports it. Sizes are bytes.


class KernelModule(Frozen):
    """The driver's module that a kernel would load; `signer` None: it is not signed."""

    path: str
    version: str | None
    vermagic: str
    signer: str | None


class InstalledKernel(Frozen):
    """A kernel on the host's disk; a part that is missing is None. `dkms` rows are as dkms says."""

    release: str
    vmlinuz: str | None
    initrd: str | None
    module: KernelModule | None
    dkms: tuple[str, ...] = ()


class BootTarget(Frozen):
    """What GRUB will take, and why.

    `how`: next_entry (one boot), saved, menu (grub.cfg's own default), first (the one that was
    named is not there), unknown. `missing` are the names that the menu does not have.
    """

    kernel: str | None
    entry: str | None
    title: str | None
    how: Literal["next_entry", "saved", "menu", "first", "unknown"]
    why: str
    missing: tuple[str, ...] = ()


class GrubEntry(Frozen):
    """A menu entry: its id path, and what it boots; `options` are the kernel's command line."""

    path: str
    title: str
    kernel: str | None
    linux: str | None
    initrd: str | None
    options: str | None = None


class GrubDefault(Frozen):
    """GRUB_DEFAULT as update-grub reads it. `mode` title is the seed's way: it breaks silently."""

    value: str
    file: str
    mode: Literal["saved", "index", "id", "title"]


class Grub(Frozen):
    """GRUB's menu and default. `next` is the next boot, `default` the one after it."""

    folder: str
    configured: GrubDefault
    grubenv: str
    saved_entry: str | None
    next_entry: str | None
    saves: bool
    entries: tuple[GrubEntry, ...]
    next: BootTarget
    default: BootTarget
    updater: bool
    ours: bool


class BootPlace(Frozen):
    """Where GRUB's folder lies. `sticky`: GRUB cannot write there, so one boot would stay."""

    mount: str
    source: str
    filesystem: str
    kind: Literal["plain", "lvm", "raid", "crypt", "btrfs", "zfs", "unknown"]
    sticky: bool
    total: int
    free: int
    read_only: bool


class Apt(Frozen):
    """What apt may do to kernels. `pinning`: by release, the packages that a pin holds."""

    holds: tuple[str, ...]
    pinning: dict[str, tuple[str, ...]]
    pending: tuple[str, ...]
    blacklist: tuple[str, ...]
    never_auto_remove: tuple[str, ...]
    remove_unused_kernels: bool | None
    unattended_upgrades: bool


class KernelFacts(Frozen):
    """A host's kernels, driver modules and boot loader. `module` None: no driver is needed."""

    format: Literal[1]
    arch: str
    running: str
    boot_id: str
    loader: Literal["grub", "systemd-boot", "container", "none"]
    loader_evidence: str
    module: str | None
    kernels: tuple[InstalledKernel, ...] | Unreadable
    user_driver: tuple[str, ...]
    loaded: str | None
    grub: Grub | Unreadable
    boot: BootPlace | Unreadable
    apt: Apt | Unreadable
    secure_boot: bool | None
    took_s: float


class KernelSnapshot(NodeSnapshot):
    """A node's snapshot with what it would boot; asked for where a reboot is near."""

    kernel: KernelFacts | Unreadable


# systemd-detect-virt's words for what shares its kernel with another host.
CONTAINERS = frozenset(
    {"systemd-nspawn", "docker", "podman", "lxc", "lxc-libvirt", "openvz", "proot", "pouch",
     "rkt", "container-other"}
)  # fmt: skip


class Watchdog(Frozen):
    """A watchdog device. `state` is active while somebody holds it open; None: not told."""

    name: str
    identity: str | None
    state: str | None
    timeout_s: int | None


class JournalKept(Frozen):
    """Whether the journal outlives a boot, and what it takes on the disk."""

    persistent: bool
    bytes: int


class Guard(Frozen):
    """The memory guard (earlyoom): its program, and the words it runs with; None: it does not."""

    program: str | None
    argv: tuple[str, ...] | None


class HostWanted(Frozen):
    """What deploys/host.py wants of a host, as it lies there in /etc/rigbook/host.json.

    `watchdog_s` and `guard_mib` 0: none. `former` are the kernel's values before the first run.
    """

    format: Literal[1] = 1
    sysctls: dict[str, str]
    watchdog_s: Annotated[int, Field(ge=0)]
    journal_mib: Annotated[int, Field(ge=1)]
    guard_mib: Annotated[int, Field(ge=0)]
    former: dict[str, str] = Field(default_factory=dict)


class HostSettings(Frozen):
    """The settings as they are now.

    `runtime_watchdog_s` is PID 1's own, 0 for none. `pstore` is what keeps the kernel's last words
    over a crash. `sshd_oom_score_adj` is that of the sshd that listens; None: systemd listens.
    """

    virtual: str
    watchdogs: tuple[Watchdog, ...]
    runtime_watchdog_s: float
    sysctls: dict[str, str]
    journal: JournalKept
    pstore: str | None
    guard: Guard
    sshd_oom_score_adj: int | None
    wanted: HostWanted | None

    @property
    def contained(self) -> bool:
        """Whether its kernel is another host's."""
        return self.virtual in CONTAINERS


class Boot(Frozen):
    """One boot. `asked_for`: whether its end was; None for the boot that runs.

    `tail` are its last lines in the journal, `pstore` what the kernel kept of its crash.
    """

    boot_id: str
    first_unix_s: float
    last_unix_s: float
    asked_for: bool | None
    tail: tuple[str, ...]
    pstore: tuple[str, ...]


class Kill(Frozen):
    """A process (of systemd-oomd: a cgroup) that was killed because memory ran out."""

    unix_s: float
    by: Literal["kernel", "earlyoom", "systemd-oomd"]
    process: str
    pid: int | None
    why: str


class HostFacts(Frozen):
    """All of it; the boots and kills oldest first."""

    format: Literal[1]
    settings: HostSettings | Unreadable
    boots: tuple[Boot, ...] | Unreadable
    kills: tuple[Kill, ...] | Unreadable
    took_s: float


# What the operator keeps of a machine for when it cannot be asked: its card's address.

Mac = Annotated[str, AfterValidator(mac_address)]


class MachineRecord(Frozen):
    """A machine as it was seen last. `wol` is ethtool's letter set then; `open` the items of its
    checklist that nobody had attested; `network` its LAN address with the prefix.
    """

    nic: Device
    mac: Mac
    network: str
    wol: str
    able: bool
    board: str
    display: bool
    open: tuple[str, ...]
    seen_unix_s: int

    @property
    def broadcast(self) -> str:
        """The broadcast address of its LAN."""
        return str(IPv4Interface(self.network).network.broadcast_address)


class Machines(Frozen):
    """The machines of one rig, by node."""

    format: Literal[1] = 1
    nodes: dict[str, MachineRecord] = Field(default_factory=dict)


def state_folder() -> Path:
    """The operator's own folder: XDG_STATE_HOME (XDG Base Directory), else ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "rigbook"


def machines_path(rig: str) -> Path:
    """The file of a rig's machines."""
    return state_folder() / "machines" / f"{rig}.json"


def read_machines(rig: str) -> Machines:
    """The machines of a rig; none where nothing was recorded. SpecError for a file that is none."""
    path = machines_path(rig)
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return Machines()
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}; remove it, it is written anew by firmware.py") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: is no map; remove it, it is written anew by firmware.py")
    return build_parse(Machines, data, lambda key: str(path))


def write_machines(rig: str, machines: Machines) -> bool:
    """Writes the file, old or new in whole; False where it says that already."""
    path = machines_path(rig)
    text = json.dumps(machines.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    temp.write_text(text)
    temp.replace(path)
    return True
