"""What node tells of the backups on a host, typed."""

from __future__ import annotations

from schema.core.base import Id, Said


class Versions(Said):
    """Of what a tree holds: None where it does not have it. `cuda` is torch's variant or "cpu"."""

    vllm: str | None
    torch: str | None
    cuda: str | None

    @property
    def text(self) -> str:
        """In words, such as `vLLM 0.27.0, torch 2.8.0, cuda 12.8`."""
        named = (("vLLM", self.vllm), ("torch", self.torch), ("cuda", self.cuda))
        return ", ".join(f"{name} {value}" for name, value in named if value) or "no vLLM"


class CopyRow(Said):
    """A copy of a backup: its folder on the host, and when it was last read back there."""

    place: str
    unix_s: float


class BackupRow(Said):
    """One backup, as `tree list` tells it. What stands behind `usable` is None for one whose
    manifest cannot be read; `problem` says why. Sizes are bytes, ages seconds."""

    id: Id
    usable: bool
    problem: str | None
    verified_unix_s: float | None
    tree: str | None = None
    real: str | None = None
    created_unix_s: float | None = None
    age_s: int | None = None
    bytes: int | None = None
    apparent_bytes: int | None = None
    members: int | None = None
    versions: Versions | None = None
    python: str | None = None
    host: str | None = None
    copies: tuple[CopyRow, ...] = ()


class DisplacedRow(Said):
    """A folder in which a restore keeps what it displaced."""

    path: str
    change: Id
    status: str


class Backups(Said):
    """What `tree list` tells: the backups newest first; `working` says how far work on them is."""

    backups: tuple[BackupRow, ...]
    partial: tuple[str, ...]
    working: tuple[str, ...]
    displaced: tuple[DisplacedRow, ...]


class BackupPlan(Said):
    """What a backup would do: with `stored` False, `backup` is the verified one that holds it."""

    backup: Id | None
    stored: bool
    tree: str
    members: int
    apparent_bytes: int
    shares: str | None
    versions: Versions


class PruneRow(Said):
    """A backup that goes or stays, the bytes that its removal frees, and why."""

    id: Id
    bytes: int
    why: str


class KeptDisplaced(DisplacedRow):
    """A displaced tree that stays, and why."""

    why: str


class GoneDisplaced(DisplacedRow):
    """A displaced tree that goes, and the bytes that this frees."""

    bytes: int


class PrunePlan(Said):
    """What a prune would do."""

    removed: tuple[PruneRow, ...]
    kept: tuple[PruneRow, ...]
    swept: tuple[str, ...]
    displaced_removed: tuple[GoneDisplaced, ...]
    displaced_kept: tuple[KeptDisplaced, ...]
    freed_bytes: int
    dry: bool


class CopyOf(Said):
    """What a copy of a backup says of it, where it was seen: None and 0 where it was not, or where
    its manifest cannot be read."""

    backup: Id
    place: str
    tree: str | None
    bytes: int
    created_unix_s: float | None = None


class NotedCopy(CopyOf):
    """Where a node noted a copy of a backup of its own, which may be gone from it. `is_here`: on a
    disk that is mounted there now; only there it was seen."""

    unix_s: float
    is_here: bool


class OtherRow(CopyOf):
    """A copy of the backup of another host, `host`, that a node keeps; `problem` says why it cannot
    be used."""

    host: str
    problem: str | None


class Copies(Said):
    """What `tree copies` tells: the host's own name, where copies of its backups were noted, and
    what it keeps for others."""

    host: str
    noted: tuple[NotedCopy, ...]
    others: tuple[OtherRow, ...]
