"""The installed kernels, and for each the driver's module: what a boot of it would find."""

from __future__ import annotations

import glob
import os
import re

from node.core import proc
from node.core.errors import Json
from node.core.run import TimedOut, run

TIMEOUT_S = 10.0
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
    done = run(["modinfo", "-k", release, name], TIMEOUT_S)
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
        done = run(["dkms", "status"], TIMEOUT_S)
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
