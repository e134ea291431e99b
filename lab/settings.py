"""Where the lab keeps its things and what its hosts are called. Reads only; changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SSH_USER = "rig"
DEFAULT_HOSTS = 2
MAX_HOSTS = 9
# which host gets the containerd image store where one is asked for: the fabric's second end
CONTAINERD_HOST = 2
LAN_BRIDGE = "rig-lan"
LAN_PREFIX = 24
OPERATOR_ADDRESS = "10.88.0.254"
FABRIC_DEVICE = "bond0"
FABRIC_MTU = 9000
FABRIC_PREFIX = 24
MODEL_PATH = "/srv/models/tiny"
CACHE_IN_HOST = "/srv/rigbook-cache"
ENGINE_VERSION = "0.32.0"
ENGINE_IMAGE = f"rigbook/vllm-cpu:{ENGINE_VERSION}"


class LabError(Exception):
    """A failure that one line explains; the command line prints it and exits 1."""


@dataclass(frozen=True)
class LabHost:
    """One rehearsal host: its number (from 1), name and addresses.

    A tower has its engine in a venv and no docker; its numbers count for themselves. A containerd
    host is of a later Debian, and its docker keeps images in the containerd store.
    """

    number: int
    is_tower: bool = False
    containerd: bool = False

    @property
    def name(self) -> str:
        """Host name, e.g. ``lab1`` or ``tower1``."""
        return f"{'tower' if self.is_tower else 'lab'}{self.number}"

    @property
    def address(self) -> str:
        """LAN address, on the operator's bridge."""
        return f"10.88.0.{(50 if self.is_tower else 10) + self.number}"

    @property
    def fabric_address(self) -> str:
        """Address on the fabric link (only the first two hosts have one)."""
        return f"10.99.0.{self.number}"

    @property
    def has_fabric(self) -> bool:
        """Whether this host has an end of the fabric's one veth pair."""
        return self.number <= 2 and not self.is_tower


@dataclass(frozen=True)
class LabSettings:
    """Paths of one lab; all of them follow from its home and its cache."""

    home: Path
    cache: Path

    @property
    def state_file(self) -> Path:
        """The lab's state file: present while a lab exists."""
        return self.home / "lab.json"

    @property
    def ssh_key(self) -> Path:
        """Private key of the login user."""
        return self.home / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts, so that StrictHostKeyChecking=yes holds."""
        return self.home / "ssh" / "known_hosts"

    @property
    def images(self) -> Path:
        """Folder that every host sees read-only at CACHE_IN_HOST."""
        return self.cache / "images"

    @property
    def roots(self) -> Path:
        """Folder of the cached root trees."""
        return self.cache / "roots"

    @property
    def fabric_down_flag(self) -> Path:
        """While this file exists nobody plugs the fabric back in."""
        return self.home / "fabric.down"

    def host_dir(self, host: LabHost) -> Path:
        """Folder of one host: overlay, docker's folder, state, console log."""
        return self.home / "hosts" / host.name

    def hosts(self) -> list[LabHost]:
        """The hosts of the lab that exists, or those the default lab would have."""
        try:
            state = json.loads(self.state_file.read_text())
            count, towers = int(state["hosts"]), int(state.get("towers", 0))
            containerd = bool(state.get("containerd", False))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            count, towers, containerd = DEFAULT_HOSTS, 0, False
        return make_hosts(count, containerd) + make_towers(towers)

    def host(self, name: str) -> LabHost:
        """The host of that name; LabError lists the names there are."""
        for host in self.hosts():
            if host.name == name:
                return host
        names = ", ".join(host.name for host in self.hosts())
        raise LabError(f"no host {name!r} in the lab; there are: {names}")


def make_hosts(count: int, containerd: bool = False) -> list[LabHost]:
    """``count`` hosts, numbered from 1; ``containerd``: the second one with that image store."""
    return [
        LabHost(number, containerd=containerd and number == CONTAINERD_HOST)
        for number in range(1, count + 1)
    ]


def make_towers(count: int) -> list[LabHost]:
    """``count`` towers, numbered from 1."""
    return [LabHost(number, is_tower=True) for number in range(1, count + 1)]


def load(environ: Mapping[str, str] = os.environ) -> LabSettings:
    """Settings from RIGBOOK_LAB_HOME and RIGBOOK_CACHE, or their defaults."""
    home = environ.get("RIGBOOK_LAB_HOME") or "/var/lib/rigbook-lab"
    cache = environ.get("RIGBOOK_CACHE") or str(Path("~/.cache/rigbook").expanduser())
    return LabSettings(home=Path(home).absolute(), cache=Path(cache).absolute())
