"""The folders in which docker's store keeps the layers of an image or of a container.

docker's own store (overlay2) tells them. With the containerd store docker does not: containerd's
overlayfs snapshotter has them in its index, under an image's chain id or a container's id.
"""

from __future__ import annotations

import os

from node.core.errors import CannotRead, Json
from node.docker import api, boltdb

SNAPSHOTTER = "overlayfs"
# docker's namespace in containerd
NAMESPACE = b"moby/"
_DEEPEST = 1000


def of_image(row: Json) -> list[str]:
    """Gives the folders of an image's layers, the topmost first, from docker's inspection of it.

    Gives none where the store keeps them in another way, or has not unpacked them. Raises
    CannotRead.
    """
    root = _snapshotter(row)
    diff_ids = (row.get("RootFS") or {}).get("Layers")
    if root is None or not diff_ids:
        return _named(row)
    # here, since what it imports would cost every snapshot its time
    from node.docker.overlay2 import chains

    return _in_containerd(root, chains(diff_ids)[-1])


def of_container(row: Json) -> list[str]:
    """Gives the folders of a container's layers, the topmost first; else as `of_image`."""
    root = _snapshotter(row)
    return _named(row) if root is None else _in_containerd(root, str(row["Id"]))


def _named(row: Json) -> list[str]:
    """Gives the folders that docker names."""
    data = (row.get("GraphDriver") or {}).get("Data") or {}
    found = [data.get("UpperDir") or "", *str(data.get("LowerDir") or "").split(":")]
    return [folder for folder in found if folder]


def _snapshotter(row: Json) -> str | None:
    """Gives the folder of the containerd store where its snapshotter has the layers.

    A docker whose inspection does not name the snapshotter names it in /info.
    """
    named = (row.get("GraphDriver") or {}).get("Name")
    if named not in (None, SNAPSHOTTER):
        return None
    info = api.get("/info")
    return api.containerd(info) if SNAPSHOTTER in (named, info.get("Driver")) else None


def _in_containerd(root: str, name: str) -> list[str]:
    home = os.path.join(root, f"io.containerd.snapshotter.v1.{SNAPSHOTTER}")
    index = boltdb.read(os.path.join(home, "metadata.db")).bucket(b"v1", b"snapshots")
    # a key is NAMESPACE/NUMBER/NAME
    keys = {key.split(b"/", 2)[2]: key for key in index.names() if key.startswith(NAMESPACE)}
    wanted = keys.get(name.encode(), b"")
    found: list[str] = []
    while wanted and len(found) < _DEEPEST:
        snapshot = index.bucket(wanted)
        folder = os.path.join(home, "snapshots", str(_uvarint(snapshot.value(b"id"))), "fs")
        if not os.path.isdir(folder):
            raise CannotRead(f"containerd's index names {folder}, which is not there")
        found.append(folder)
        wanted = snapshot.value(b"parent")
    return found


def _uvarint(raw: bytes) -> int:
    """Gives the number that Go's binary.PutUvarint wrote."""
    return sum((byte & 0x7F) << 7 * n for n, byte in enumerate(raw))
