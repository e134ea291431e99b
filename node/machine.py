"""Board and network cards; the packet that wakes another host."""

from __future__ import annotations

import glob
import json
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from node.core import files, proc, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut, run

# Board and network card: firmware facts, Wake-on-LAN.

# The network cards: whether a magic packet wakes the machine, and who sets that at a boot.

TIMEOUT_S = 10.0
# nmcli(1), EXIT STATUS
NM_NOT_RUNNING = 8
_WOL = re.compile(r"^\s*(Supports )?Wake-on: (\S+)$", re.M)
_COLON = re.compile(r"(?<!\\):")
# `networkctl list`, column SETUP: states in which systemd-networkd does not run the link
_NOT_NETWORKD = ("unmanaged", "n/a", "pending", "initialized", "linger")


def asked(argv: list[str]) -> str | None:
    """Gives what a program prints; None where it is not installed, fails or does not answer."""
    try:
        done = run(argv, TIMEOUT_S)
    except (FileNotFoundError, TimedOut):
        return None
    return done.out if done.rc == 0 else None


def wol_letters(text: str) -> tuple[str | None, str | None]:
    """Gives (what is supported, what is set) of `ethtool NIC`: letters such as `pumbg` and `g`,
    `d` for none (ethtool(8), "wol"); None where ethtool says nothing about Wake-on-LAN.
    """
    found = {bool(supports): letters for supports, letters in _WOL.findall(text)}
    return found.get(True), found.get(False)


