"""Kernel facts for the tests: a host with two kernels, the older one pinned and with its driver."""

from __future__ import annotations

from typing import Any

from schema.observed.kernel import (
    Apt,
    BootPlace,
    BootTarget,
    Grub,
    GrubDefault,
    GrubEntry,
    InstalledKernel,
    KernelFacts,
    KernelModule,
    KernelSnapshot,
)
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders.recorded import recorded

NEW, OLD = "6.17.0-23-generic", "6.17.0-22-generic"
DRIVER = "580.126.09"


def module(release: str, version: str = DRIVER) -> KernelModule:
    """A module built for that kernel."""
    return KernelModule(
        path=f"/lib/modules/{release}/updates/nvidia.ko",
        version=version,
        vermagic=f"{release} SMP preempt mod_unload modversions",
        signer=None,
    )


def installed(release: str, driver: KernelModule | None, **changes: Any) -> InstalledKernel:
    """A kernel that is whole."""
    values = {
        "release": release,
        "vmlinuz": f"/boot/vmlinuz-{release}",
        "initrd": f"/boot/initrd.img-{release}",
        "module": driver,
        **changes,
    }
    return InstalledKernel(**values)


def path(release: str) -> str:
    """A kernel's own id path."""
    return f"gnulinux-advanced-u>gnulinux-{release}-advanced-u"


def entry(release: str, ident: str = "") -> GrubEntry:
    """A menu entry."""
    return GrubEntry(
        path=ident or path(release),
        title=f"Linux {release}",
        kernel=release,
        linux=f"/boot/vmlinuz-{release}",
        initrd=f"/boot/initrd.img-{release}",
    )


def target(
    release: str | None, how: str = "saved", why: str = "saved_entry names it"
) -> BootTarget:
    """What GRUB takes."""
    return BootTarget.model_validate(
        {"kernel": release, "entry": path(release) if release else None, "title": "x", "how": how,
         "why": why}
    )  # fmt: skip


def grub(**changes: Any) -> Grub:
    """GRUB with the older kernel pinned by rigbook."""
    values = {
        "folder": "/boot/grub",
        "configured": GrubDefault(value="saved", file="/etc/default/grub.d/x.cfg", mode="saved"),
        "grubenv": "ok",
        "saved_entry": path(OLD),
        "next_entry": None,
        "saves": True,
        "entries": (entry(NEW, "gnulinux-simple-u"), entry(NEW), entry(OLD)),
        "next": target(OLD),
        "default": target(OLD),
        "updater": True,
        "ours": True,
        **changes,
    }
    return Grub(**values)


def place(**changes: Any) -> BootPlace:
    """A plain /boot with room."""
    return BootPlace(**recorded("boot_place", **changes))


def apt(**changes: Any) -> Apt:
    """apt with the pinned kernel's packages held."""
    names = ("linux-generic", f"linux-image-{OLD}")
    values = {
        "holds": names, "pinning": {OLD: names, NEW: ("linux-generic", f"linux-image-{NEW}")},
        "pending": (), "blacklist": (), "never_auto_remove": (), "remove_unused_kernels": None,
        "unattended_upgrades": True, **changes,
    }  # fmt: skip
    return Apt(**values)


def facts(**changes: Any) -> KernelFacts:
    """The whole host."""
    kernels = (installed(OLD, module(OLD)), installed(NEW, None))
    own = {"kernels": kernels, "grub": grub(), "boot": place(), "apt": apt()}
    return KernelFacts(**recorded("kernel", **{**own, **changes}))


def with_kernel(snapshot: NodeSnapshot, kernel: KernelFacts | Unreadable) -> KernelSnapshot:
    """The snapshot with kernel facts."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    return KernelSnapshot(**values, kernel=kernel)
