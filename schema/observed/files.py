"""Files, weights, venvs, and the journal of changes; a repository on the hub.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen, Id, Said


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
