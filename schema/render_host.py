"""The host's files: kernel, memory guard, Wake-on-LAN."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schema.core import systemd_argument
from schema.hardware import Nic
from schema.plan import Document
from schema.render_engine import UNITS_DIR, render_engine_files

# The files that keep a host alive: panics, watchdog, journal, memory guard, and what is wanted.

FORMAT = 1
WANTED_PATH = "/etc/rigbook/host.json"
SYSCTL_PATH = "/etc/sysctl.d/90-rigbook-host.conf"
MANAGER_PATH = "/etc/systemd/system.conf.d/90-rigbook-host.conf"
JOURNAL_PATH = "/etc/systemd/journald.conf.d/90-rigbook-host.conf"
GUARD = "earlyoom.service"
MEMORY_GUARD_PATH = f"{UNITS_DIR}/{GUARD}.d/60-rigbook-host.conf"
PSTORE = "systemd-pstore.service"
# The guard's drop-in is checked as its whole unit, so it is none of these.
PATHS = (WANTED_PATH, SYSCTL_PATH, MANAGER_PATH, JOURNAL_PATH)
# vLLM names its processes so; the API server's own name is vllm.
PREY = "^(VLLM::|vllm$)"
PANICS = {
    "softlockup": {"kernel.softlockup_panic": "1"},
    # A load of 150 GB from a slow disk keeps a task waiting longer than the kernel's own 120 s.
    "hung_task": {"kernel.hung_task_panic": "1", "kernel.hung_task_timeout_secs": "600"},
    "oom": {"vm.panic_on_oom": "1"},
}
OFF = {
    "kernel.softlockup_panic": "0",
    "kernel.hung_task_panic": "0",
    "vm.panic_on_oom": "0",
}


@dataclass(frozen=True)
class HostPlan:
    """What a host is to be: seconds, MiB (0: none), and what was so before the first run."""

    sysctls: Mapping[str, str]
    watchdog_s: int
    journal_mib: int
    guard_mib: int
    former: Mapping[str, str]


def panic_sysctls(panic_s: int, panic_on: tuple[str, ...]) -> dict[str, str]:
    """The kernel's values: `panic_s` seconds from a panic to the reboot, and what makes one."""
    values = {"kernel.panic": str(panic_s), **OFF}
    for name in panic_on:
        values.update(PANICS[name])
    return values


def guard_argv(guard_mib: int) -> tuple[str, ...]:
    """The guard's command line: TERM below that much of MemAvailable, KILL below half of it.

    `-s 100`: swap that is left over does not make it wait (both limits must be passed).
    """
    term = guard_mib * 1024
    limits = ("-M", f"{term},{term // 2}", "-s", "100,100")
    return ("/usr/bin/earlyoom", "-r", "3600", *limits, "--prefer", PREY)


def guard_text(guard_mib: int) -> str:
    """The guard's drop-in."""
    words = guard_argv(guard_mib)
    return render_engine_files(MEMORY_GUARD_PATH, command=" ".join(map(systemd_argument, words)))


def host_documents(host: HostPlan) -> tuple[Document, ...]:
    """What lands on a host; a part that it does not have leaves its file out."""
    wanted = {
        "format": FORMAT,
        "sysctls": dict(host.sysctls),
        "watchdog_s": host.watchdog_s,
        "journal_mib": host.journal_mib,
        "guard_mib": host.guard_mib,
        "former": dict(host.former),
    }
    text = json.dumps(wanted, indent=1, sort_keys=True) + "\n"
    found = [(WANTED_PATH, text), (JOURNAL_PATH, render_engine_files(JOURNAL_PATH, **wanted))]
    if host.sysctls:
        found.append((SYSCTL_PATH, render_engine_files(SYSCTL_PATH, **wanted)))
    if host.watchdog_s:
        found.append((MANAGER_PATH, render_engine_files(MANAGER_PATH, **wanted)))
    return tuple(Document(path, content, "0644") for path, content in found)


