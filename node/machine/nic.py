"""The network cards: whether a magic packet wakes the machine, and who sets that at a boot."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

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


def read() -> list[Json]:
    """Gives the cards of schema/observed/hardware.py, Nic. Raises CannotRead."""
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


def addresses() -> dict[str, list[str]]:
    """Gives link → its IPv4 addresses with prefix, bonds and bridges too. Raises CannotRead."""
    return {str(row["ifname"]): _ipv4(row) for row in _rows()}
