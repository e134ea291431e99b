"""What a host would boot next, as `node kernel` reports it. Sizes are bytes."""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen
from schema.observed.snapshot import NodeSnapshot, Unreadable


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
