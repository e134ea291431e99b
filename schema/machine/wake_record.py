"""What the operator keeps of a machine for when it cannot be asked: its card's address."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schema.core.base import Frozen
from schema.core.errors import SpecError
from schema.core.parse import build
from schema.core.strings import mac_address
from schema.core.types import Device

Mac = Annotated[str, AfterValidator(mac_address)]


class MachineRecord(Frozen):
    """A machine as it was seen last. `wol` is ethtool's letter set then; `open` the items of its
    checklist that nobody had attested; `network` its LAN address with the prefix.
    """

    nic: Device
    mac: Mac
    network: str
    wol: str
    able: bool
    board: str
    display: bool
    open: tuple[str, ...]
    seen_unix_s: int

    @property
    def broadcast(self) -> str:
        """The broadcast address of its LAN."""
        return str(IPv4Interface(self.network).network.broadcast_address)


class Machines(Frozen):
    """The machines of one rig, by node."""

    format: Literal[1] = 1
    nodes: dict[str, MachineRecord] = Field(default_factory=dict)


def state_folder() -> Path:
    """The operator's own folder: XDG_STATE_HOME (XDG Base Directory), else ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "rigbook"


def machines_path(rig: str) -> Path:
    """The file of a rig's machines."""
    return state_folder() / "machines" / f"{rig}.json"


def read_machines(rig: str) -> Machines:
    """The machines of a rig; none where nothing was recorded. SpecError for a file that is none."""
    path = machines_path(rig)
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return Machines()
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}; remove it, it is written anew by firmware.py") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: is no map; remove it, it is written anew by firmware.py")
    return build(Machines, data, lambda key: str(path))


def write_machines(rig: str, machines: Machines) -> bool:
    """Writes the file, old or new in whole; False where it says that already."""
    path = machines_path(rig)
    text = json.dumps(machines.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    temp.write_text(text)
    temp.replace(path)
    return True
