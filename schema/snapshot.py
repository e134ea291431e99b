"""What one host is, as `node snapshot` reports it: the typed form of that one JSON document.

A section that could not be read is an `Unreadable` with the reason: unknown is not absent.
Sizes are bytes unless the name says otherwise; times are Unix seconds; a process is identified
by pid + start_ticks (field 22 of /proc/PID/stat) + the boot_id of its host.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Literal

from pydantic import Field

from node.rules import engine
from schema.core import Frozen, Id, PrintableLine, Said

# Images and containers, and what lies in an image.
#
# Sections of the snapshot (schema/snapshot.py, which says what its units are).


class Image(Frozen):
    """A container image. `layers` are the RootFS diff ids; `.Id` alone is not comparable."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    layers: tuple[str, ...]
    config_sha256: str
    arch: str
    size: int
    # who a container of it runs as: a name or a number, perhaps with a group; empty: root
    user: str = ""


class Mount(Frozen):
    """A bind mount or volume of a container."""

    source: str
    target: str
    read_only: bool


class Container(Frozen):
    """A container with what decides how it runs.

    `held_by` are the units in which a docker client names it now (`docker exec`, `docker run`).
    """

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int
    pid: int | None
    argv: tuple[str, ...]
    environ: dict[str, str]
    restart_policy: str
    network_mode: str
    ipc_mode: str
    privileged: bool
    init: bool
    mounts: tuple[Mount, ...]
    restarts: int
    labels: dict[str, str]
    held_by: tuple[str, ...] = ()


class Docker(Frozen):
    """The engine and, of its images, those that the request named; all containers.

    `cdi_devices` are those that it knows, such as nvidia.com/gpu=all. `gpu_hooks` are the programs
    of NVIDIA's container toolkit on dockerd's PATH, which it runs for `--gpus`.
    """

    version: str
    storage_driver: str
    root: str
    images: tuple[Image, ...]
    containers: tuple[Container, ...]
    # the containerd image store's folder; None where docker keeps images by itself, below `root`
    containerd: str | None = None
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    cdi_devices: tuple[str, ...] = ()
    gpu_hooks: tuple[str, ...] = ()

    @property
    def store(self) -> str:
        """The image store in words: the graph driver, or containerd with its snapshotter."""
        driver = self.storage_driver
        return driver if self.containerd is None else f"containerd/{driver}"

    @property
    def store_root(self) -> str:
        """The folder whose disk takes images and layers."""
        return self.root if self.containerd is None else self.containerd


class ImageFileProbe(Frozen):
    """A question about files inside an image: how often is a text in them? `path` is a glob.

    `image` may be a venv's folder; `path` counts from there.
    """

    image: str
    path: str
    contains: str


class ImageFileMatch(Frozen):
    """A file that a probe found: its path inside the image, and how often it has the text."""

    path: str
    sha256: str
    count: int


class ImageFile(ImageFileProbe):
    """A probe's answer; no matches: the image has no such file."""

    matches: tuple[ImageFileMatch, ...]


# Files, weights, venvs, and the journal of changes; a repository on the hub.
#
# Sections of the snapshot (schema/snapshot.py, which says what its units are).


class FileState(Frozen):
    """A file that the request named. `content` is given for text up to 64 KiB, else None.

    `size` of a directory is the number of its entries.
    """

    path: str
    kind: Literal["file", "directory", "link", "other", "absent"]
    sha256: str | None
    size: int | None
    mode: str | None
    uid: int | None
    gid: int | None
    content: str | None


class WeightsFile(Frozen):
    """One file of a weights folder. `magic` is the hex of its first 16 bytes.

    `header_says` is the length that the own header of a safetensors or GGUF file gives it; None
    for others. A GGUF may be longer. `broken` is why a GGUF's header cannot be read to its end.
    `probe` is the sha256 of its first and last 64 KiB. `sha256` is known from an earlier reading
    (size and mtime still hold), or read for with `deep`.
    """

    name: str
    size: int
    magic: str
    sha256: str | None
    header_says: int | None = None
    broken: str | None = None
    probe: str | None = None


