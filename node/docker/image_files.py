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

from node.core.errors import Json
from node.docker import filesystem

MAX_BYTES = 8 * 1024 * 1024


def matches(layers: list[str], pattern: str) -> Iterator[str]:
    """Gives the paths on this host of the files that a glob pattern finds inside the image.

    One that a layer above hides does not count, nor one behind a link: it could lead out of the
    image, into this host.
    """
    for layer in layers:
        for path in sorted(glob.glob(glob.escape(layer) + pattern)):
            entry = filesystem.layered(layers, path[len(layer) :])
            if entry is None or not stat.S_ISREG(entry.st_mode):
                continue
            if os.path.samestat(entry, os.lstat(path)):
                yield path


def _one(layers: list[str], probe: Json) -> Json:
    """Gives the files of one probe: path inside the image, sha256, times the text occurs."""
    rows = []
    for path in matches(layers, probe["path"]):
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
    found = {image: filesystem.layers(image) for image in {probe["image"] for probe in probes}}
    return [_one(found[probe["image"]], probe) for probe in probes]
