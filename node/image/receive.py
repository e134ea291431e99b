"""The layers of one image on their way: wire to spool in one thread, spool to docker in another.

Docker registers layers while later ones still travel: the lowest by an import, which docker reads
as it comes; the others in groups, each by a docker load of an archive that ends with them. What is
registered, a nameless image keeps until the whole one is there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from node.core.errors import Json, NodeError
from node.docker import overlay2
from node.image import load as image_load
from node.transfer import client
from node.transfer import spool as spooling

SUFFIX = ".layer"
ATTEMPTS = 3
# A docker load costs about a third of a second besides its bytes.
GROUP = 256 << 20


def load_groups(sizes: dict[int, int], from_nothing: bool) -> list[list[int]]:
    """Gives the layers that docker gets together, in order; the lowest one of all by itself."""
    found: list[list[int]] = []
    room = 0
    for item in sorted(sizes):
        if from_nothing and item == 0:
            found.append([item])
            continue
        if room <= 0:
            found.append([])
            room = GROUP
        found[-1].append(item)
        room -= sizes[item]
    return found


def room_needed(sizes: dict[int, int], from_nothing: bool) -> int:
    """Gives the bytes that docker's store needs at most: all layers, and one unpacked archive."""
    loaded = [sum(sizes[item] for item in group) for group in load_groups(sizes, from_nothing)
              if not (from_nothing and group == [0])]  # fmt: skip
    return sum(sizes.values()) + max(loaded, default=0)


def remove_leftovers() -> None:
    """Removes what transfers left: layers in the spool, and the images that kept registered ones.

    For who holds the transfers' lock and has its image whole. Raises CannotRead, OSError.
    """
    spooling.remove_others([SUFFIX], [])
    image_load.remove_partial_images()


