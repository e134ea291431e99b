"""A container that somebody else made: looked at, found again by a change that knew it before."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from node.core.errors import Json, NodeError
from node.docker import api

_PROJECT, _SERVICE = "com.docker.compose.project", "com.docker.compose.service"


def inspect(name: str) -> Json | None:
    """Gives docker's own words about a container by name or id, None for none. CannotRead."""
    row: Json | None = api.get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return row


def require(name: str) -> Json:
    """Gives the same of a container that must be there. Raises NodeError (`no_container`)."""
    row = inspect(name)
    if row is None:
        raise NodeError(f"there is no container {name}", "no_container")
    return row


def name_of(row: Json) -> str:
    """Gives a container's name without docker's slash."""
    return str(row["Name"]).lstrip("/")


def known_by(row: Json) -> Json:
    """Gives what a step records of a container, for `find`: no value of its environment."""
    labels = row["Config"].get("Labels") or {}
    service = [labels.get(_PROJECT), labels.get(_SERVICE)]
    return {"id": row["Id"], "made": _made(row), "compose": service if all(service) else None}


def find(name: str, known: Json) -> Json | None:
    """Gives the container that a step recorded, also where it was made again as it was; None when
    it is gone. Raises NodeError (`other_container`) for another one of its name, and CannotRead.

    compose gives a container that it makes again the labels of its project and service.
    """
    row = inspect(name)
    if row is None and known["compose"]:
        wanted = [f"{label}={value}" for label, value in
                  zip((_PROJECT, _SERVICE), known["compose"], strict=True)]  # fmt: skip
        filters = quote(json.dumps({"label": wanted}))
        listed = api.get(f"/containers/json?all=1&filters={filters}")
        row = inspect(str(listed[0]["Id"])) if len(listed) == 1 else None
    if row is None or row["Id"] == known["id"] or _made(row) == known["made"]:
        return row
    raise NodeError(
        f"the container {name} is another one now: it was made anew, with another image, command, "
        "environment or mounts",
        "other_container",
        f"docker inspect {name}; bring the former one back, then: rignode undo",
    )


def is_running(row: Json | None) -> bool:
    """Gives True while the container of this look runs."""
    return bool(row and row["State"].get("Running"))


def _made(row: Json) -> str:
    """Gives a hash over how a container was made.

    compose makes the same one again with its variables and mounts in another order.
    """
    config: Json = row["Config"]
    names = sorted(str(item).partition("=")[0] for item in config.get("Env") or [])
    mounts: list[Any] = sorted(
        [str(mount.get("Source", "")), str(mount.get("Destination", "")), bool(mount.get("RW"))]
        for mount in row.get("Mounts") or []
    )
    parts = [row.get("Image"), row.get("Path"), row.get("Args"), config.get("User"), names, mounts]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
