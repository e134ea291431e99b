"""What Linux can read of a board: its SMBIOS names, displays, boot order, clock and sleep."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run
from node.machine.nic import asked

TIMEOUT_S = 10.0
SLEEP = ("sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target")
# our key → (dmidecode's section, its field, the file in /sys/class/dmi/id)
_SMBIOS = {
    "bios_vendor": ("BIOS Information", "Vendor", "bios_vendor"),
    "bios_version": ("BIOS Information", "Version", "bios_version"),
    "bios_date": ("BIOS Information", "Release Date", "bios_date"),
    "system_vendor": ("System Information", "Manufacturer", "sys_vendor"),
    "system_name": ("System Information", "Product Name", "product_name"),
    "wake_up": ("System Information", "Wake-up Type", None),
    "vendor": ("Base Board Information", "Manufacturer", "board_vendor"),
    "name": ("Base Board Information", "Product Name", "board_name"),
    "serial": ("Base Board Information", "Serial Number", "board_serial"),
}
_ENTRY = re.compile(r"^Boot([0-9A-Fa-f]{4})(\*?) (.*)$")


def dmidecode_fields(text: str) -> dict[str, dict[str, str]]:
    """Gives section → field → value of `dmidecode -t 0,1,2`; the first of each."""
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    title = ""
    for line in text.splitlines():
        if line.startswith("Handle "):
            section = None
        elif line and not line[0].isspace() and line.endswith("Information"):
            title = line.strip()
            section = found.setdefault(title, {})
        elif section is not None and line.startswith("\t") and not line.startswith("\t\t"):
            key, _, value = line.strip().partition(":")
            section.setdefault(key, value.strip())
    return found


def board(root: str = "") -> Json:
    """Gives the board's names, from /sys/class/dmi/id and dmidecode. Raises CannotRead."""
    folder = f"{root}/sys/class/dmi/id"
    text = asked(["dmidecode", "-t", "0,1,2"]) or ""
    said = dmidecode_fields(text)
    if not os.path.isdir(folder) and not said:
        raise CannotRead("no /sys/class/dmi/id, and dmidecode says nothing: no SMBIOS here")
    found: Json = {}
    for key, (section, name, path) in _SMBIOS.items():
        value = proc.read_text(f"{folder}/{path}") if path else ""
        found[key] = value.strip() or said.get(section, {}).get(name) or None
    return found


def displays(root: str = "") -> list[Json]:
    """Gives the connectors of /sys/class/drm: {connector, status, edid}, edid in bytes."""
    rows = []
    for path in sorted(glob.glob(f"{root}/sys/class/drm/card*-*/status")):
        folder = os.path.dirname(path)
        edid = proc.read_bytes(f"{folder}/edid") or b""
        rows.append({"connector": os.path.basename(folder).partition("-")[2],
                     "status": proc.read_text(path).strip(), "edid": len(edid)})  # fmt: skip
    return rows


def graphics(root: str = "") -> list[Json]:
    """Gives the PCI display controllers (class 03): {slot, vendor, device, boot_vga}."""
    rows = []
    for path in sorted(glob.glob(f"{root}/sys/bus/pci/devices/*/class")):
        if not proc.read_text(path).startswith("0x03"):
            continue
        folder = os.path.dirname(path)
        rows.append({"slot": os.path.basename(folder),
                     "vendor": proc.read_text(f"{folder}/vendor").strip(),
                     "device": proc.read_text(f"{folder}/device").strip(),
                     "boot_vga": proc.read_text(f"{folder}/boot_vga").strip() == "1"})  # fmt: skip
    return rows


def boot_order(text: str) -> Json:
    """Gives `efibootmgr`'s {current, order, entries}; entries: number → {label, active}.

    Versions before 18 print the device path only with -v, behind a tab; both are cut off.
    """
    found: Json = {"current": None, "order": [], "entries": {}}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        entry = _ENTRY.match(line)
        if key == "BootCurrent":
            found["current"] = value.strip()
        elif key == "BootOrder":
            found["order"] = [number.strip() for number in value.split(",") if number.strip()]
        elif entry:
            label = entry[3].partition("\t")[0].strip()
            found["entries"][entry[1].upper()] = {"label": label, "active": entry[2] == "*"}
    return found


def efi() -> Json:
    """Gives the firmware's boot order. Raises CannotRead."""
    if not os.path.isdir("/sys/firmware/efi"):
        raise CannotRead("no /sys/firmware/efi: not booted by UEFI")
    try:
        done = run(["efibootmgr"], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("efibootmgr not found: sudo apt-get install efibootmgr") from None
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    if done.rc != 0:
        raise CannotRead(f"efibootmgr: {done.last_line()}")
    return boot_order(done.out)


def rtc_battery(text: str) -> str | None:
    """Gives batt_status of /proc/driver/rtc (rtc-cmos): `okay`, `dead`, or None."""
    found = re.search(r"^batt_status\s*:\s*(\S+)", text, re.M)
    return found[1] if found else None


def clock(root: str = "") -> Json:
    """Gives the hardware clock: {name, unix_s, alarm, battery}. Raises CannotRead.

    `alarm` is the time at which the clock would wake the machine (rtcwake sets it), None for none.
    """
    folder = f"{root}/sys/class/rtc/rtc0"
    since = proc.read_text(f"{folder}/since_epoch").strip()
    if not since.isdigit():
        raise CannotRead("no /sys/class/rtc/rtc0: no hardware clock that Linux can read")
    alarm = proc.read_text(f"{folder}/wakealarm").strip()
    return {
        "name": proc.read_text(f"{folder}/name").strip(),
        "unix_s": int(since),
        "alarm": int(alarm) if alarm.isdigit() else None,
        "battery": rtc_battery(proc.read_text(f"{root}/proc/driver/rtc")),
    }


def sleep_targets(text: str) -> dict[str, str]:
    """Gives target → LoadState of `systemctl show -p Id,LoadState TARGET…`."""
    found = {}
    for block in text.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        if values.get("Id"):
            found[values["Id"]] = values.get("LoadState", "")
    return found


def sleeping() -> dict[str, str]:
    """Gives the load states of the targets that put the machine to sleep. Raises CannotRead."""
    text = asked(["systemctl", "show", "-p", "Id,LoadState", *SLEEP])
    if text is None:
        raise CannotRead("systemctl does not say whether the sleep targets are masked")
    return sleep_targets(text)


def virtual() -> Any:
    """Gives systemd-detect-virt's word, `none` on bare metal. Raises CannotRead."""
    try:
        done = run(["systemd-detect-virt"], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"systemd-detect-virt: {error}") from None
    # it ends with 1 for `none`
    word = done.out.strip()
    if not word:
        raise CannotRead(f"systemd-detect-virt: {done.last_line()}")
    return word


def processor(root: str = "") -> str:
    """Gives the processor's name (/proc/cpuinfo), "" where it has none."""
    found = re.search(r"^model name\s*:\s*(.+)$", proc.read_text(f"{root}/proc/cpuinfo"), re.M)
    return found[1].strip() if found else ""
