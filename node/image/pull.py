"""An image by docker pull: what docker asks the endpoint for comes from the giving node.

docker takes what it lacks, three blobs at a time, checks each by its digest and goes on behind the
last byte that it has; the image keeps the digest that it has at the giver.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from typing import Any
from urllib.parse import quote

from node.core.errors import Json, NodeError
from node.docker import api
from node.docker.http import connect
from node.image import endpoint
from node.image import load as image_load
from node.rules.oci_layout import digest_of
from node.transfer import client
from node.transfer import spool as spooling

ATTEMPTS = 3


class _Enough(Exception):
    """The caller has the part that it asked for."""


class ImagePull:
    """One image: brought and looked at; never tagged."""

    def __init__(self, body: Json, peer: client.Peer, listing: Json) -> None:
        """`listing`: what the giver said it has. Raises NodeError for another image than wanted."""
        self._want, self._deadline_s, self._place = body["want"], body["deadline_s"], body["from"]
        self._key, self._peer = body["key"], peer
        documents, self._blobs = self._offered(listing)
        self._config = documents[-1]
        self.digest = digest_of(documents[0])
        content = {digest_of(raw): endpoint.document(raw) for raw in documents}
        content |= {digest: endpoint.blob(size, item) for item, digest, size in self._blobs}
        self._endpoint = endpoint.Endpoint(content, self._fetch)
        self._progress: spooling.Progress | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._served = 0
        self._last = time.monotonic()
        self.wire_bytes = self.damaged = 0
        self.figures: Json = {"layers": 0, "bytes": 0, "resumed_bytes": 0}

    def _offered(self, listing: Json) -> tuple[list[bytes], list[tuple[int, str, int]]]:
        """Gives the documents, and item, digest and length of each layer."""
        if "config" in listing:
            # docker's own store has no manifest: one is made, of layers as their diff ids name them
            config = base64.b64decode(str(listing["config"]))
            sizes = [int(self._peer.ask({"size": n})["size"])
                     for n in range(len(self._want["layers"]))]  # fmt: skip
            rows = list(zip(self._want["layers"], sizes, strict=True))
            documents = [endpoint.manifest_of(config, rows), config]
            found = digest_of(config)
        else:
            documents = [base64.b64decode(str(row)) for row in listing["documents"]]
            rows = [(str(digest), int(size)) for digest, size in listing["blobs"]]
            found = digest_of(documents[0])
        if found != self._want["id"]:
            raise NodeError(
                "the giving node has another image by now", "not_the_same", "run it again"
            )
        said: Any = json.loads(documents[-1])
        if said.get("rootfs", {}).get("diff_ids") != self._want["layers"]:
            raise NodeError("the image's config names other layers", "not_the_same")
        first = {
            digest: (item, digest, size) for item, (digest, size) in reversed([*enumerate(rows)])
        }
        return documents, sorted(first.values())

    def own_id(self, containerd: bool) -> str:
        """Gives the id that the image has in a store of this kind."""
        return self.digest if containerd else digest_of(self._config)

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def bring(self, root: str, containerd: bool) -> str:
        """Has docker pull the image; gives its id here. `root`: where the store lies.

        Raises NodeError.
        """
        total = sum(size for _, _, size in self._blobs)
        spooling.require_room([(root, total)], docker=root)
        self._progress = spooling.Progress("image", total)
        started = time.monotonic()
        try:
            with self._endpoint:
                self._pull_with_retries()
        finally:
            self._over.set()
        wanted = {"id": self.own_id(containerd), "layers": self._want["layers"]}
        if not image_load.is_complete(wanted):
            raise NodeError("docker pull ended well and the image is not what it was to be",
                            "image_load", "docker images --no-trunc; run it again")  # fmt: skip
        asked = [size for _, digest, size in self._blobs if digest in self._endpoint.asked]
        self.figures.update(
            layers=len(asked), bytes=sum(asked), resumed_bytes=max(0, sum(asked) - self._served),
            wire_s=round(self._last - started, 2) if asked else 0.0,
            load_s=round(time.monotonic() - started, 2),
        )  # fmt: skip
        return str(wanted["id"])

    def _pull_with_retries(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            self._endpoint.error = None
            try:
                self._pull()
                return
            except NodeError as error:
                if self._endpoint.error is not None:
                    raise self._endpoint.error from None
                last = error.code != "image_load" or "no space left" in str(error)
                if last or attempt == ATTEMPTS or not image_load.is_docker_back(self._look):
                    raise

    def _look(self) -> None:
        self._peer.stop_if_gone()
        # docker may unpack for minutes: the giver is told that somebody is there
        self._peer.here()
        if self._endpoint.error is not None:
            raise self._endpoint.error

    def _pull(self) -> None:
        path = f"/images/create?fromImage={quote(self._endpoint.name, safe='')}&tag={self.digest}"
        connection = None
        try:
            connection = connect(api.SOCKET, self._deadline_s, self._look)
            headers = {"X-Registry-Auth": self._endpoint.header, "Content-Length": "0"}
            connection.request("POST", path, headers=headers)
            last = image_load.answer(connection, self._told, "pull")
        except TimeoutError:
            raise NodeError(
                f"docker pull was not done in {self._deadline_s:g} s", "image_load"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise NodeError(f"docker ended while it pulled: {error}", "image_load",
                            "systemctl status docker; then run it again") from None  # fmt: skip
        finally:
            if connection is not None:
                connection.close()
        if not last.startswith("Status: "):
            raise NodeError(
                f"docker ended in the middle of the pull ({last.strip()[:80] or 'no word'})",
                "image_load", "systemctl status docker; then run it again",
            )  # fmt: skip

    def _told(self, row: Json) -> None:
        """Takes a line of docker's about a layer: one that it has need not come."""
        said, short = str(row.get("status", "")), str(row.get("id", ""))
        for _, digest, size in self._blobs:
            if said == "Already exists" and digest[7:19] == short and self._progress:
                self._progress.kept += size
                self._progress.add(size)

    def _fetch(self, item: int, first: int, end: int, write: endpoint.Write) -> None:
        """Writes a part of a layer's blob as it comes, over a line of its own."""
        size = next(size for number, _, size in self._blobs if number == item)
        left = end - first
        peer = client.Peer(self._place, self._key, self._gone)

        def on(block: memoryview) -> None:
            nonlocal left
            part = block[:left]
            write(part)
            left -= len(part)
            self._passed(len(part))
            if not left and end < size:
                raise _Enough

        try:
            client.pass_on(peer, item, on, (first, size))
        except _Enough:
            pass
        finally:
            peer.hang_up()
            with self._lock:
                self.wire_bytes += peer.wire_bytes
                self.damaged += peer.damaged

    def _gone(self) -> str | None:
        if self._over.is_set():
            return "docker needs no more of it"
        try:
            self._peer.stop_if_gone()
        except NodeError as error:
            return str(error)
        return None

    def _passed(self, count: int) -> None:
        with self._lock:
            self._served += count
            self._last = time.monotonic()
            if self._progress:
                self._progress.add(count)
                if self._progress.done >= self._progress.total:
                    self._progress.at("docker pull")
