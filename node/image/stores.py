"""This host's image store, and an image as it has it: docker's own (overlay2), or containerd's."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from node.core.errors import CannotRead, Json, NodeError
from node.docker import api, overlay2
from node.image import content
from node.transfer import server


@dataclass(frozen=True)
class Store:
    """This host's image store: its folder, and whether it is containerd's."""

    root: str
    containerd: bool


def find() -> Store:
    """Gives docker's image store. Raises NodeError (`image_store`) for a kind that is not known."""
    try:
        info = api.get("/info")
    except CannotRead as error:
        raise NodeError(str(error), "docker") from None
    root = api.containerd(info)
    if root is not None:
        return Store(root, True)
    driver, root = str(info.get("Driver", "")), str(info.get("DockerRootDir", ""))
    if driver != overlay2.DRIVER or not os.path.isdir(os.path.join(root, "image", overlay2.DRIVER)):
        raise NodeError(f"docker's store here is {driver or 'unknown'}, neither {overlay2.DRIVER}"
                        " nor containerd", "image_store",
                        "docker pull the image on each node")  # fmt: skip
    return Store(root, False)


class Stored(server.Source):
    """An image of docker's own store (overlay2)."""

    def __init__(self, root: str, want: Json) -> None:
        self._want = want
        chains = overlay2.chains(want["layers"])
        self._config = overlay2.raw_config(root, want["id"])
        self._layers = [
            overlay2.Layer(root, chain, layer)
            for chain, layer in zip(chains, want["layers"], strict=True)
        ]

    def listing(self) -> Json:
        """Gives the config as it is stored; what it hashes to is the image's id."""
        return {"config": base64.b64encode(self._config).decode("ascii")}

    def size(self, item: int) -> int:
        """Gives the length of a layer's tar."""
        return self._layers[item].size()

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a layer's tar."""
        return self._layers[item].blocks(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Its diff id is known."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives the layer's diff id."""
        return str(self._want["layers"][item])[7:]


def stored_in(own: Store, want: Json) -> server.Source:
    """Gives the image `want` (its id and its layers) as this host's store has it."""
    kind = content.Content if own.containerd else Stored
    return kind(own.root, want)