class FormerWeights(Frozen):
    """The files that a change replaced, as they are kept beside the weights; `bytes` in sum."""

    change: Id
    path: str
    files: int
    bytes: int


class Weights(Frozen):
    """A weights folder (or file). `missing_shards` are named by the index and not there.

    `incomplete` is the change that left it half switched: some files are of one set, some of
    another. `folder` is where they lie: the snapshot, where `path` is a model's folder in a Hugging
    Face cache; `linked` files of it are links into the cache's blobs.
    """

    path: str
    exists: bool
    files: tuple[WeightsFile, ...]
    missing_shards: tuple[str, ...]
    folder: str | None = None
    linked: int = 0
    incomplete: Id | None = None
    displaced: tuple[FormerWeights, ...] = ()


class VenvProbe(Frozen):
    """A question about a venv: its folder (or the link to it), and the user who runs it."""

    path: str
    user: str


class Venv(VenvProbe):
    """A venv as its files tell; nothing in it is run.

    `target` is the folder that `path` leads to, None when there is none. `python` is what its
    bin/python leads to, None when that does not exist; `base` is the interpreter's folder of
    pyvenv.cfg. `entry_shebang` is the interpreter that bin/vllm names. `versions` are those of
    the distributions that rigbook compares. `shm_goes` says that logind removes this user's shared
    memory at the last logout (None: it could not be told).
    """

    target: str | None
    python: str | None
    base: str | None
    python_version: str | None
    entry_kind: Literal["file", "absent", "other"]
    entry_executable: bool
    entry_shebang: str | None
    entry_shebang_exists: bool | None
    versions: dict[str, tuple[str, ...]]
    user_exists: bool
    shm_goes: bool | None


class TakenBy(Said):
    """Who took a change up, and when."""

    operator: str
    deploy: str
    unix_s: float


class LeaseNote(Frozen):
    """A change's lease in seconds, and how far its keeper has come on this host (None: nothing was
    done yet). `again`: it starts an engine that ran, since a peer's was stopped.
    """

    seconds: float | None = None
    phase: str | None = None
    again: bool = False


class ChangeSummary(Said):
    """One change of the host's journal. `saved_unix_s` is when its run last wrote there.

    `run` is the token of the run that has it (None: a person has), `taken_by` who took it up,
    `beat_unix_s` when an open one's run last said that it lives, `lease` whether the host goes back
    by itself without one.
    """

    id: Id
    deploy: str
    status: Literal["OPEN", "COMMITTED", "ROLLED_BACK", "INCONSISTENT"]
    opened_unix_s: float
    closed_unix_s: float | None
    operator: str
    boot_id: str
    steps: tuple[str, ...]
    reason: str | None
    saved_unix_s: float | None = None
    run: str | None = None
    taken_by: TakenBy | None = None
    beat_unix_s: float | None = None
    lease: LeaseNote | None = None

    @property
    def owner(self) -> str:
        """The operator whose run has the change now."""
        return self.taken_by.operator if self.taken_by else self.operator


class Journal(Said):
    """The host's lock and its changes, newest first (at most 20)."""

    lock_held: bool
    lock_holder: str | None
    changes: tuple[ChangeSummary, ...]
    broken: tuple[str, ...]


class HubFile(Frozen):
    """A file of a repository: bytes, the sha256 of one in LFS, else git's sha1 as `blob`."""

    name: str
    size: int
    blob: str | None
    sha256: str | None


class HubModel(Frozen):
    """A repository at a commit."""

    commit: str
    files: tuple[HubFile, ...]
    took_s: float


What = Literal[
    "changes", "blobs", "programs", "displaced", "backups", "copies", "images", "evidence"
]


