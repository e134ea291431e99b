"""Where something comes from or goes: a repository on the hub, the place of a backup's copy."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from schema.core.strings import absolute_path, host_name

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][\w./-]*)?")


def _as_repo(value: str) -> str:
    """A repository on the hub, with or without a revision."""
    if not _REPO.fullmatch(value) or ".." in value:
        raise ValueError("is not a repository; allowed: ORG/NAME or ORG/NAME@REVISION")
    return value


def kind_of(place: str) -> Literal["folder", "node"]:
    """What a copy's place is: a folder on the node, or a node."""
    return "folder" if place.startswith("/") else "node"


def _as_place(value: str) -> str:
    """Where a copy lies."""
    if value.startswith(("operator:", "sftp:")):
        raise ValueError(
            "is outside the rig; allowed: NODE or a folder of the node; restic or rclone takes it "
            "from there: docs/runbooks/backup.md"
        )
    return absolute_path(value) if kind_of(value) == "folder" else host_name(value)


CopyPlace = Annotated[str, AfterValidator(_as_place)]
HubRepo = Annotated[str, AfterValidator(_as_repo)]
