"""What Linux can read of a machine: board and cards, as `node hardware` reports it, and the GPU's
driver with what apt would do for another, as `node driver` does. Sizes are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from schema.core import Device, Frozen, SpecError, build_parse, read_map, single_line
from schema.host import KernelSnapshot
from schema.plan import Document
from schema.snapshot import Mount, Unreadable

# What a host says of its cards goes into files of that host: no other text may come along.
HardwareAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]


class Wol(Frozen):
    """Wake-on-LAN of a card in ethtool's letters (`g`: magic packet, `d`: none), None unnamed."""

    supports: str | None
    set: str | None

    @property
    def able(self) -> bool:
        """True when the card can wake by a magic packet."""
        return "g" in (self.supports or "")

    @property
    def armed(self) -> bool:
        """True when it would, now."""
        return "g" in (self.set or "")


class NmConnection(Frozen):
    """A card's connection in NetworkManager; `wake_on_lan` is the profile's own setting."""

    connection: str
    uuid: str
    wake_on_lan: str | None


class Nic(Frozen):
    """A network card. `link_file` is what udev chose at boot, `link_lines` its [Link] section."""

    name: Device
    mac: HardwareAddress
    permanent: HardwareAddress
    physical: bool
    driver: str | None
    master: str | None
    addresses: tuple[str, ...]
    wol: Wol | Unreadable
    manager: Literal["networkd", "NetworkManager", "ifupdown", "none"]
    manager_evidence: str
    nm: NmConnection | None
    link_file: str | None
    link_lines: tuple[str, ...]


class Board(Frozen):
    """SMBIOS names. `wake_up` started the machine last (`LAN Remote`, `AC Power Restored`)."""

    vendor: str | None
    name: str | None
    serial: str | None
    system_vendor: str | None
    system_name: str | None
    bios_vendor: str | None
    bios_version: str | None
    bios_date: str | None
    wake_up: str | None

    @property
    def title(self) -> str:
        """The board as a person calls it."""
        names = (self.vendor or self.system_vendor, self.name or self.system_name)
        return " ".join(name for name in names if name) or "a board without a name"


class Display(Frozen):
    """A connector of /sys/class/drm; `edid` is the size of what the sink says of itself."""

    connector: str
    status: str
    edid: int


class Graphics(Frozen):
    """A PCI display controller; ids as hexadecimal text (0x10de is NVIDIA)."""

    slot: str
    vendor: str
    device: str
    boot_vga: bool


class EfiEntry(Frozen):
    """An entry of the firmware's boot menu."""

    label: str
    active: bool


class EfiBoot(Frozen):
    """The firmware's boot order, and the entry that this boot came from."""

    current: str | None
    order: tuple[str, ...]
    entries: dict[str, EfiEntry]


class HardwareClock(Frozen):
    """The clock that a battery keeps; `alarm` (Unix seconds) would wake the machine."""

    name: str
    unix_s: int
    alarm: int | None
    battery: str | None


class AttestationFile(Frozen):
    """A file of /var/lib/rigbook/attestations; `said` None: it is no JSON object."""

    file: str
    said: dict[str, object] | None


class HardwareFacts(Frozen):
    """One machine. `virtual` is systemd-detect-virt's word: `none` on bare metal."""

    format: Literal[1]
    virtual: str | Unreadable
    processor: str
    nics: tuple[Nic, ...] | Unreadable
    addresses: dict[str, tuple[str, ...]] | Unreadable
    board: Board | Unreadable
    displays: tuple[Display, ...] | Unreadable
    graphics: tuple[Graphics, ...] | Unreadable
    efi: EfiBoot | Unreadable
    clock: HardwareClock | Unreadable
    clock_unix_s: float
    sleep: dict[str, str] | Unreadable
    attestations: tuple[AttestationFile, ...] | Unreadable
    took_s: float


class MachineSnapshot(KernelSnapshot):
    """A node's snapshot with its hardware; asked for where somebody's hands may be needed."""

    hardware: HardwareFacts | Unreadable


class GpuUser(Frozen):
    """A process that has a device file of the driver open."""

    pid: int
    comm: str
    unit: str | None
    container: str | None


class PackageRow(Frozen):
    """A package that apt would exchange: `old` None, it is new; `new` None, it goes.

    `kept`: where the old file comes from for the way back; `none`: from nowhere any more.
    """

    name: str
    old: str | None
    new: str | None
    arch: str | None
    old_arch: str | None
    kept: Literal["kept", "cache", "repository", "repack", "none"] | None


