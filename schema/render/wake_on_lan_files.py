"""The file that arms a card's Wake-on-LAN at every boot, by whoever sets the card up there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from schema.desired.plan import Document
from schema.observed.hardware import Nic
from schema.render.engine_files import UNITS_DIR, render

LINK_DIR = "/etc/systemd/network"
NM_DIR = "/etc/NetworkManager/conf.d"
_LINK = f"{LINK_DIR}/00-rigbook-wol.link"
_NM = f"{NM_DIR}/90-rigbook-wol.conf"
_UNIT = f"{UNITS_DIR}/rigbook-wol.service"


@dataclass(frozen=True)
class WolPersistence:
    """What arms a card at a boot: its files (none: nothing of ours is needed), the unit to enable,
    and who reads them, in words. `refused` says why it cannot be done, with the command that helps.
    """

    documents: tuple[Document, ...]
    unit: str | None
    reader: str
    refused: str | None = None


def link_path(nic: Nic) -> str:
    """The .link file of a card. It has to come before the one that udev takes now."""
    return f"{LINK_DIR}/00-rigbook-wol-{nic.name}.link"


def paths(nic: Nic) -> tuple[str, ...]:
    """All paths that `persistence` may name for a card."""
    return (
        link_path(nic),
        f"{NM_DIR}/90-rigbook-wol-{nic.name}.conf",
        f"{UNITS_DIR}/{unit_name(nic)}",
    )


def unit_name(nic: Nic) -> str:
    """The unit of a card that neither udev's .link files nor NetworkManager reach."""
    return f"rigbook-wol-{nic.name}.service"


def persistence(nic: Nic) -> WolPersistence:
    """How a card is armed at every boot.

    NetworkManager's own setting wins where it runs the card; else udev applies the first .link file
    in lexical order, whole (systemd.link(5)), so ours repeats the lines of the one that it takes
    now; else a unit calls ethtool. A unit, too, where our .link file was in force at this boot and
    the card is not armed: some drivers forget it when the link comes up (8139cp does).
    """
    if nic.manager == "NetworkManager":
        return _by_networkmanager(nic)
    ours = link_path(nic)
    if not _is_first(ours, nic.link_file):
        return WolPersistence((_unit(nic),), unit_name(nic), "a unit with ethtool")
    lines = [line for line in nic.link_lines if not line.startswith("WakeOnLan=")]
    link = Document(ours, render(_LINK, nic=nic.name, mac=nic.permanent, lines=lines), "0644")
    if nic.link_file == ours and not getattr(nic.wol, "armed", False):
        reader = "systemd-udevd, and a unit, because the driver dropped it when the link came up"
        return WolPersistence((link, _unit(nic)), unit_name(nic), reader)
    return WolPersistence((link,), None, "systemd-udevd")


def _is_first(ours: str, now: str | None) -> bool:
    """True when udev would take our file instead of the one that it takes now."""
    return now is not None and ours.rpartition("/")[2] <= now.rpartition("/")[2]


def _unit(nic: Nic) -> Document:
    return Document(f"{UNITS_DIR}/{unit_name(nic)}", render(_UNIT, nic=nic.name), "0644")


def _by_networkmanager(nic: Nic) -> WolPersistence:
    """A default of NetworkManager for this card; a profile's own setting would beat it.

    NetworkManager.conf(5), "connection section": `ethernet.wake-on-lan` is such a default; 64 is
    NM_SETTING_WIRED_WAKE_ON_LAN_MAGIC. The profile itself stays untouched: it may hold secrets,
    lie in /run, or be netplan's.
    """
    own = nic.nm.wake_on_lan if nic.nm else "default"
    if own is None:
        return WolPersistence((), None, "NetworkManager", _not_said(nic))
    if own.startswith("magic") or own in ("64", "0x40") or "(magic)" in own:
        return WolPersistence((), None, "NetworkManager, by its own profile")
    if own not in ("", "default", "1", "0x1") and "(default)" not in own:
        assert nic.nm is not None
        return WolPersistence(
            (), None, "NetworkManager",
            f"profile {nic.nm.connection} sets wake-on-lan to {own}, which beats a default; "
            f"sudo nmcli connection modify {shlex.quote(nic.nm.uuid)} "
            "802-3-ethernet.wake-on-lan default",
        )  # fmt: skip
    text = render(_NM, nic=nic.name, mac=nic.permanent)
    path = f"{NM_DIR}/90-rigbook-wol-{nic.name}.conf"
    return WolPersistence((Document(path, text, "0644"),), None, "NetworkManager")


def _not_said(nic: Nic) -> str:
    name = nic.nm.uuid if nic.nm else nic.name
    return f"nmcli does not say the profile's setting; nmcli connection show {name}"