class Kept(Frozen):
    """One kind: how many there are and their bytes; `unreadable` says why that is not known."""

    what: What
    count: int
    bytes: int
    unreadable: str | None


class Growth(Frozen):
    """All kinds, in the order in which they are told."""

    rows: tuple[Kept, ...]


# What a machine says of its GPUs, links, disks and kernel: the section `health` of a snapshot.
#
# Temperatures are °C, powers W, clocks MHz. None: this card or this driver does not report it.


class Unknown(Frozen):
    """A part that the host could not report, with the reason."""

    unreadable: str


class GpuHealth(Frozen):
    """A GPU as `nvidia-smi -q -x` tells it (node/gpus.py has the elements' names).

    `ecc_now` and `ecc_ever` are uncorrected errors since the driver's load and of its whole life;
    `margin_c` is what is left to the limit, `slow_margin_c` where it slows down; `reasons` hold the
    clock down now; `usual_limit_w` is the card's own limit, `power_limit_w` the one that is set.
    """

    bus_id: str
    name: str | None = None
    persistence: bool | None = None
    display: bool | None = None
    recovery: str | None = None
    ecc_now: int | None = None
    ecc_ever: int | None = None
    sram_over: bool | None = None
    remapped: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    reasons: tuple[str, ...] = ()
    temp_c: float | None = None
    slow_c: float | None = None
    margin_c: float | None = None
    slow_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    usual_limit_w: float | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    busy_percent: int | None = None
    link_gen: int | None = None
    max_link_gen: int | None = None
    replays: int | None = None


class DriverHealth(Frozen):
    """The loaded module's version (None: none), the libraries' on disk, the CDI specs' by file."""

    module: str | None = None
    libraries: tuple[str, ...] = ()
    cdi: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class KernelLine(Frozen):
    """A line of the kernel. `number` is an Xid's, `boot` its boot's boot_id (None: unknown)."""

    kind: Literal[
        "xid", "gpu-lost", "panic", "oops", "lockup", "hung", "mce", "edac", "aer", "nvme",
        "disk", "filesystem", "nic",
    ]  # fmt: skip
    text: str
    device: str | None = None
    number: int | None = None
    boot: str | None = None
    unix_s: float | None = None


class PciDevice(Frozen):
    """A PCIe link: GT/s and lanes as they are, as the card can, as the port before it can.

    `errors` are the totals of AER since the boot, by fatal, nonfatal, correctable.
    """

    slot: str
    kind: Literal["gpu", "nic", "nvme"]
    driver: str
    speed: float | None = None
    width: int | None = None
    card_speed: float | None = None
    card_width: int | None = None
    port_speed: float | None = None
    port_width: int | None = None
    errors: dict[str, int] = Field(default_factory=dict)


class Counters(Frozen):
    """What error counters grew by in `seconds`, by `DEVICE/PORT NAME` or `LINK NAME`."""

    seconds: float = 0.0
    grew: dict[str, int] = Field(default_factory=dict)


class Smart(Frozen):
    """An NVMe disk's SMART log page, and the tool that read it."""

    source: str
    warning: int | None = None
    media_errors: int | None = None
    used_percent: int | None = None
    spare: int | None = None
    spare_least: int | None = None


class NvmeDisk(Frozen):
    """An NVMe controller; `smart` None: the host has no tool that reads it."""

    name: str
    model: str | None = None
    state: str | None = None
    smart: Smart | Unknown | None = None


class Stuck(Frozen):
    """A process that stayed in uninterruptible sleep while the snapshot was taken."""

    pid: int
    name: str


