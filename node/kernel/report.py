"""kernel: what this host would boot, and whether its driver would be there; read-only.

Type: schema/observed/kernel.py. A reading verb of its own: only the deploys that care ask for it.
"""

from __future__ import annotations

import glob
import os
import platform
import time
from collections.abc import Callable
from typing import Any

from node.core import proc, validate
from node.core.errors import CannotRead, Json, io_reason
from node.core.run import TimedOut
from node.kernel import apt, bootloader, grubcfg
from node.kernel import installed as kernel_installed

_MODULE_KEYS = ("module",)


def module_name(value: Any) -> str | None:
    """Gives the checked name of a kernel module, or None."""
    return None if value is None else validate.name(value, "module")


def _section(read: Callable[[], Any]) -> Any:
    """Gives what a reader gives, or {"unreadable": why}."""
    try:
        return read()
    except (CannotRead, TimedOut) as error:
        return {"unreadable": str(error)}
    except grubcfg.Malformed as error:
        return {"unreadable": f"grub.cfg is malformed: {error}; sudo update-grub makes it anew"}
    except OSError as error:
        return {"unreadable": io_reason(error)}


def secure_boot() -> bool | None:
    """Gives whether Secure Boot is on; None where the firmware is not UEFI or does not say."""
    for path in glob.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        raw = proc.read_bytes(path)
        if raw and len(raw) >= 5:
            return raw[4] == 1
    return None


def grub() -> Json:
    """Gives the GRUB section. Raises CannotRead, Malformed and OSError."""
    path = bootloader.folder()
    if path is None:
        raise CannotRead("no grub.cfg")
    raw = proc.read_bytes(os.path.join(path, "grub.cfg"))
    if raw is None:
        raise CannotRead(f"{path}/grub.cfg cannot be read")
    text = raw.decode("utf-8", "replace")
    state, env = bootloader.environment(path)
    menu = bootloader.menu_of(text, env, path)
    values = env or {}
    return {
        "folder": path,
        "configured": bootloader.configured(),
        "grubenv": state,
        "saved_entry": values.get("saved_entry") or None,
        "next_entry": values.get("next_entry") or None,
        "saves": menu.saves,
        "entries": bootloader.entry_rows(menu),
        "next": bootloader.following(menu, env, state),
        "default": bootloader.lasting(menu, env, state, text, path),
        "updater": os.access("/usr/sbin/grub-mkconfig", os.X_OK)
        or os.access("/usr/bin/grub-mkconfig", os.X_OK),
        "ours": os.path.exists(bootloader.OUR_DEFAULT),
    }


def _apt(module: str | None, drivers: list[str]) -> Json:
    """Gives packages, holds and what would remove or replace a kernel, or its driver."""
    found = apt.packages(module)
    family = apt.driver_family(found, drivers)
    return {
        "holds": sorted(name for name, row in found.items() if row["hold"]),
        "pinning": {
            release: [*apt.pinning(found, release), *family]
            for release in kernel_installed.releases()
        },
        "pending": apt.pending(),
        **apt.apt_config(),
    }


def collect(request: Json) -> Json:
    """Gives the document of schema/observed/kernel.py."""
    began = time.monotonic()
    body = validate.keys(request, "request", _MODULE_KEYS)
    module = module_name(body.get("module"))
    kind, how = bootloader.loader()
    folder = bootloader.folder()
    none = {"unreadable": f"no GRUB here: {kind} ({how})"}
    drivers = kernel_installed.user_driver(module) if module else []
    return {
        "format": 1,
        "arch": platform.machine(),
        "running": platform.release(),
        "boot_id": proc.boot_id(),
        "loader": kind,
        "loader_evidence": how,
        "module": module,
        "kernels": _section(lambda: kernel_installed.installed(module)),
        "user_driver": drivers,
        "loaded": kernel_installed.loaded(module) if module else None,
        "grub": _section(grub) if kind == "grub" else none,
        "boot": _section(lambda: bootloader.place(folder)) if folder else none,
        "apt": _section(lambda: _apt(module, drivers)),
        "secure_boot": secure_boot(),
        "took_s": round(time.monotonic() - began, 3),
    }