class AptPlan(Frozen):
    """The driver's packages, and what apt would do for the wanted version.

    `wanted` None: the lists have no such version; `available` are those that they have.
    `problem`: why apt would not, in its own words. `download` None: the lists do not say.
    """

    family: dict[str, str]
    holds: tuple[str, ...]
    wanted: str | None
    available: tuple[str, ...]
    branch: str | None
    rows: tuple[PackageRow, ...]
    problem: str | None
    download: int | None


class SigningKey(Frozen):
    """The key that DKMS signs modules with, and whether the firmware knows it (None: unknown)."""

    path: str | None
    enrolled: bool | None


class DriverFacts(Frozen):
    """A host's driver. `versions`: what programs load; `loaded`: the module in the kernel."""

    format: Literal[1]
    module: str
    versions: tuple[str, ...]
    loaded: str | None
    users: tuple[GpuUser, ...]
    apt: AptPlan | Unreadable
    dpkg: str | None
    lock: str | None
    free: int
    headers: dict[str, bool]
    signed_only: bool
    key: SigningKey
    cdi: dict[str, tuple[str, ...]]
    took_s: float


class DriverSnapshot(MachineSnapshot):
    """A node's snapshot with its kernels, its hardware and its driver."""

    driver: DriverFacts | Unreadable


def lan_network(facts: HardwareFacts, address: str) -> str | None:
    """An address with its link's prefix (`192.168.1.21/24`); None: no link has it."""
    if isinstance(facts.addresses, Unreadable):
        return None
    rows = [row for rows in facts.addresses.values() for row in rows]
    return next((row for row in rows if row.partition("/")[0] == address), None)


def lan_cards(facts: HardwareFacts, address: str) -> tuple[Nic, ...]:
    """The cards that carry an address: its own, else the slaves of the bond or bridge."""
    if isinstance(facts.nics, Unreadable) or isinstance(facts.addresses, Unreadable):
        return ()
    links = [
        name
        for name, rows in facts.addresses.items()
        if any(row.partition("/")[0] == address for row in rows)
    ]
    own = tuple(nic for nic in facts.nics if nic.name in links)
    return own or tuple(nic for nic in facts.nics if nic.master in links)


# What runs a vLLM on one host by other means than rigbook, and what would start it again.
#
# `node former` reports it (node/snapshot/former.py); its caller has to ask for it, an ordinary
# snapshot has none of it. A process is identified by pid + start_ticks, as everywhere.

# unit: a systemd unit runs it. container-policy: docker starts the container again. compose: a
# project made the container. cron: a line of a crontab starts it. pod: Kubernetes. shell: somebody
# started it by hand; nothing starts it again.
SupervisorKind = Literal["unit", "container-policy", "compose", "cron", "pod", "shell"]


class FormerEngine(Frozen):
    """One `vllm serve` process, without its own workers.

    `env` is its whole environment; the values of `secret_env` are masked in it, and the values of
    `secret_flags` (as `--api-key`) in `argv`. `inside_of`: "main" is the container's main process
    or below it, "exec" another process of a container (docker exec), "pod" one of Kubernetes',
    "host" none of a container. `container` is
    a FormerContainer's name. `venv` is the environment's folder, as the process sees it. `port` and
    `node_rank` are read from argv, with vLLM's defaults (8000, 0); `is_head` is false with
    --headless.
    """

    pid: int
    start_ticks: int
    argv: tuple[str, ...]
    env: dict[str, str]
    secret_env: tuple[str, ...] = ()
    secret_flags: tuple[str, ...] = ()
    cwd: str | None
    uid: int
    user: str | None
    exe: str | None
    unit: str | None
    container: str | None
    inside_of: Literal["main", "exec", "pod", "host"]
    venv: str | None
    port: int
    node_rank: int
    is_head: bool


