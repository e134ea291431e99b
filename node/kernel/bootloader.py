"""The boot loader's side: which loader, where /boot lies, the configured and the real default."""

from __future__ import annotations

import glob
import os
import re

from node.core import masking, proc
from node.core.errors import Json
from node.kernel import grubcfg, grubenv

FOLDERS = ("/boot/grub", "/boot/grub2")
DEFAULTS = "/etc/default/grub"
OUR_DEFAULT = "/etc/default/grub.d/zz-rigbook.cfg"
_SETTING = re.compile(r"^\s*(?:export\s+)?GRUB_DEFAULT=(.*?)\s*$")


def folder(root: str = "") -> str | None:
    """Gives GRUB's folder (the one that holds grub.cfg), or None."""
    for path in FOLDERS:
        if os.path.isfile(f"{root}{path}/grub.cfg"):
            return f"{root}{path}"
    return None


def loader(root: str = "") -> tuple[str, str]:
    """Gives (grub, systemd-boot, container or none; how we know)."""
    if not root and os.path.exists("/run/systemd/container"):
        return "container", f"/run/systemd/container: {proc.read_text('/run/systemd/container')}"
    for path in glob.glob(f"{root}/sys/firmware/efi/efivars/LoaderInfo-*"):
        said = (proc.read_bytes(path) or b"")[4:].decode("utf-16-le", "replace").strip("\0")
        if "systemd-boot" in said:
            return "systemd-boot", f"the firmware was left to {said}"
    found = folder(root)
    if found:
        return "grub", f"{found[len(root) :]}/grub.cfg"
    for path in ("boot", "efi", "boot/efi"):
        if os.path.isfile(f"{root}/{path}/loader/loader.conf"):
            return "systemd-boot", f"/{path}/loader/loader.conf"
    return "none", "no /boot/grub/grub.cfg and no loader.conf"


def configured(root: str = "") -> Json:
    """Gives GRUB_DEFAULT as update-grub will read it: value, file, and how it names its entry."""
    files = [f"{root}{DEFAULTS}", *sorted(glob.glob(f"{root}{DEFAULTS}.d/*.cfg"))]
    value, source = "0", "unset"
    for path in files:
        for line in proc.read_text(path).splitlines():
            match = _SETTING.match(line)
            if match:
                value, source = match[1].strip("\"'"), path[len(root) :]
    if value == "saved":
        mode = "saved"
    elif re.match(r"^\d+(>\d+)*$", value):
        mode = "index"
    elif value.startswith("gnulinux") or ">gnulinux" in value:
        mode = "id"
    else:
        mode = "title"
    return {"value": value, "file": source, "mode": mode}


def _decoded(text: str) -> str:
    """Gives a field of mountinfo with its octal escapes put back."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def mount_of(path: str, mountinfo: str) -> tuple[str, str, str, str]:
    """Gives (mount point, major:minor, filesystem, source) of the mount that holds a path."""
    best = ("", "", "", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = _decoded(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[2], tail[0], _decoded(tail[1]))
    return best


def device_kind(number: str, filesystem: str, source: str, sys: str = "/sys") -> str:
    """Gives plain, lvm, raid, crypt, btrfs, zfs or unknown: what GRUB can write through."""
    if filesystem in ("btrfs", "zfs"):
        return filesystem
    if number.startswith("0:"):
        # an anonymous device number (overlay, nfs): GRUB cannot have booted from it
        return "unknown"
    here = os.path.join(sys, "dev/block", number)
    uuid = proc.read_text(os.path.join(here, "dm/uuid"))
    if uuid:
        return {"LVM": "lvm", "CRYPT": "crypt"}.get(uuid.partition("-")[0], "unknown")
    name = os.path.basename(os.path.realpath(here)) if os.path.exists(here) else ""
    parent = os.path.basename(os.path.dirname(os.path.realpath(here))) if name else ""
    if name.startswith("md") or parent.startswith("md") or source.startswith("/dev/md"):
        return "raid"
    return "plain" if name else "unknown"


def place(path: str) -> Json:
    """Gives where GRUB's folder lies: mount, kind of device, room; raises OSError."""
    point, number, filesystem, source = mount_of(path, proc.read_text("/proc/self/mountinfo"))
    info = os.statvfs(path)
    boot = os.statvfs("/boot")
    kind = device_kind(number, filesystem, source)
    return {
        "mount": point,
        "source": source,
        "filesystem": filesystem,
        "kind": kind,
        # GRUB writes a block list of a plain device only (grub-core/commands/loadenv.c)
        "sticky": kind != "plain",
        "total": boot.f_blocks * boot.f_frsize,
        "free": boot.f_bavail * boot.f_frsize,
        "read_only": bool(info.f_flag & os.ST_RDONLY),
    }