class Health(Frozen):
    """All parts. `kernel` has the journal's lines, too; `journal` says why not. `fixed` are the
    disks that nobody unplugs, `read_only` mount points whose filesystem turned read-only by itself,
    `addresses` the files that name an IPv4 address, by address.
    """

    gpus: tuple[GpuHealth, ...] | Unknown = ()
    driver: DriverHealth | Unknown = DriverHealth()
    kernel: tuple[KernelLine, ...] | Unknown = ()
    journal: Unknown | None = None
    pci: tuple[PciDevice, ...] | Unknown = ()
    counters: Counters | Unknown = Counters()
    disks: tuple[NvmeDisk, ...] | Unknown = ()
    read_only: tuple[str, ...] | Unknown = ()
    fixed: tuple[str, ...] | Unknown = ()
    addresses: dict[str, tuple[str, ...]] | Unknown = Field(default_factory=dict)
    stuck: tuple[Stuck, ...] = ()


# The machine below the engine: who it is, its GPUs, memory, disks and processes.
#
# Sections of the snapshot (schema/snapshot.py, which says what its units are).


class Identity(Frozen):
    """Who the host is and which boot this is. `cmdline`: the kernel's; empty: not readable."""

    hostname: str
    machine_id: str
    boot_id: str
    arch: str
    os_id: str
    os_version: str
    kernel: str
    uptime_s: float
    clock_unix_s: float
    effective_uid: int
    python: str
    cmdline: str = ""


class Gpu(Frozen):
    """One GPU of `nvidia-smi --query-gpu`; None where the driver says `[N/A]` (GB10: memory)."""

    index: int
    uuid: str
    name: str
    driver_version: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    memory_free_mib: int | None
    compute_cap: str | None
    pci_bus_id: str | None

    @property
    def unified_memory(self) -> bool:
        """True for GB10, whose memory is the system's (marimo#6822, nvitop#208)."""
        return engine.is_unified(self.name)


class ComputeProcess(Frozen):
    """One row of `nvidia-smi --query-compute-apps`; start_ticks is None for a pid not ours."""

    gpu_uuid: str
    pid: int
    process_name: str
    used_mib: int | None
    start_ticks: int | None
    container_id: str | None


class Gpus(Frozen):
    """The driver and its GPUs. `stand_in` is true on a rehearsal host without a real driver."""

    stand_in: bool
    driver_version: str
    gpus: tuple[Gpu, ...]
    processes: tuple[ComputeProcess, ...]


class Memory(Frozen):
    """/proc/meminfo, in bytes.

    `unaccounted` is in no category there, as the memory of a GB10's GPU is. `start_took` is what
    the engine's last start took before vLLM looked; None where none was measured.
    """

    total: int
    free: int
    available: int
    shmem: int
    page_cache: int
    dirty: int
    swap_total: int
    swap_free: int
    unaccounted: int = 0
    start_took: int | None = None


class ShmSegment(Frozen):
    """A file in /dev/shm and the pids that map or open it."""

    name: str
    size: int
    uid: int
    inode: int
    mtime: float
    mappers: tuple[int, ...]

    @property
    def is_engines(self) -> bool:
        """Whether vLLM makes segments of such a name."""
        return engine.is_engines(self.name)


class EngineProcess(Frozen):
    """A process that looks like a vLLM engine (title, executable or command line).

    `environ` holds only names that rigbook watches; values of secrets never leave the host.
    `unit` is the systemd unit of its cgroup, None in a container or a login's session.
    `parent_comm` is the name of its parent (a shell's, for a launch by hand that still runs).
    """

    pid: int
    ppid: int
    start_ticks: int
    uid: int
    comm: str
    argv: tuple[str, ...]
    exe: str | None
    cgroup: str
    unit: str | None
    container_id: str | None
    environ: dict[str, str]
    rss: int
    parent_comm: str | None = None


class Disk(Frozen):
    """Room on the filesystem of `path` (its nearest existing parent)."""

    path: str
    mount: str
    total: int
    free: int
    inodes_free: int
    read_only: bool


# Links, the peers on them, ports and connections.
#
# Sections of the snapshot (schema/snapshot.py, which says what its units are).


