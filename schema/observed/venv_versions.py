"""What node tells of the versions of a venv's engine on a host, typed."""

from __future__ import annotations

from schema.core.base import Frozen


class VenvPlace(Frozen):
    """Where one version lies (`found`) or would lie (`folder`); sizes in bytes.

    `link` None: the venv's path is a folder itself. `partial`: installations that a kill cut off,
    or that are under way; `working` says how far those are.
    """

    venv: str
    real: str
    link: str | None
    installed: tuple[str, ...]
    found: str | None
    folder: str
    partial: tuple[str, ...]
    free_bytes: int
    working: tuple[str, ...] = ()


class VersionRow(Frozen):
    """A version beside the active one that goes or stays, the bytes of its folder, and why."""

    path: str
    version: str
    bytes: int
    why: str


class VenvPrunePlan(Frozen):
    """What `venv prune` would do."""

    removed: tuple[VersionRow, ...]
    kept: tuple[VersionRow, ...]
    freed_bytes: int
    dry: bool