def wol(name: str) -> Json:
    """Gives {"supports", "set"} of a card. Raises CannotRead."""
    try:
        done = run(["ethtool", name], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("ethtool not found: sudo apt-get install ethtool") from None
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    if done.rc != 0 and "Settings for" not in done.out:
        raise CannotRead(f"ethtool {name}: {done.last_line()}")
    supports, now = wol_letters(done.out)
    return {"supports": supports, "set": now}


def nm_devices(text: str) -> dict[str, Json]:
    """Gives the rows of `nmcli -t -f DEVICE,STATE,CON-UUID,CONNECTION device` by device.

    `managed` is False for `unmanaged` and for what NetworkManager only watches (`externally`).
    In terse form a colon inside a value is written `\\:` (nmcli(1), --terse).
    """
    rows: dict[str, Json] = {}
    for line in text.splitlines():
        fields = [field.replace("\\:", ":").replace("\\\\", "\\") for field in _COLON.split(line)]
        if len(fields) == 4:
            name, state, uuid, connection = fields
            managed = state not in ("unmanaged", "") and "externally" not in state
            rows[name] = {"managed": managed, "state": state, "uuid": uuid or None,
                          "connection": connection or None}  # fmt: skip
    return rows


def networkd_links(text: str) -> dict[str, str]:
    """Gives link → SETUP of `networkctl --no-legend list` (its last column)."""
    rows = [line.split() for line in text.splitlines()]
    return {row[1]: row[-1] for row in rows if len(row) == 5 and row[0].isdigit()}


def ifupdown_links(root: str = "") -> dict[str, str]:
    """Gives link → the file that says that ifupdown runs it."""
    found = {}
    for line in proc.read_text(f"{root}/run/network/ifstate").splitlines():
        name = line.partition("=")[0].strip()
        if name and name != "lo":
            found[name] = "/run/network/ifstate"
    return found


def link_section(text: str) -> list[str]:
    """Gives the assignments of a .link file's [Link] section, without WakeOnLan=."""
    lines, inside = [], False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            inside = line == "[Link]"
        elif inside and line and line[0] not in "#;" and "=" in line:
            key, _, value = line.partition("=")
            if key.strip() not in ("WakeOnLan", "WakeOnLanPassword"):
                lines.append(f"{key.strip()}={value.strip()}")
    return lines


def link_file(index: int, root: str = "") -> tuple[str | None, list[str]]:
    """Gives the .link file that udev chose for a link at its appearance, with its [Link] lines.

    The first file in lexical order wins whole (systemd.link(5)): one that comes before it has to
    repeat its lines. (None, []) where udev keeps nothing of the link.
    """
    about = proc.read_text(f"{root}/run/udev/data/n{index}")
    path = re.search(r"^E:ID_NET_LINK_FILE=(.+)$", about, re.M)
    if not path:
        return None, []
    dropins = re.search(r"^E:ID_NET_LINK_FILE_DROPINS=(.+)$", about, re.M)
    lines = link_section(proc.read_text(root + path[1]))
    for more in dropins[1].split(":") if dropins else ():
        lines += link_section(proc.read_text(root + more))
    return path[1], lines


def _rows() -> list[Json]:
    """Gives the rows of `ip -j -d addr`. Raises CannotRead."""
    text = asked(["ip", "-j", "-d", "addr"])
    if text is None:
        raise CannotRead("ip -d addr does not answer: is iproute2 installed?")
    found: list[Json] = json.loads(text or "[]")
    return found


def _ipv4(row: Json) -> list[str]:
    """Gives a link's IPv4 addresses with their prefix."""
    rows = row.get("addr_info", [])
    return [f"{a['local']}/{a['prefixlen']}" for a in rows if a.get("family") == "inet"]


def _is_card(row: Json) -> bool:
    """Gives True for an Ethernet card, and for a container's end of a veth."""
    kind = (row.get("linkinfo") or {}).get("info_kind")
    return row.get("link_type") == "ether" and (
        kind is None or (kind == "veth" and not row.get("master"))
    )


def _manager(name: str, nm: dict[str, Json], networkd: dict[str, str]) -> tuple[str, str]:
    """Gives who manages a link, and how that is known."""
    if nm.get(name, {}).get("managed"):
        return "NetworkManager", f"nmcli device: {nm[name]['state']}"
    if networkd.get(name, "n/a") not in _NOT_NETWORKD:
        return "networkd", f"networkctl: {networkd[name]}"
    path = ifupdown_links().get(name)
    return ("ifupdown", path) if path else ("none", "no network manager names it")


def _nm(row: Json | None) -> Any:
    """Gives the connection of a device that NetworkManager runs, with its own wake-on-lan."""
    if not row or not row["managed"] or not row["uuid"]:
        return None
    words = ["nmcli", "-g", "802-3-ethernet.wake-on-lan", "connection", "show", row["uuid"]]
    said = asked(words)
    return {"connection": row["connection"] or "", "uuid": row["uuid"],
            "wake_on_lan": None if said is None else said.strip()}  # fmt: skip


def _nm_rows() -> dict[str, Json]:
    """Gives NetworkManager's devices; none where it is not installed or does not run.

    Raises CannotRead when it is there and does not say.
    """
    try:
        done = run(["nmcli", "-t", "-f", "DEVICE,STATE,CON-UUID,CONNECTION", "device"], TIMEOUT_S)
    except FileNotFoundError:
        return {}
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    if done.rc == NM_NOT_RUNNING:
        return {}
    if done.rc != 0:
        raise CannotRead(f"nmcli device: {done.last_line()}")
    return nm_devices(done.out)


def read_nics() -> list[Json]:
    """Gives the cards of schema/hardware.py, Nic. Raises CannotRead."""
    nm = _nm_rows()
    networkd = networkd_links(asked(["networkctl", "--no-pager", "--no-legend", "list"]) or "")
    cards: list[Json] = []
    for row in filter(_is_card, _rows()):
        name = str(row["ifname"])
        base = f"/sys/class/net/{name}"
        manager, evidence = _manager(name, nm, networkd)
        path, lines = link_file(int(row["ifindex"]))
        try:
            state: Json = wol(name)
        except CannotRead as error:
            state = {"unreadable": str(error)}
        driver = os.path.basename(os.path.realpath(f"{base}/device/driver"))
        cards.append(
            {
                "name": name,
                "mac": str(row.get("address", "")),
                "permanent": str(row.get("permaddr") or row.get("address", "")),
                "physical": os.path.exists(f"{base}/device"),
                "driver": driver if os.path.exists(f"{base}/device/driver") else None,
                "master": row.get("master"),
                "addresses": _ipv4(row),
                "wol": state,
                "manager": manager,
                "manager_evidence": evidence,
                "nm": _nm(nm.get(name)),
                "link_file": path,
                "link_lines": lines,
            }
        )
    return cards


def nic_addresses() -> dict[str, list[str]]:
    """Gives link → its IPv4 addresses with prefix, bonds and bridges too. Raises CannotRead."""
    return {str(row["ifname"]): _ipv4(row) for row in _rows()}


# What Linux can read of a board: its SMBIOS names, displays, boot order, clock and sleep.

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


def read_board(root: str = "") -> Json:
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


def read_displays(root: str = "") -> list[Json]:
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


def read_clock(root: str = "") -> Json:
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


# wake: send a Wake-on-LAN magic packet from this host to a sleeping neighbour.

_MAC = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")


def mac(value: Any, where: str) -> str:
    """Gives a MAC address of one machine: no broadcast, no multicast, not all zero."""
    text = validate.text(value, where, 17).lower()
    if not _MAC.match(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise validate.bad(f"{where}: {text[:40]!r} is not one machine's MAC address")
    return text


def wake_packet(address: str) -> bytes:
    """Gives the magic packet: six bytes FF, then the MAC sixteen times; 102 bytes."""
    return b"\xff" * 6 + bytes.fromhex(address.replace(":", "")) * 16


def wake(request: Json) -> Json:
    """Send the packet to a broadcast address; gives where it went. Writes nothing."""
    body = validate.keys(request, "request", ("mac", "address", "port"), ("mac", "address"))
    told = wake_packet(mac(body["mac"], "mac"))
    address = validate.address(body["address"], "address")
    port = int(validate.number(body.get("port", 9), "port", 1, 65535))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sent = sender.sendto(told, (address, port))
            sender.connect((address, port))
            source = sender.getsockname()[0]
    except OSError as error:
        raise NodeError(f"no packet to {address}: {io_reason(error)}", "not_sent",
                        f"ip route get {address}") from None  # fmt: skip
    return {"sent": sent, "to": f"{address}:{port}", "source": source}


# hardware: what a person would have to look at in the BIOS, as far as Linux can read; read-only.
#
# Type: schema/hardware.py. A reading verb of its own: only the deploys that care ask for
# it.


def _section(read: Callable[[], Any]) -> Any:
    """Gives what a reader gives, or {"unreadable": why}."""
    try:
        return read()
    except CannotRead as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"unreadable": io_reason(error)}


def attestations() -> list[Json]:
    """Gives the files of attestations/, each {"file", "said"}; `said` None for what is no JSON."""
    folder = os.path.join(files.state_root(), "attestations")
    rows: list[Json] = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        raw = proc.read_bytes(os.path.join(folder, name)) or b""
        try:
            said = json.loads(raw.decode("utf-8"))
        except ValueError:
            said = None
        rows.append({"file": name, "said": said if isinstance(said, dict) else None})
    return rows


def collect_hardware(request: Json) -> Json:
    """Gives the document of schema/hardware.py."""
    began = time.monotonic()
    validate.keys(request, "request", ())
    return {
        "format": 1,
        "virtual": _section(virtual),
        "processor": processor(),
        "nics": _section(read_nics),
        "addresses": _section(nic_addresses),
        "board": _section(read_board),
        "displays": _section(read_displays),
        "graphics": _section(graphics),
        "efi": _section(efi),
        "clock": _section(read_clock),
        "clock_unix_s": time.time(),
        "sleep": _section(sleeping),
        "attestations": _section(attestations),
        "took_s": round(time.monotonic() - began, 3),
    }