# The files of a kernel pin, and of a candidate's one boot (node/kernel/grub_step.py reads the
# latter).

GRUB_DIR = "/etc/default/grub.d"
GRUB_PATH = f"{GRUB_DIR}/zz-rigbook.cfg"
APT_PATH = "/etc/apt/apt.conf.d/99rigbook-kernel"
PIN_PATHS = (GRUB_DIR, GRUB_PATH, APT_PATH)
CANDIDATE_SERVICE = "rigbook-candidate.service"
CANDIDATE_PATH = "/etc/rigbook/candidate.json"
CANDIDATE_SERVICE_PATH = f"{UNITS_DIR}/{CANDIDATE_SERVICE}"
CANDIDATE_PATHS = ("/etc/rigbook", CANDIDATE_PATH, CANDIDATE_SERVICE_PATH)


def pin_documents(release: str, packages: Sequence[str]) -> tuple[Document, ...]:
    """What lands on a node whose kernel is pinned: GRUB's default, and apt's hands off it.

    unattended-upgrades reads its blacklist as Python regular expressions from the name's begin.
    """
    patterns = [f"^{re.escape(name)}$".replace("\\-", "-") for name in packages]
    return (
        Document(GRUB_PATH, render_engine_files(GRUB_PATH), "0644"),
        Document(
            APT_PATH, render_engine_files(APT_PATH, release=release, patterns=patterns), "0644"
        ),
    )


def candidate_documents(
    candidate: str, pinned: str, budget_s: int, change: str
) -> tuple[Document, ...]:
    """What lands on a node that tries a kernel once: whom it waits for, and the unit that waits."""
    facts = {"format": 1, "candidate": candidate, "pinned": pinned, "budget_s": budget_s,
             "change": change}  # fmt: skip
    text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
    unit = render_engine_files(CANDIDATE_SERVICE_PATH, candidate=candidate, pinned=pinned)
    return (
        Document(CANDIDATE_PATH, text, "0644"),
        Document(CANDIDATE_SERVICE_PATH, unit, "0644"),
    )


# The file that arms a card's Wake-on-LAN at every boot, by whoever sets the card up there.

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


def wake_on_lan_files_paths(nic: Nic) -> tuple[str, ...]:
    """All paths that `persistence` may name for a card."""
    return (
        link_path(nic),
        f"{NM_DIR}/90-rigbook-wol-{nic.name}.conf",
        f"{UNITS_DIR}/{wake_unit_name(nic)}",
    )


def wake_unit_name(nic: Nic) -> str:
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
        return WolPersistence((_unit(nic),), wake_unit_name(nic), "a unit with ethtool")
    lines = [line for line in nic.link_lines if not line.startswith("WakeOnLan=")]
    link = Document(
        ours, render_engine_files(_LINK, nic=nic.name, mac=nic.permanent, lines=lines), "0644"
    )
    if nic.link_file == ours and not getattr(nic.wol, "armed", False):
        reader = "systemd-udevd, and a unit, because the driver dropped it when the link came up"
        return WolPersistence((link, _unit(nic)), wake_unit_name(nic), reader)
    return WolPersistence((link,), None, "systemd-udevd")


def _is_first(ours: str, now: str | None) -> bool:
    """True when udev would take our file instead of the one that it takes now."""
    return now is not None and ours.rpartition("/")[2] <= now.rpartition("/")[2]


def _unit(nic: Nic) -> Document:
    return Document(
        f"{UNITS_DIR}/{wake_unit_name(nic)}", render_engine_files(_UNIT, nic=nic.name), "0644"
    )


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
    text = render_engine_files(_NM, nic=nic.name, mac=nic.permanent)
    path = f"{NM_DIR}/90-rigbook-wol-{nic.name}.conf"
    return WolPersistence((Document(path, text, "0644"),), None, "NetworkManager")


def _not_said(nic: Nic) -> str:
    name = nic.nm.uuid if nic.nm else nic.name
    return f"nmcli does not say the profile's setting; nmcli connection show {name}"