class FormerContainer(Frozen):
    """A container with an engine in it, or one that a supervisor names, and how it was made.

    `env` is what the container was made with, `image_env` the image's own part of it; the values of
    secrets are masked. `image` is the reference it was made from; `digests` (name@sha256:…) and
    `tags` lead to that image on this host now. `shm_bytes` is 0 where docker's default holds.
    `gpus` is true with a device request for GPUs (--gpus). `main` is the command of its main
    process.
    """

    id: str
    name: str
    image: str
    image_id: str
    digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    state: str
    main: tuple[str, ...]
    env: dict[str, str]
    image_env: dict[str, str]
    mounts: tuple[Mount, ...]
    restart_policy: str
    auto_remove: bool
    network_mode: str
    ipc_mode: str
    shm_bytes: int = 0
    privileged: bool
    runtime: str
    gpus: bool
    labels: dict[str, str]
    # what rigbook's recipe has no key for: --cap-add, --ulimit, --device and their like, in words
    other_options: tuple[str, ...] = ()
    # files put into its own layer by hand (docker cp, a patch), at most 30: ours starts without
    changed: tuple[str, ...] = ()


class Supervisor(Frozen):
    """What starts a former engine, or started it.

    `name`: unit name; container; compose project; FILE:LINE of a crontab; NAMESPACE/DEPLOYMENT;
    for a shell the pid of the engine. `starts_at_boot` is what it would do at the next boot, or
    some time after it (a periodic line of a crontab). `evidence` says where this was seen. The
    fields below belong to one kind each.
    """

    kind: SupervisorKind
    name: str
    starts_at_boot: bool
    evidence: str
    # unit
    enabled: str | None = None
    active: str | None = None
    triggered_by: tuple[str, ...] = ()
    # unit, container-policy
    restart: str | None = None
    # container-policy, compose: the containers' names; the policy of each is its container's
    containers: tuple[str, ...] = ()
    # compose
    project: str | None = None
    files: tuple[str, ...] = ()
    working_dir: str | None = None
    services: tuple[str, ...] = ()
    # cron: line numbers start at 1; `text` is the line with secrets masked
    file: str | None = None
    line: int | None = None
    text: str | None = None
    # pod: the identity and version of its Deployment as it was seen, a container of its template,
    # and the seconds that the pod is given to end by itself
    namespace: str | None = None
    deployment: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    template_container: str | None = None
    grace_s: float = 0.0


class Former(Frozen):
    """What of this was found on one host; empty tuples: nothing.

    `unread` names what could not be looked at, with the reason: it may hold more.
    """

    engines: tuple[FormerEngine, ...] = ()
    containers: tuple[FormerContainer, ...] = ()
    supervisors: tuple[Supervisor, ...] = ()
    unread: tuple[str, ...] = ()


# Checklists: how a board's firmware must be set, what Linux reads of it, what a person attests.
#
# catalog/checklists/*.yaml: one for each board that somebody knows, and `generic` for all others.

CHECKLISTS_DIR = "catalog/checklists"
GENERIC = "generic"
# What gates/firmware.py can read an answer from.
ProbeName = Literal["wol", "display", "boot_order", "sleep_targets", "clock_battery"]
Line = Annotated[str, Field(min_length=1), AfterValidator(single_line)]
ItemId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,40}$")]


class Item(Frozen):
    """One thing that must be so.

    `how` are the steps of a person at the board. `probe` reads it where Linux can; what it cannot
    read, a person attests for `valid_days` (None: it cannot be attested). `blocks` names the
    deploys that a headless board must not run without it.
    """

    id: ItemId
    expected: Line
    why: Line
    how: Annotated[tuple[Line, ...], Field(min_length=1)]
    probe: ProbeName | None = None
    valid_days: Annotated[int, Field(ge=1, le=3650)] | None = None
    blocks: tuple[Literal["reboot"], ...] = ()

    @model_validator(mode="after")
    def _can_be_known(self) -> Item:
        if self.probe is None and self.valid_days is None:
            raise ValueError(
                f"{self.id} can be neither read nor attested; allowed: probe, valid_days, or both"
            )
        return self


class BoardMatch(Frozen):
    """Which boards a list is for: shell patterns over SMBIOS' vendor and product name."""

    vendor: Line
    name: Line

    def fits(self, board: Board) -> bool:
        """True for a board that both patterns fit."""
        pairs = ((board.vendor, self.vendor), (board.name, self.name))
        return all(fnmatchcase((value or "").lower(), want.lower()) for value, want in pairs)