def environment(path: str) -> tuple[str, dict[str, str] | None]:
    """Gives ("ok", variables), or (what is wrong, None): missing, or corrupt and how."""
    raw = proc.read_bytes(os.path.join(path, "grubenv"))
    if raw is None:
        return "missing", None
    try:
        return "ok", grubenv.parse(raw)
    except grubenv.Corrupt as error:
        return f"corrupt: {error}", None


def menu_of(text: str, env: dict[str, str] | None, path: str) -> grubcfg.Menu:
    """Gives the menu of a grub.cfg's text, custom.cfg beside it included. Raises Malformed."""
    custom = proc.read_bytes(os.path.join(path, "custom.cfg")) or b""
    return grubcfg.Menu(text, env, custom.decode("utf-8", "replace"))


def following(menu: grubcfg.Menu, env: dict[str, str] | None, state: str) -> Json:
    """Gives what GRUB boots next: {kernel, entry, title, why, how, missing}; kernel may be None.

    `how`: next_entry, saved, menu (the default of grub.cfg itself), first (what was named is not
    there), or unknown.
    """
    if menu.default is None:
        return {"kernel": None, "entry": None, "title": None, "how": "unknown",
                "why": menu.unknown, "missing": []}  # fmt: skip
    entry, path, missing = grubcfg.choose(menu.entries, menu.default)
    named = menu.default
    if menu.once:
        how, why = "next_entry", f"next_entry names it for one boot ({named})"
    elif menu.saves:
        how, why = "saved", f"saved_entry names it ({named})"
        if not named:
            how = "first"
            why = f"the default is the saved one and none is saved (grubenv is {state})"
            why += ": GRUB takes the first entry"
    elif not named:
        how, why = "first", "no default is set: GRUB takes the first entry"
    else:
        how, why = "menu", f"grub.cfg's default is {named}"
    if missing:
        which = "next_entry" if menu.once else "saved_entry" if menu.saves else "the default"
        how = "first"
        why = f"{which} names {named}, and {missing[0]} is not in the menu"
        why += ": GRUB takes the first entry in its place"
    if entry is None:
        return {"kernel": None, "entry": None, "title": None, "how": "unknown",
                "why": f"{why}; that menu is empty", "missing": missing}  # fmt: skip
    return {
        "kernel": entry["kernel"],
        "entry": path,
        "title": entry["title"],
        "how": how,
        "why": why,
        "missing": missing,
    }


def lasting(
    menu: grubcfg.Menu, env: dict[str, str] | None, state: str, text: str, path: str
) -> Json:
    """Gives what GRUB boots once next_entry is used up: `following` without it."""
    if not env or "next_entry" not in env or not env["next_entry"]:
        return following(menu, env, state)
    rest = {key: value for key, value in env.items() if key != "next_entry"}
    return following(menu_of(text, rest, path), rest, state)


def entry_rows(menu: grubcfg.Menu) -> list[Json]:
    """Gives the menu as flat rows {path, title, kernel} for people and gates."""
    return [
        {"path": path, "title": entry["title"], "kernel": entry["kernel"],
         "linux": entry["linux"], "initrd": entry["initrd"],
         "options": masking.masked_cmdline(entry["options"] or "")}
        for path, entry in grubcfg.flat(menu.entries)
    ]  # fmt: skip
