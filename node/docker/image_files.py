"""Files inside an image, read where its layers lie on disk: no container is made for it.

Known for overlay2 and for the containerd store with overlayfs, whose layers are folders. Where they
are not, a running container of the image is looked into, through /proc/PID/root.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterator
from urllib.parse import quote

from node.core.errors import CannotRead, Json
from node.docker import api, layer_folders

MAX_BYTES = 8 * 1024 * 1024


def layers(image: str) -> list[str]:
    """Gives the folders of an image's layers, the topmost first; of a venv its folder.

    Raises CannotRead.
    """
    if image.startswith("/"):
        if not os.path.isdir(image):
            raise CannotRead(f"no folder {image} here")
        return [image]
    row = api.get(f"/images/{quote(image, safe='/:@')}/json", absent_ok=True)
    if row is None:
        raise CannotRead(f"no image {image} here")
    return layer_folders.of_image(row) or [_running_root(str(row["Id"]), image)]


def _running_root(image_id: str, image: str) -> str:
    """Gives the root folder of a running container of the image. Raises CannotRead."""
    for row in api.get("/containers/json"):
        if row.get("ImageID") == image_id:
            pid = api.get(f"/containers/{row['Id']}/json")["State"]["Pid"]
            return f"/proc/{pid}/root"
    raise CannotRead(f"{image}: its store keeps layers packed, and no container of it runs")


def _hidden(layer: str, name: str) -> bool:
    """Gives True when the layer deletes `name` or a folder above it (overlay's 0/0 device)."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        try:
            found = os.lstat(os.path.join(layer, *parts[:end]))
        except OSError:
            return False
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            return True
    return False


def _through_link(layer: str, name: str) -> bool:
    """Gives True when `name` or a folder above it is a symbolic link in the layer."""
    parts = name.split("/")
    return any(
        os.path.islink(os.path.join(layer, *parts[:end])) for end in range(1, len(parts) + 1)
    )


def _matches(layers: list[str], pattern: str) -> Iterator[str]:
    """Gives the paths on this host of the files that a glob pattern finds inside the image."""
    seen: dict[str, None] = {}
    for depth, layer in enumerate(layers):
        for path in sorted(glob.glob(glob.escape(layer) + pattern)):
            name = os.path.relpath(path, layer)
            if name in seen or any(_hidden(upper, name) for upper in layers[:depth]):
                continue
            seen[name] = None
            # a link could lead out of the image, into this host
            if not _through_link(layer, name) and os.path.isfile(path):
                yield path


def _one(layers: list[str], probe: Json) -> Json:
    """Gives the files of one probe: path inside the image, sha256, times the text occurs."""
    rows = []
    for path in _matches(layers, probe["path"]):
        with open(path, "rb") as handle:
            raw = handle.read(MAX_BYTES)
        for layer in layers:
            if path.startswith(layer + "/"):
                path = path[len(layer) :]
                break
        rows.append(
            {
                "path": path,
                "sha256": hashlib.sha256(raw).hexdigest(),
                "count": raw.count(probe["contains"].encode()),
            }
        )
    return {**probe, "matches": rows}


def read(probes: list[Json]) -> list[Json]:
    """Gives what each probe (`image`, `path` as a glob, `contains`) finds. Raises CannotRead."""
    found = {image: layers(image) for image in {probe["image"] for probe in probes}}
    return [_one(found[probe["image"]], probe) for probe in probes]


def matches(layers: list[str], pattern: str) -> Iterator[str]:
    """Gives the paths on this host of the files that a glob pattern finds inside the image."""
    return _matches(layers, pattern)
