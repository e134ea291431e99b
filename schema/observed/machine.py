"""The machine below the engine: who it is, its GPUs, memory, disks and processes.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from node.rules import memory_need, shm_names
from schema.core.base import Frozen


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


class Disk(Frozen):
    """Room on the filesystem of `path` (its nearest existing parent)."""

    path: str
    mount: str
    total: int
    free: int
    inodes_free: int
    read_only: bool
