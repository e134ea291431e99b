"""A host's library folder, as `node library look` and `library check` report it."""

from __future__ import annotations

from schema.core.base import Frozen
from schema.observed.snapshot import Unreadable


class Elf(Frozen):
    """What a shared library says of itself: class, machine, exported names, NEEDED libraries."""

    bits: int
    machine: str
    shared: bool
    soname: str
    exported: tuple[str, ...]
    needed: tuple[str, ...]


class HostElf(Frozen):
    """Class and machine of the host's own programs."""

    bits: int
    machine: str


class LibraryFile(Frozen):
    """One entry of the folder; `broken` says why `elf` is null."""

    path: str
    kind: str
    size: int
    inode: int
    mode: str
    uid: int
    gid: int
    owner: str
    group: str
    sha256: str | None
    elf: Elf | None
    broken: str | None


class Mapper(Frozen):
    """A process that has a library mapped: which bytes, and (bind mount) from which file."""

    pid: int
    start_ticks: int
    uid: int | None
    argv0: str
    container: str | None
    pod: str | None
    path: str
    inode: int
    deleted: bool
    sha256: str | None
    source: str | None


class Plugin(Frozen):
    """A container of a DaemonSet that mounts the library folder from the host."""

    namespace: str
    name: str
    container: str
    image: str
    args: tuple[str, ...]
    mounts: tuple[str, ...]


class PodName(Frozen):
    """A pod of the cluster, and who owns it."""

    namespace: str
    name: str
    phase: str
    owner_kind: str
    owner: str


class Swapped(Frozen):
    """/etc/rigbook/library.json: the file that was swapped and the hashes that are known."""

    rig: str
    node: str
    target: str
    original: str
    ours: str
    guard: bool
    reapply: bool


class LibraryLook(Frozen):
    """The folder, the processes, the plugin; null where the cluster was not asked."""

    folder: str
    host: HostElf
    files: tuple[LibraryFile, ...] | Unreadable
    preload: dict[str, str | Unreadable | None]
    mappers: tuple[Mapper, ...] | Unreadable
    plugins: tuple[Plugin, ...] | Unreadable | None
    pods: dict[str, PodName] | Unreadable | None
    state: Swapped | Unreadable | None


class Candidate(Frozen):
    """A library that is to be put in place: its tables, and whether a process there loads it."""

    sha256: str
    size: int
    elf: Elf | None
    broken: str | None
    missing: tuple[str, ...]
    refused: str | None


class Mapped(Frozen):
    """What a fresh process on the host has mapped; null when it maps no such file."""

    path: str
    inode: int | None
    sha256: str | None
    said: str
