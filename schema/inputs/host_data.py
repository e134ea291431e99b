"""The keys that inventory, group_data and --data may hold for one host: a closed set.

pyinfra merges them into one dict a host; `host_data` checks it, so that a slip of the pen stops
a run instead of being ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from schema.core.base import Frozen
from schema.core.errors import SpecError, nearest, shown
from schema.core.kernel_names import module_name, release_name
from schema.core.parse import build, known_keys
from schema.core.strings import argument, http_url, mac_address, mount_path
from schema.inputs.rig import AbsolutePath, Address, Device, Fabric, HostName, Name, Node
from schema.observed.artifact import commit_or_pr
from schema.recipe.venv import Version
from schema.render.drop_in import (
    DROP_IN_NAME,
    Argv,
    Assignment,
    DropIn,
    Restart,
    UnitName,
    listed_argv,
)

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
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # pyinfra reads 41834 as a number
    if isinstance(value, float):  # and 7e12345 as one with an exponent: its digits are gone
        raise ValueError(
            "was read as a number; allowed: a list, such as --data 'KEY=[\"7e12345\"]'"
        )
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(value) if isinstance(value, list) else value


def _as_text(value: object) -> object:
    """A number as the text that it was; pyinfra reads digits as a number."""
    return str(value) if type(value) is int else value


def _as_version(value: object) -> object:
    """A version that pyinfra read as a number: 0.5 is not what was typed for 0.50."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("was read as a number; allowed: all of it, such as 0.32.0")
    return value


Argument = Annotated[str, AfterValidator(argument)]
Release = Annotated[str, AfterValidator(release_name)]
Module = Annotated[str, AfterValidator(module_name)]
Mac = Annotated[str, AfterValidator(mac_address)]
Url = Annotated[str, AfterValidator(http_url)]
Commit = Annotated[str, BeforeValidator(_as_text), AfterValidator(commit_or_pr)]


class HostData(Frozen):
    """One host's data: what inventory and group_data say of it, then the keys for `--data`.

    A list may be given as `a,b`. The comments name the deploys that read a key.
    """

    role: Literal["head", "worker"]
    # None: 0 for the head, 1 for a worker
    rank: Annotated[int, Field(ge=0, le=63)] | None = None
    lan_address: Address
    fabric_address: Address | None = None
    fabric_device: Device | None = None
    fabric_mtu: Annotated[int, Field(ge=1280, le=65535)] = 9000
    ssh_user: Name
    # None: the login user's usual home
    home: Annotated[str, AfterValidator(mount_path)] | None = None
    rig: Name
    recipe: Name
    # None: the recipe's default
    profile: Name | None = None
    # more folders of recipes, from the project's root
    recipes_dir: Annotated[tuple[Argument, ...], BeforeValidator(_listed)] = ()
    # waive needs a reason; both go into the journal
    waive: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = ()
    reason: Argument | None = None
    deep: bool = False
    as_json: bool = Field(default=False, alias="json")
    # rollback: the change to undo, and the files whose later edits it may discard
    change: Name | None = None
    overwrite: Annotated[tuple[AbsolutePath, ...], BeforeValidator(_listed)] = ()
    # reboot, watch, unit: the one node that is meant; reboot: seconds for its next boot
    only: HostName | None = None
    budget: Annotated[int, Field(ge=30, le=86400)] = 1800
    # watch: seconds between two looks, misses until it is down, whom to tell (a URL, or a
    # root-only file on the node that holds it), seconds until a notice is repeated, what to ask
    # other than the head (a gateway's base URL) and which model must answer
    interval: Annotated[int, Field(ge=10, le=86400)] = 60
    misses: Annotated[int, Field(ge=1, le=1000)] = 3
    webhook: Annotated[Url | None, Field(repr=False)] = None
    webhook_file: AbsolutePath | None = None
    repeat_s: Annotated[int, Field(ge=60, le=2592000)] = 3600
    url: Url | None = None
    model: Argument | None = None
    remove: bool = False
    # unit: the systemd unit, the name of its drop-in, and the directives in it
    unit: UnitName | None = None
    drop_in: Name = DROP_IN_NAME
    exec_start: Annotated[Argv | None, BeforeValidator(listed_argv)] = None
    restart: Restart | None = None
    restart_sec: Annotated[int, Field(ge=0, le=86400)] | None = None
    environment: Annotated[tuple[Assignment, ...], BeforeValidator(_listed)] = ()
    start_limit_interval: Annotated[int, Field(ge=0, le=604800)] | None = None
    start_limit_burst: Annotated[int, Field(ge=0, le=10000)] | None = None
    # provenance, patch: the engine's folder, where the recipe does not name it; commits or pull
    # requests to look for, and a clone on the operator's machine that may be asked
    venv: AbsolutePath | None = None
    commits: Annotated[tuple[Commit, ...], BeforeValidator(_listed)] = ()
    git: AbsolutePath | None = None
    # backup: the folder (None: the recipe's venv), list only, the id to verify (`all`: every one),
    # remove all but the `keep` newest, and with them what restores displaced. For weights, verify
    # hashes everything and prune deletes what the giver has not.
    tree: AbsolutePath | None = None
    as_list: bool = Field(default=False, alias="list")
    verify: bool | Name | None = None
    prune: bool = False
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    displaced: bool = False
    # upgrade: the version to bring (None: the recipe's), and whether into the venv that serves (the
    # seed's way) or into one beside it; `prune` removes the versions that nobody needs. rollback:
    # the backup to restore (`last`: the newest verified one)
    version: Annotated[Version | None, BeforeValidator(_as_version)] = None
    inplace: bool = False
    backup: Name | None = None
    # image, weights: the node that gives, an archive on the operator's machine, the giver's port
    # for this one transfer; whether the image is built from the recipe's container.build
    source: HostName | None = Field(default=None, alias="from")
    archive: AbsolutePath | None = None
    build: bool = False
    method: Literal["auto", "layers", "ssh"] = "auto"
    port: Annotated[int, Field(ge=1024, le=65535)] = 29680
    compress: Literal["auto", "yes", "no"] = "auto"
    # kernel: the release to pin (or `current`), the one to try once; the driver's module
    kernel: Release | None = None
    candidate: Release | None = None
    driver_module: Module | None = None
    # firmware: items that a person has seen at the board, and who; the card to arm (None: the one
    # that carries lan_address)
    attest: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = ()
    by: Argument | None = None
    nic: Device | None = None
    # wake: the card's address (None: as firmware recorded it), the peer that sends the packet, a
    # program on the operator's machine that is called with `off` and `on`, whether to call it, and
    # the seconds in between
    mac: Mac | None = None
    via: HostName | None = None
    power_cycle_command: Annotated[Argv | None, BeforeValidator(listed_argv)] = None
    power_cycle: bool = False
    off_s: Annotated[int, Field(ge=3, le=600)] = 10

    def override(self) -> DropIn:
        """What the keys of a unit's drop-in say; empty where none was given."""
        return DropIn(
            exec_start=self.exec_start,
            restart=self.restart,
            restart_sec=self.restart_sec,
            environment=self.environment,
            start_limit_interval=self.start_limit_interval,
            start_limit_burst=self.start_limit_burst,
        )

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
    if bool(checked.attest) != bool(checked.by):
        given, missing = ("attest", "by") if checked.attest else ("by", "attest")
        raise SpecError(
            f"{where(given)}: {missing}: is missing; allowed: --data attest=ITEM,… together with "
            "--data by=NAME"
        )
    if checked.webhook and checked.webhook_file:
        raise SpecError(f"{where('webhook')}: webhook: and webhook_file; allowed: one of them")
    return checked
