"""What apt may do to kernels and their driver: packages, holds, autoremove, unattended-upgrades."""

from __future__ import annotations

import os
import re

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

TIMEOUT_S = 15.0
# linux-image-6.17.0-22-generic, linux-modules-nvidia-580-6.17.0-22-generic; not …-hwe-24.04
_VERSIONED = re.compile(r"-\d+\.\d+\.\d+-\d")
_PATTERNS = ("linux-*", "nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia-*", "cuda-drivers*")
_ITEM = re.compile(r'^([A-Za-z0-9:._-]+) "(.*)";$')
PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]{1,120}$")


def packages(module: str | None = None) -> dict[str, Json]:
    """Gives the installed kernel and driver packages: name → {version, hold, depends}.

    `module`: the driver's, where its packages are named after another one than NVIDIA's.
    """
    own = () if module in (None, "nvidia") else (f"{module}-*", f"lib{module}-*")
    fields = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t${Depends}\\n"
    try:
        done = run(["dpkg-query", "-W", f"-f={fields}", *_PATTERNS, *own], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("no dpkg on this host; kernels are pinned on Debian and Ubuntu") from None
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    # 1: one of the patterns matched nothing
    if done.rc not in (0, 1):
        raise CannotRead(f"dpkg-query: {done.last_line()}")
    found: dict[str, Json] = {}
    for line in done.out.splitlines():
        row = line.split("\t")
        if len(row) == 5 and row[3] in ("installed", "triggers-pending", "triggers-awaited"):
            depends = re.findall(r"(?:^|[,|]) *([a-z0-9][a-z0-9+.-]*)", row[4])
            found[row[0]] = {"version": row[1], "hold": row[2] == "hold", "depends": depends}
    return found


def pinning(found: dict[str, Json], release: str) -> list[str]:
    """Gives the packages to hold for a kernel: its own, and the metas that would bring another.

    Own ones end with the release (image, modules, headers); a meta depends on a versioned kernel
    package, or on such a meta.
    """
    own = {name for name in found if name.endswith(f"-{release}") and name.startswith("linux-")}
    metas: set[str] = set()
    while True:
        more = {
            name
            for name, row in found.items()
            if name.startswith("linux-")
            and not _VERSIONED.search(name)
            and name not in metas
            and any(
                other in metas or (other.startswith("linux-") and _VERSIONED.search(other))
                for other in row["depends"]
            )
        }
        if not more:
            return sorted(own | metas)
        metas |= more


def driver_family(found: dict[str, Json], drivers: list[str]) -> list[str]:
    """Gives the packages that are one driver of these versions (`580.126.09`), which move together:
    module source, firmware, libraries, programs. Others of NVIDIA's have versions of their own.

    With DKMS no `linux-…` package brings the module: without these a routine upgrade moves the
    libraries under the module that runs ("Driver/library version mismatch").
    """
    return sorted(
        name
        for name, row in found.items()
        if not name.startswith("linux-")
        and row["version"].rpartition(":")[2].partition("-")[0] in drivers
    )


def apt_config() -> Json:
    """Gives what apt's configuration says of kernels (apt-config dump)."""
    try:
        done = run(["apt-config", "dump"], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"apt-config: {error}") from None
    if done.rc != 0:
        raise CannotRead(f"apt-config: {done.last_line()}")
    out: Json = {"blacklist": [], "never_auto_remove": [], "remove_unused_kernels": None}
    for line in done.out.splitlines():
        match = _ITEM.match(line)
        if not match:
            continue
        key, value = match[1], match[2]
        if key == "Unattended-Upgrade::Package-Blacklist::":
            out["blacklist"].append(value)
        elif key == "APT::NeverAutoRemove::":
            out["never_auto_remove"].append(value)
        elif key == "Unattended-Upgrade::Remove-Unused-Kernel-Packages":
            out["remove_unused_kernels"] = value.lower() in ("true", "1", "yes")
    out["unattended_upgrades"] = os.path.exists("/usr/bin/unattended-upgrade")
    return out


def pending() -> list[str]:
    """Gives the packages that want a reboot (/run/reboot-required.pkgs); [] when none does."""
    rows = proc.read_text("/run/reboot-required.pkgs").split()
    if not rows and os.path.exists("/run/reboot-required"):
        return ["(not named)"]
    return sorted(set(rows))
