"""What one host is, as `node snapshot` reports it: the typed form of that one JSON document.

A section that could not be read is an `Unreadable` with the reason: unknown is not absent.
Sizes are bytes unless the name says otherwise; times are Unix seconds; a process is identified
by pid + start_ticks (field 22 of /proc/PID/stat) + the boot_id of its host.
"""

from __future__ import annotations

from typing import Literal

from node.rules import memory_need, shm_names
from schema.core.base import Frozen


class Unreadable(Frozen):
    """A section that the host could not report, with the reason."""

    unreadable: str


class Identity(Frozen):
    """Who the host is and which boot this is."""

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
        return memory_need.is_unified(self.name)


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
    """/proc/meminfo, in bytes."""

    total: int
    free: int
    available: int
    shmem: int
    page_cache: int
    dirty: int
    swap_total: int
    swap_free: int


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
        return shm_names.is_engines(self.name)


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
    """Links, RDMA devices and the probes to the peers that the request named."""

    links: tuple[Link, ...]
    rdma_devices: tuple[str, ...]
    peers: tuple[PeerProbe, ...]
    reach: tuple[Reach, ...] = ()


class Port(Frozen):
    """A listening TCP port and who holds it (pid None: not visible)."""

    address: str
    port: int
    pid: int | None
    process: str | None
    unit: str | None
    container_id: str | None


class Connection(Frozen):
    """An ESTABLISHED TCP connection with one of the addresses that the request named."""

    local_address: str
    local_port: int
    peer_address: str
    peer_port: int
    pid: int | None
    process: str | None
    container_id: str | None


class Image(Frozen):
    """A container image. `layers` are the RootFS diff ids; `.Id` alone is not comparable."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    layers: tuple[str, ...]
    config_sha256: str
    arch: str
    size: int
    # of an image that rigbook built: the sha256 of what it was made of
    inputs: str = ""


class Mount(Frozen):
    """A bind mount or volume of a container."""

    source: str
    target: str
    read_only: bool


class Container(Frozen):
    """A container with what decides how it runs."""

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


class Docker(Frozen):
    """The engine and, of its images, those that the request named; all containers."""

    version: str
    storage_driver: str
    root: str
    images: tuple[Image, ...]
    containers: tuple[Container, ...]
    # the containerd image store's folder; None where docker keeps images by itself, below `root`
    containerd: str | None = None

    @property
    def store(self) -> str:
        """The image store in words: the graph driver, or containerd with its snapshotter."""
        driver = self.storage_driver
        return driver if self.containerd is None else f"containerd/{driver}"

    @property
    def store_root(self) -> str:
        """The folder whose disk takes images and layers."""
        return self.root if self.containerd is None else self.containerd


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
    are read for a unit in trouble only.
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


class FileState(Frozen):
    """A file that the request named. `content` is given for text up to 64 KiB, else None."""

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
    """

    name: str
    size: int
    magic: str
    sha256: str | None
    header_says: int | None = None
    broken: str | None = None


class Weights(Frozen):
    """A weights folder (or file). `missing_shards` are named by the index and not there."""

    path: str
    exists: bool
    files: tuple[WeightsFile, ...]
    missing_shards: tuple[str, ...]


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


class Disk(Frozen):
    """Room on the filesystem of `path` (its nearest existing parent)."""

    path: str
    mount: str
    total: int
    free: int
    inodes_free: int
    read_only: bool


class ChangeSummary(Frozen):
    """One change of the host's journal. `saved_unix_s` is when its run last wrote there."""

    id: str
    deploy: str
    status: Literal["OPEN", "COMMITTED", "ROLLED_BACK", "INCONSISTENT"]
    opened_unix_s: float
    closed_unix_s: float | None
    operator: str
    boot_id: str
    steps: tuple[str, ...]
    reason: str | None
    saved_unix_s: float | None = None


class Journal(Frozen):
    """The host's lock and its changes, newest first (at most 20)."""

    lock_held: bool
    lock_holder: str | None
    changes: tuple[ChangeSummary, ...]
    broken: tuple[str, ...]


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
    files: tuple[FileState, ...] | Unreadable
    weights: tuple[Weights, ...] | Unreadable
    image_files: tuple[ImageFile, ...] | Unreadable = ()
    venvs: tuple[Venv, ...] | Unreadable = ()
    disks: tuple[Disk, ...] | Unreadable
    sysctls: dict[str, str] | Unreadable
    journal: Journal | Unreadable
    node_version: str | None


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