class ImageReceiver:
    """One image: brought, registered, looked at; never tagged."""

    def __init__(self, body: Json, peer: client.Peer) -> None:
        self._want, self._deadline_s, self._peer = body["want"], body["deadline_s"], peer
        self._progress: spooling.Progress | None = None
        self._growing = image_load.GrowingLayers(peer.stop_if_gone)
        self._sizes: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        # An image may have a layer twice (the empty one, often): it comes once, as the first
        self._first: dict[int, int] = {}
        self._root = ""
        self.figures: Json = {"layers": 0, "bytes": 0, "resumed_bytes": 0}

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def bring(self, root: str, listing: Json) -> None:
        """Brings what the store lacks and has docker register it. Raises NodeError."""
        self._root = root
        config = self._config(listing)
        diff_ids = self._want["layers"]
        have = overlay2.present(root, diff_ids)
        self._sizes = {n: int(self._peer.ask({"size": n})["size"])
                       for n in range(have, len(diff_ids))}  # fmt: skip
        spooling.remove_others([SUFFIX], [diff_ids[n][7:] + SUFFIX for n in self._sizes])
        self._place(spooling.folder())
        coming = sorted(set(self._first.values()))
        total = sum(self._sizes[n] for n in coming)
        there = sum(_size(self._paths[n]) for n in coming)
        spooling.require_room([
            (root, room_needed(self._sizes, have == 0)),
            (spooling.folder(), max(0, total - there)),
        ], docker=root)  # fmt: skip
        self.figures.update(layers=len(self._sizes), bytes=total, resumed_bytes=there)
        self._progress = spooling.Progress("image", total, there)
        started = time.monotonic()
        wire_s: list[float] = []

        def fetch_all() -> None:
            try:
                for item in coming:
                    self._fetch(item)
                wire_s.append(time.monotonic() - started)
                # docker needs minutes for what is here now; the giver need not wait for it
                self._peer.bye(None)
            except Exception as error:
                self._growing.failed(error)

        thread = threading.Thread(target=fetch_all, daemon=True)
        thread.start()
        for group in load_groups(self._sizes, have == 0):
            self._register(config, group)
        thread.join()
        if not image_load.is_complete(self._want):
            # Every layer is there; what lacks is the image itself, which has no bytes.
            self._register(config, [])
        if not image_load.is_complete(self._want):
            raise NodeError("docker load ended well and the image is not what it was to be",
                            "image_load", "docker images --no-trunc; run it again")  # fmt: skip
        self.figures.update(wire_s=round(wire_s[0], 2) if wire_s else 0.0,
                            load_s=round(time.monotonic() - started, 2))  # fmt: skip

    def _place(self, folder: str) -> None:
        """Gives each missing layer its file in the spool; layers that are the same share one."""
        diff_ids = self._want["layers"]
        seen: dict[str, int] = {}
        for item in sorted(self._sizes):
            self._paths[item] = os.path.join(folder, diff_ids[item][7:] + SUFFIX)
            self._first[item] = seen.setdefault(diff_ids[item], item)

    def _config(self, listing: Json) -> bytes:
        """Gives the image's config out of the giver's listing; it is what its id says."""
        raw = base64.b64decode(str(listing.get("config", "")))
        if "sha256:" + hashlib.sha256(raw).hexdigest() != self._want["id"]:
            raise NodeError(
                "the giving node has another image by now", "not_the_same", "run it again"
            )
        said: Any = json.loads(raw)
        if said.get("rootfs", {}).get("diff_ids") != self._want["layers"]:
            raise NodeError("the image's config names other layers", "not_the_same")
        return raw

    def _fetch(self, item: int) -> None:
        path = self._paths[item]
        size = [_size(path)]

        def grown(count: int) -> None:
            size[0] += count
            self._growing.grew(item, size[0])
            if self._progress:
                self._progress.add(count)

        if size[0]:
            self._growing.grew(item, size[0])
        client.fetch_without_digest(self._peer, item, path, self._sizes[item], grown)
        self._growing.grew(item, size[0])

    def _register(self, config: bytes, group: list[int]) -> None:
        """Has docker register a group of layers, and drops them from the spool."""
        upto = group[-1] + 1 if group else len(self._want["layers"])
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._try(config, group, upto)
                break
            except NodeError as error:
                if error.code != "image_load":
                    raise
                full = "no space left" in str(error)
                if (
                    full
                    or attempt == ATTEMPTS
                    or not image_load.is_docker_back(self._peer.stop_if_gone)
                ):
                    self._damaged(group)
                    raise
        if overlay2.present(self._root, self._want["layers"]) < upto:
            self._damaged(group)
            raise NodeError("docker ended its load well and does not have the layers",
                            "image_load", "run it again")  # fmt: skip
        later = {self._paths[item] for item in self._sizes if item >= upto}
        for path in {self._paths[item] for item in group} - later:
            os.unlink(path)

    def _read(self, item: int) -> Iterator[bytes]:
        return self._growing.read(self._first[item], self._paths[item], self._sizes[item])

    def _try(self, config: bytes, group: list[int], upto: int) -> None:
        diff_ids = self._want["layers"][:upto]
        part = group == [0] or upto < len(self._want["layers"])
        if part and overlay2.present(self._root, diff_ids) == upto:
            return  # an attempt before this one had come so far
        told = (self._deadline_s, self._all_sent, self._told, self._peer.stop_if_gone)
        if group == [0]:
            image_load.import_layer(self._read(0), *told)
            return
        if upto < len(self._want["layers"]):
            config = image_load.part_config(config, diff_ids)
        image_id = "sha256:" + hashlib.sha256(config).hexdigest()
        once = {self._paths[item]: item for item in group}
        chunks = image_load.archive(
            image_id, config, diff_ids,
            {item: self._sizes[item] for item in once.values()}, self._read,
        )  # fmt: skip
        image_load.load(chunks, *told)

    def _damaged(self, group: list[int]) -> None:
        """Drops what docker would not take because it is not what its digest says, and says so."""
        bad = []
        for item in {self._paths[item]: item for item in group}.values():
            digest = hashlib.sha256()
            # One that is still on its way was not what docker complained of.
            whole = client.digest_of(self._paths[item], digest) == self._sizes[item]
            if whole and digest.hexdigest() != self._want["layers"][item][7:]:
                os.unlink(self._paths[item])
                bad.append(self._want["layers"][item][7:19])
        if bad:
            raise NodeError(f"what came of layer {', '.join(bad)} is damaged", "not_the_same",
                            "run it again: it is fetched anew")  # fmt: skip

    def _told(self, row: Json) -> None:
        detail = row.get("progressDetail") or {}
        if detail.get("total") and self._progress:
            self._progress.at(f"docker load {detail['current'] / 1e9:.2f} GB")

    def _all_sent(self) -> None:
        if self._progress and self._progress.done >= self._progress.total:
            self._progress.at("docker load")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
