"""Where something comes from or goes: a repository on the hub, the place of a backup's copy."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from schema.core.strings import absolute_path, host_name

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][\w./-]*)?")
_SFTP = re.compile(
    r"sftp://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[A-Za-z0-9._-]+)+"
)
_RECIPIENT = re.compile(r"age1[02-9ac-hj-np-z]{58}")


def _as_repo(value: str) -> str:
    """A repository on the hub, with or without a revision."""
    if not _REPO.fullmatch(value) or ".." in value:
        raise ValueError("is not a repository; allowed: ORG/NAME or ORG/NAME@REVISION")
    return value


def kind_of(place: str) -> Literal["folder", "node", "away"]:
    """What a copy's place is: a folder on the node, a node, or out of the rig."""
    if place.startswith("/"):
        return "folder"
    return "away" if place.startswith(("operator:", "sftp:")) else "node"


def _as_place(value: str) -> str:
    """Where a copy lies."""
    if kind_of(value) == "away":
        if value.startswith("operator:"):
            absolute_path(value.removeprefix("operator:"))
        elif not _SFTP.fullmatch(value) or ".." in value:
            raise ValueError("is no such place; allowed: sftp://[USER@]HOST[:PORT]/PATH")
        return value
    return absolute_path(value) if kind_of(value) == "folder" else host_name(value)


def _as_away(value: str) -> str:
    """A place outside the rig."""
    if kind_of(value) != "away":
        raise ValueError("is no place outside the rig; allowed: operator:FOLDER or sftp://…")
    return _as_place(value)


def _as_recipient(value: str) -> str:
    """Whose identity opens what is encrypted."""
    if not _RECIPIENT.fullmatch(value):
        raise ValueError("is no recipient of age; allowed: age1 and 58 letters or digits")
    return value


Recipient = Annotated[str, AfterValidator(_as_recipient)]
AwayPlace = Annotated[str, AfterValidator(_as_away)]
CopyPlace = Annotated[str, AfterValidator(_as_place)]
HubRepo = Annotated[str, AfterValidator(_as_repo)]