class Checklist(Frozen):
    """A board's list; `board` None: for every board that no other list names."""

    name: str
    title: Line
    board: BoardMatch | None = None
    items: Annotated[tuple[Item, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_item_once(self) -> Checklist:
        ids = [item.id for item in self.items]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands twice; allowed: each id once")
        return self


def checklists(root: Path) -> dict[str, Checklist]:
    """All lists by name. SpecError: everything wrong in their files, and a missing `generic`."""
    found: dict[str, Checklist] = {}
    problems: list[str] = []
    for path in sorted((root / CHECKLISTS_DIR).glob("*.yaml")):
        try:
            found[path.stem] = _checklist(path)
        except SpecError as error:
            problems += error.problems
    if GENERIC not in found and not problems:
        problems.append(f"{CHECKLISTS_DIR}/{GENERIC}.yaml: is missing; boards of no list need it")
    if problems:
        raise SpecError(*problems)
    return found


def _checklist(path: Path) -> Checklist:
    """The list of one file; SpecError: everything wrong in it."""
    shown = f"{CHECKLISTS_DIR}/{path.name}"
    made = build_parse(Checklist, read_map(path, shown), lambda key: shown, {"name": path.stem})
    if (made.board is None) != (path.stem == GENERIC):
        raise SpecError(f"{shown}: board: allowed: in every list but {GENERIC}.yaml")
    return made


def checklist_for(board: Board | None, lists: Mapping[str, Checklist]) -> Checklist:
    """The list for a board, `generic` where none names it. SpecError when two do."""
    fitting = [made for made in lists.values() if board and made.board and made.board.fits(board)]
    if len(fitting) > 1:
        names = ", ".join(made.name for made in fitting)
        raise SpecError(
            f"{CHECKLISTS_DIR}: {board.title if board else ''} fits {names}; allowed: one list"
        )
    return fitting[0] if fitting else lists[GENERIC]


# Attestations: what a person has seen in a board's BIOS, for how long, and for which BIOS.
#
# One file an item on the node itself, root's alone, written as a journalled file step.

ATTESTATIONS = "/var/lib/rigbook/attestations"
DAY_S = 86400


class Attestation(Frozen):
    """Who saw it, when (Unix seconds of the operator's clock), for how long, on which board."""

    format: Literal[1]
    item: str
    by: str
    at_unix_s: int
    valid_days: int
    bios_version: str
    board_serial: str
    board: str


def path_of(item: str) -> str:
    """The file of an item's attestation."""
    return f"{ATTESTATIONS}/{item}.json"


def attestation_document(item: Item, by: str, now: float, board: Board) -> Document:
    """The attestation's file. ValueError where there is no BIOS version to bind it to."""
    if not board.bios_version:
        raise ValueError("the board does not say its BIOS version")
    assert item.valid_days is not None
    said = Attestation(
        format=1, item=item.id, by=by, at_unix_s=int(now), valid_days=item.valid_days,
        bios_version=board.bios_version, board_serial=board.serial or "", board=board.title,
    )  # fmt: skip
    text = json.dumps(said.model_dump(), indent=1, sort_keys=True) + "\n"
    return Document(path_of(item.id), text, "0600")


def recorded(facts: HardwareFacts) -> Mapping[str, Attestation | str]:
    """By item: the attestation, or why its file is none."""
    if isinstance(facts.attestations, Unreadable):
        return {}
    found: dict[str, Attestation | str] = {}
    for row in facts.attestations:
        item = row.file.removesuffix(".json")
        try:
            made = Attestation.model_validate(row.said, strict=True)
            found[item] = made if made.item == item else f"{row.file} is about {made.item}"
        except ValidationError:
            found[item] = f"{ATTESTATIONS}/{row.file} is no attestation"
    return found


def standing(
    said: Attestation | str | None, item: Item, board: Board | None, now: float
) -> tuple[bool, str]:
    """Whether an attestation holds, and why not: never made, expired, or made for another BIOS."""
    if said is None:
        return False, "never attested"
    if isinstance(said, str):
        return False, said
    who = f"attested by {said.by}"
    if board is None or board.bios_version is None:
        return False, f"{who}, but the board does not say its BIOS version now"
    if said.bios_version != board.bios_version:
        return False, f"{who} for BIOS {said.bios_version}; it is {board.bios_version} now"
    if said.board_serial != (board.serial or ""):
        return False, f"{who} for another board (serial {said.board_serial or 'none'})"
    days = (now - said.at_unix_s) / DAY_S
    if days < -1:
        return False, f"{who}, dated {-days:.0f} days in the future"
    # The list may have become stricter since.
    valid = min(said.valid_days, item.valid_days or said.valid_days)
    if days > valid:
        return False, f"{who} {days:.0f} days ago, valid for {valid}"
    return True, f"{who}, {valid - days:.0f} days left"
