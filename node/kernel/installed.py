"""The installed kernels, and for each the driver's module: what a boot of it would find."""

from __future__ import annotations

import glob
import os
import re

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

INSTALLED_TIMEOUT_S = 10.0
_RELEASE = re.compile(r"^[0-9][A-Za-z0-9.+~_-]{0,100}$")
_DKMS = re.compile(
    # older: `nvidia, 580.126, 6.17.0-22-generic, x86_64: installed`; newer: `nvidia/580.126, …`
    r"^(?P<name>[^,/: ]+)(?:/|, )(?P<version>[^,: ]+), (?P<kernel>[^, ]+), [^:]+: (?P<state>.+)$"
)


def releases(root: str = "") -> list[str]:
    """Gives the releases that have a kernel in /boot or modules on disk, sorted as text."""
    found = set()
    for path in glob.glob(f"{root}/boot/vmlinu[xz]-*"):
        found.add(os.path.basename(path).partition("-")[2])
    for path in glob.glob(f"{root}/lib/modules/*/modules.dep"):
        found.add(os.path.basename(os.path.dirname(path)))
    return sorted(release for release in found if _RELEASE.match(release))


def _file(*paths: str) -> str | None:
    """Gives the first of these paths that is a file of more than no bytes."""
    for path in paths:
        try:
            if os.path.isfile(path) and os.path.getsize(path):
                return path
        except OSError:
            continue
    return None


def module_of(release: str, name: str) -> Json | None:
    """Gives the module that this kernel would load: file, version, vermagic, signer; or None.

    Raises TimedOut, and FileNotFoundError where there is no modinfo.
    """
    done = run(["modinfo", "-k", release, name], INSTALLED_TIMEOUT_S)
    if done.rc != 0:
        return None
    fields: dict[str, str] = {}
    for line in done.out.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if fields.get("filename", "(builtin)").startswith("("):
        return None
    return {
        "path": fields["filename"],
        "version": fields.get("version"),
        "vermagic": fields.get("vermagic", ""),
        "signer": fields.get("signer") or None,
    }


def dkms_rows(text: str) -> list[Json]:
    """Gives `dkms status` as rows {name, version, kernel, state}; both of its formats."""
    rows = []
    for line in text.splitlines():
        match = _DKMS.match(line.strip())
        if match:
            rows.append(match.groupdict())
    return rows


def dkms() -> list[Json] | None:
    """Gives what dkms says, None where there is no dkms or it does not answer."""
    try:
        done = run(["dkms", "status"], INSTALLED_TIMEOUT_S)
    except (FileNotFoundError, TimedOut):
        return None
    return dkms_rows(done.out) if done.rc == 0 else None


def installed(module: str | None, root: str = "") -> list[Json]:
    """Gives every kernel: {release, vmlinuz, initrd, module, dkms}; module None: none is asked."""
    states = dkms() if module and os.path.isdir(f"{root}/var/lib/dkms") else []
    rows = []
    for release in releases(root):
        rows.append(
            {
                "release": release,
                "vmlinuz": _file(
                    f"{root}/boot/vmlinuz-{release}", f"{root}/boot/vmlinux-{release}"
                ),
                "initrd": _file(
                    f"{root}/boot/initrd.img-{release}", f"{root}/boot/initramfs-{release}.img"
                ),
                "module": module_of(release, module) if module else None,
                "dkms": [
                    f"{row['name']}/{row['version']}: {row['state']}"
                    for row in states or []
                    if row["kernel"] == release
                ],
            }
        )
    return rows


def user_driver(module: str, root: str = "") -> list[str]:
    """Gives the versions of the driver's library that programs load (libMODULE-ml.so.X.Y)."""
    found = set()
    for folder in ("usr/lib/*", "usr/lib64", "usr/lib/*/nvidia/*", "usr/lib/*/*"):
        for path in glob.glob(f"{root}/{folder}/lib{module}-ml.so.*.*"):
            found.add(os.path.basename(path).partition(".so.")[2])
    return sorted(found)


def loaded(module: str) -> str | None:
    """Gives the version of the loaded module, "" where it names none, None when not loaded."""
    if not os.path.isdir(f"/sys/module/{module}"):
        return None
    return proc.read_text(f"/sys/module/{module}/version")


# What apt may do to kernels and their driver: packages, holds, autoremove, unattended-upgrades.

APT_TIMEOUT_S = 15.0
# linux-image-6.17.0-22-generic, linux-modules-nvidia-580-6.17.0-22-generic; not …-hwe-24.04
_VERSIONED = re.compile(r"-\d+\.\d+\.\d+-\d")
_PATTERNS = ("linux-*", "nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia-*", "cuda-drivers*")
_ITEM = re.compile(r'^([A-Za-z0-9:._-]+) "(.*)";$')
KERNEL_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]{1,120}$")


def kernel_packages(module: str | None = None) -> dict[str, Json]:
    """Gives the installed kernel and driver packages: name → {version, hold, depends}.

    `module`: the driver's, where its packages are named after another one than NVIDIA's.
    """
    own = () if module in (None, "nvidia") else (f"{module}-*", f"lib{module}-*")
    fields = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t${Depends}\\n"
    try:
        done = run(["dpkg-query", "-W", f"-f={fields}", *_PATTERNS, *own], APT_TIMEOUT_S)
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
        done = run(["apt-config", "dump"], APT_TIMEOUT_S)
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


def pending_packages() -> list[str]:
    """Gives the packages that want a reboot (/run/reboot-required.pkgs); [] when none does."""
    rows = proc.read_text("/run/reboot-required.pkgs").split()
    if not rows and os.path.exists("/run/reboot-required"):
        return ["(not named)"]
    return sorted(set(rows))
