"""The keys that inventory, group_data and --data may hold for one host: a closed set.

pyinfra merges them into one dict a host; `host_data` checks it, so that a slip of the pen stops
a run instead of being ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from schema.base import Frozen
from schema.errors import SpecError, nearest, shown
from schema.rig import AbsolutePath, Address, Device, Fabric, HostName, Name, Node
from schema.text import argument, http_url, mount_path
from schema.validate import build, known_keys

# pyinfra's own keys: ConnectorData of pyinfra 3.10's ssh and fake connectors, and `_sudo`, the one
# of its global arguments that belongs to a host. pyinfra checks their values itself.
PYINFRA_KEYS = frozenset(
    [
        "ssh_hostname",
        "ssh_port",
        "ssh_user",
        "ssh_password",
        "ssh_key",
        "ssh_key_password",
        "ssh_allow_agent",
        "ssh_look_for_keys",
        "ssh_forward_agent",
        "ssh_config_file",
        "ssh_known_hosts_file",
        "ssh_strict_host_key_checking",
        "ssh_paramiko_connect_kwargs",
        "ssh_connect_retries",
        "ssh_connect_retry_min_delay",
        "ssh_connect_retry_max_delay",
        "ssh_file_transfer_protocol",
        "fake_responses",
        "fake_delay",
        "fake_delay_jitter",
        "_sudo",
    ]
)


def _listed(value: object) -> object:
    """`a,b` as the list that it means; a tuple, because that is what the field holds."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(value) if isinstance(value, list) else value


Argument = Annotated[str, AfterValidator(argument)]
Url = Annotated[str, AfterValidator(http_url)]


class HostData(Frozen):
    """One host's data. The second half are keys for `--data`; a list may be given as `a,b`.

    `rank` None: 0 for the head, 1 for a worker. `home` None: the login user's usual home.
    `profile` None: the recipe's default. `recipes_dir`: more folders of recipes, from the
    project's root. `waive` needs `reason`. `overwrite`: files whose later edits a rollback may
    discard. `change`: the change that a rollback undoes. `only`: the node that a reboot takes down
    (None: all) or that watches (None: the head), `budget`: the seconds that its next boot may
    take. The rest is watch's: seconds between two looks, misses until it is down, whom to
    tell (the URL, or a root-only file on the node that holds it), seconds until a notice is
    repeated, what to ask other than the head (a gateway's base URL) and which model must answer.
    """

    role: Literal["head", "worker"]
    rank: Annotated[int, Field(ge=0, le=63)] | None = None
    lan_address: Address
    fabric_address: Address | None = None
    fabric_device: Device | None = None
    fabric_mtu: Annotated[int, Field(ge=1280, le=65535)] = 9000
    ssh_user: Name
    home: Annotated[str, AfterValidator(mount_path)] | None = None
    rig: Name
    recipe: Name
    profile: Name | None = None
    recipes_dir: Annotated[tuple[Argument, ...], BeforeValidator(_listed)] = ()
    waive: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = ()
    reason: Argument | None = None
    deep: bool = False
    as_json: bool = Field(default=False, alias="json")
    change: Name | None = None
    overwrite: Annotated[tuple[AbsolutePath, ...], BeforeValidator(_listed)] = ()
    only: HostName | None = None
    budget: Annotated[int, Field(ge=30, le=86400)] = 1800
    interval: Annotated[int, Field(ge=10, le=86400)] = 60
    misses: Annotated[int, Field(ge=1, le=1000)] = 3
    webhook: Annotated[Url | None, Field(repr=False)] = None
    webhook_file: AbsolutePath | None = None
    repeat_s: Annotated[int, Field(ge=60, le=2592000)] = 3600
    url: Url | None = None
    model: Argument | None = None
    remove: bool = False

    def node(self, name: str) -> Node:
        """This host as a node of its rig."""
        usual_home = "/root" if self.ssh_user == "root" else f"/home/{self.ssh_user}"
        return Node(
            name=name,
            role=self.role,
            rank=self.rank if self.rank is not None else int(self.role == "worker"),
            lan_address=self.lan_address,
            fabric_address=self.fabric_address,
            ssh_user=self.ssh_user,
            home=self.home or usual_home,
        )

    def fabric(self) -> Fabric | None:
        """The rig's fabric, or None where group_data names no device."""
        if self.fabric_device is None:
            return None
        return Fabric(device=self.fabric_device, mtu=self.fabric_mtu)


def host_data(name: str, data: Mapping[str, object], sources: Mapping[str, str]) -> HostData:
    """The checked data of host `name`.

    `data` is pyinfra's merged dict; `sources` says for a key where it came from
    (`group_data/spark.py`, `--data`), for the errors. SpecError has a line for each problem.
    """

    def where(key: str) -> str:
        return f"{sources.get(key, 'inventory or group_data')}: host {name}"

    ours = known_keys(HostData)
    strays = [
        f"{where(key)}: unknown key {shown(key)}{nearest(key, [*ours, *PYINFRA_KEYS])}; "
        f"allowed: {', '.join(sorted(ours))}, and pyinfra's ssh_ keys"
        for key in data
        if key not in ours and key not in PYINFRA_KEYS
    ]
    try:
        checked = build(HostData, {key: data[key] for key in ours if key in data}, where)
    except SpecError as error:
        raise SpecError(*strays, *error.problems) from None
    if strays:
        raise SpecError(*strays)
    if checked.waive and not checked.reason:
        raise SpecError(
            f"{where('waive')}: waive: needs a reason; allowed: --data waive=CODE "
            '--data reason="why this is safe now"'
        )
    if checked.reason and not checked.waive:
        raise SpecError(f"{where('reason')}: reason: without waive; allowed: together with waive")
    if checked.webhook and checked.webhook_file:
        raise SpecError(f"{where('webhook')}: webhook: and webhook_file; allowed: one of them")
    return checked
