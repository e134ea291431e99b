"""Images that lost their tag to another one, kept under a name of ours (node/image/tag_step.py)."""

from __future__ import annotations

import json
import os
from functools import partial
from urllib.parse import quote

from node.core.errors import NodeError
from node.docker import api, containers
from node.growth import changes
from node.growth.item import Item
from node.image import tag_step

REMOVE_S = 60.0


def images() -> list[Item]:
    """Gives the kept images, those of the newest changes first; none without docker."""
    if not os.path.exists(api.SOCKET):
        return []
    known = [(row, json.dumps(row["steps"])) for row in changes.known()]
    found: list[tuple[int, Item]] = []
    wanted = quote(json.dumps({"reference": [tag_step.KEPT]}))
    for row in api.get(f"/images/json?filters={wanted}"):
        tags = row.get("RepoTags") or []
        for name in (tag for tag in tags if tag.startswith(f"{tag_step.KEPT}:")):
            naming = [n for n, (_, text) in enumerate(known) if row["Id"] in text]
            open_ = [known[n][0] for n in naming if known[n][0]["status"] in changes.UNSETTLED]
            needed = f"change {open_[0]['id']} is {open_[0]['status']}" if open_ else ""
            size = int(row.get("Size", 0)) if len(tags) == 1 else 0
            item = Item(name, size, partial(_remove, name), needed)
            found.append((naming[0] if naming else len(known), item))
    return [item for _, item in sorted(found, key=lambda row: row[0])]


def _remove(name: str) -> None:
    """Take the name away; docker removes the image when it was the last one."""
    status, said = containers.call("DELETE", f"/images/{quote(name, safe=':')}", REMOVE_S)
    if status not in (200, 404):
        raise NodeError(f"docker rmi {name}: {status} {said}", "image_tag")