class Link(Frozen):
    """A network link. `slaves` are the members of a bond, with their own MTU in `links`."""

    name: str
    kind: str | None
    state: str
    carrier: bool
    mtu: int
    mac: str | None
    addresses: tuple[str, ...]
    speed_mbit: int | None
    master: str | None
    slaves: tuple[str, ...]
    bond_slaves_down: tuple[str, ...]


class Gid(Frozen):
    """A filled row of a port's GID table. `kind` is `RoCE v2` or `IB/RoCE v1`."""

    index: int
    gid: str
    kind: str | None
    netdev: str | None

    @property
    def ipv4(self) -> IPv4Address | None:
        """The address of a RoCE v2 GID that stands for one (::ffff:10.0.0.1), else None."""
        mapped = IPv6Address(self.gid).ipv4_mapped
        return mapped if self.kind == "RoCE v2" else None


class RdmaPort(Frozen):
    """A port of an RDMA device (HCA), as /sys/class/infiniband shows it.

    `state` is ACTIVE, DOWN …; `link` is the cable's: LinkUp, Polling, Disabled …; the rate is in
    Gbit/s. `board` is the card's model as its maker numbers it.
    """

    device: str
    port: int
    netdev: str | None
    state: str | None
    link: str | None
    rate_gbit: float | None
    link_layer: str | None
    gids: tuple[Gid, ...]
    board: str | None = None
    firmware: str | None = None

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """The addresses that RoCE v2 can use here; on a slave's port the bond's."""
        return tuple(gid.ipv4 for gid in self.gids if gid.ipv4 is not None)


class PeerProbe(Frozen):
    """How this host reaches one peer's fabric address.

    `full_size_ping` is None when it was not tried (no route, no ping program).
    """

    address: str
    route_device: str | None
    route_source: str | None
    full_size_ping: bool | None
    detail: str


class ReachAsk(Frozen):
    """A TCP port of a peer; `device` is the only one that the connection may leave by."""

    address: str
    port: int
    device: str | None = None


class Reach(ReachAsk):
    """What a connection to a peer's port met.

    `open`: somebody listens; `refused`: the peer's kernel says that nobody does, so the way is
    open (or a firewall answers in its name); `filtered`: no answer; `no-way`: no route, no device.
    """

    state: Literal["open", "refused", "filtered", "no-way"]
    detail: str


class Network(Frozen):
    """Links, RDMA ports and the probes to the peers that the request named."""

    links: tuple[Link, ...]
    rdma: tuple[RdmaPort, ...]
    peers: tuple[PeerProbe, ...]
    reach: tuple[Reach, ...] = ()


class Port(Frozen):
    """A listening TCP port and who holds it (pid None: not visible), a process by its start, too:
    a pid is given anew.
    """

    address: str
    port: int
    pid: int | None
    process: str | None
    unit: str | None
    container_id: str | None
    start_ticks: int | None = None


class Connection(Frozen):
    """An ESTABLISHED TCP connection with one of the addresses that the request named."""

    local_address: str
    local_port: int
    peer_address: str
    peer_port: int
    pid: int | None
    process: str | None
    container_id: str | None


# Units of systemd, and what is wrong with them.
#
# Sections of the snapshot (schema/snapshot.py, which says what its units are).


class GhostFile(Frozen):
    """A file that a unit's `step` (ExecStart, ExecStartPre …) names and that is not there.

    `container` is the container inside which it is missing (`docker exec`), None for the host.
    """

    step: str
    path: str
    container: str | None = None


class Override(Frozen):
    """What a drop-in does to ExecStart: its lines, and whether an empty one resets it first."""

    path: str
    exec_start: tuple[str, ...]
    resets: bool


class Unit(Frozen):
    """A systemd unit as systemd sees it now (effective values, drop-ins applied).

    Beyond the units that the request named, the snapshot holds those whose unit files run
    docker or vLLM. `exit_kind` is how the main process ended (exited, killed, dumped).
    `restart_times` are the restarts that systemd scheduled by itself, oldest first, at most 20
    of the last day; `errors` the lines of the unit's log that name one, secrets masked. Both
    are read for a unit in trouble only. `triggered_by` are the timers, sockets and paths that
    start it. `script_words` are names and paths in the lines of its scripts that start an engine or
    a container.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    enabled: str
    fragment: str | None
    drop_ins: tuple[str, ...]
    exec_start: tuple[str, ...]
    exec_start_exists: bool | None
    restart: str
    restarts: int
    result: str
    exit_status: int
    main_pid: int | None
    since_unix_s: float | None
    needs_reload: bool
    last_log_line: str | None
    exit_kind: str = ""
    exec_start_pre: tuple[str, ...] = ()
    ghosts: tuple[GhostFile, ...] = ()
    overrides: tuple[Override, ...] = ()
    restart_times: tuple[float, ...] = ()
    errors: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()
    script_words: tuple[str, ...] = ()


class Watched(Frozen):
    """What the watch of a host last saw of its engine. Times are Unix seconds.

    `silent`: why it counts as silent, in words, None: it does not; `evidence` says where the bundle
    lies. `restarts` are those for silence, `stood_down_unix_s` is since when there are no more.
    """

    status: str
    looked_unix_s: float
    silent: str | None = None
    evidence: str | None = None
    restarts: tuple[float, ...] = ()
    stood_down_unix_s: float | None = None


class CronLine(Frozen):
    """A line of a crontab that starts an engine or a container, by itself or by a script.

    `line` counts from 1. `at_boot`: @reboot. `text` has the values of secrets masked; `words` are
    the names and paths in what it starts.
    """

    file: str
    line: int
    user: str
    at_boot: bool
    text: str
    words: tuple[str, ...]


class Unreadable(Frozen):
    """A section that the host could not report, with the reason."""

    unreadable: PrintableLine


class NodeSnapshot(Frozen):
    """Everything that the gates, the doctor and the diff read about one host."""

    format: Literal[1]
    took_s: float
    identity: Identity
    gpus: Gpus | Unreadable
    memory: Memory | Unreadable
    shm: tuple[ShmSegment, ...] | Unreadable
    engine_processes: tuple[EngineProcess, ...] | Unreadable
    network: Network | Unreadable
    ports: tuple[Port, ...] | Unreadable
    connections: tuple[Connection, ...] | Unreadable = ()
    docker: Docker | Unreadable
    units: tuple[Unit, ...] | Unreadable
    cron: tuple[CronLine, ...] | Unreadable = ()
    files: tuple[FileState, ...] | Unreadable
    weights: tuple[Weights, ...] | Unreadable
    image_files: tuple[ImageFile, ...] | Unreadable = ()
    venvs: tuple[Venv, ...] | Unreadable = ()
    disks: tuple[Disk, ...] | Unreadable
    sysctls: dict[str, str] | Unreadable
    journal: Journal | Unreadable
    watch: Watched | Unreadable | None = None
    health: Health | Unreadable = Health()
    node_version: str | None

    @property
    def supervisors(self) -> tuple[tuple[Container, ...], tuple[Unit, ...]]:
        """The containers and units that may keep a process alive, as far as they could be read:
        for a remedy, not for a judgement.
        """
        return (
            () if isinstance(self.docker, Unreadable) else self.docker.containers,
            () if isinstance(self.units, Unreadable) else self.units,
        )


class SnapshotRequest(Frozen):
    """What a caller wants looked at beyond the host's general state; all may be empty."""

    files: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    image_files: tuple[ImageFileProbe, ...] = ()
    venvs: tuple[VenvProbe, ...] = ()
    weights: tuple[str, ...] = ()
    deep: bool = False
    fabric_device: str | None = None
    fabric_mtu: int | None = None
    peers: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    reach: tuple[ReachAsk, ...] = ()
    disks: tuple[str, ...] = ()
    sysctls: tuple[str, ...] = ()
