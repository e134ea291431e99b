"""The layers of one image on their way: wire to spool in one thread, spool to docker in another.

Docker registers layers while later ones still travel: the lowest by an import, which docker reads
as it comes; the others in groups, each by a docker load of an archive that ends with them. What is
registered, a nameless image keeps until the whole one is there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from node.change import journal, transaction
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api, load, offer, store
from node.docker.api import connect
from node.rules.text import digest_of
from node.transfer import client, protocol, spool

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
    spool.remove_others([SUFFIX], [])
    load.remove_partial_images()


class ImageReceiver:
    """One image: brought, registered, looked at; never tagged."""

    def __init__(self, body: Json, peer: client.Peer) -> None:
        self._want, self._deadline_s, self._peer = body["want"], body["deadline_s"], peer
        self._progress: spool.Progress | None = None
        self._growing = load.GrowingLayers(peer.stop_if_gone)
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
        have = store.present(root, diff_ids)
        self._sizes = {n: int(self._peer.ask({"size": n})["size"])
                       for n in range(have, len(diff_ids))}  # fmt: skip
        spool.remove_others([SUFFIX], [diff_ids[n][7:] + SUFFIX for n in self._sizes])
        self._place(spool.folder())
        coming = sorted(set(self._first.values()))
        total = sum(self._sizes[n] for n in coming)
        there = sum(_size(self._paths[n]) for n in coming)
        spool.require_room([
            (root, room_needed(self._sizes, have == 0)),
            (spool.folder(), max(0, total - there)),
        ], docker=root)  # fmt: skip
        self.figures.update(layers=len(self._sizes), bytes=total, resumed_bytes=there)
        self._progress = spool.Progress("image", total, there)
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
        if not load.is_complete(self._want):
            # Every layer is there; what lacks is the image itself, which has no bytes.
            self._register(config, [])
        if not load.is_complete(self._want):
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
                if full or attempt == ATTEMPTS or not load.is_docker_back(self._peer.stop_if_gone):
                    self._damaged(group)
                    raise
        if store.present(self._root, self._want["layers"]) < upto:
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
        if part and store.present(self._root, diff_ids) == upto:
            return  # an attempt before this one had come so far
        told = (self._deadline_s, self._all_sent, self._told, self._peer.stop_if_gone)
        if group == [0]:
            load.import_layer(self._read(0), *told)
            return
        if upto < len(self._want["layers"]):
            config = load.part_config(config, diff_ids)
        image_id = "sha256:" + hashlib.sha256(config).hexdigest()
        once = {self._paths[item]: item for item in group}
        chunks = load.archive(
            image_id, config, diff_ids,
            {item: self._sizes[item] for item in once.values()}, self._read,
        )  # fmt: skip
        load.load(chunks, *told)

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


# An image by docker pull: what docker asks the endpoint for comes from the giving node.
#
# docker takes what it lacks, three blobs at a time, checks each by its digest and goes on behind
# the
# last byte that it has; the image keeps the digest that it has at the giver.


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
        content = {digest_of(raw): offer.document(raw) for raw in documents}
        content |= {digest: offer.image_blob(size, item) for item, digest, size in self._blobs}
        self._endpoint = offer.Endpoint(content, self._fetch)
        self._progress: spool.Progress | None = None
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
            documents = [offer.manifest_of(config, rows), config]
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
        spool.require_room([(root, total)], docker=root)
        self._progress = spool.Progress("image", total)
        started = time.monotonic()
        try:
            with self._endpoint:
                self._pull_with_retries()
        finally:
            self._over.set()
        wanted = {"id": self.own_id(containerd), "layers": self._want["layers"]}
        if not load.is_complete(wanted):
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
                if last or attempt == ATTEMPTS or not load.is_docker_back(self._look):
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
            last = load.answer(connection, self._told, "pull")
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

    def _fetch(self, item: int, first: int, end: int, write: offer.Write) -> None:
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


# image offer and image receive: a container image from one host's docker to another's.
#
# The giver reads from its store only what is asked for. Where both keep images in docker's own
# store,
# the receiver brings layers into the spool and hands them to docker load while they come; else
# docker
# pulls from an endpoint on loopback, which passes on what the giver has. The receiver looks at the
# whole image, and sets the tag last.

_TAG_KEYS = ("change", "image", "want")


def _wanted(image: Json) -> Json:
    """Gives what an image is known by: its id (the sha256 of its config) and its layers."""
    body = validate.keys(image, "want", ("id", "layers"), ("id", "layers"))
    rows = validate.array(body["layers"], "want.layers", 500)
    return {
        "id": validate.digest(body["id"], "want.id"),
        "layers": [validate.digest(row, f"want.layers[{n}]") for n, row in enumerate(rows)],
    }


def offer_image(request: Json) -> Json:
    """`image offer`: give an image to the peers, then be gone."""
    wanted = protocol.parse_request(request, ["want"])
    return protocol.serve_server(
        offer.stored_in(offer.find_store(), _wanted(request["want"])), wanted
    )


def _parse_request(request: Json) -> Json:
    keys = ("change", "image", "want", "from", "key", "deadline_s")
    body = validate.keys(request, "request", keys, keys[:5])
    return {
        "change": journal.parse_change(body["change"]),
        "image": validate.image(body["image"], "image"),
        "want": _wanted(body["want"]),
        "from": protocol.parse_address(body["from"]),
        "key": validate.key(body["key"], "key"),
        "deadline_s": validate.number(body.get("deadline_s", 3600), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`image receive`: bring an image from a node that offers it; the tag comes last.

    Raises NodeError. What had come stays in the spool for the next run; no tag was touched.
    """
    body = _parse_request(request)
    alive = protocol.ParentWatch()
    started = time.monotonic()
    peer = client.Peer(body["from"], body["key"], alive.gone)
    with contextlib.ExitStack() as stack:
        _alone(stack, peer)
        job = _bring(peer, body)
        why = alive.gone()
        if why:
            raise NodeError(f"the image is there without its tag: {why}", "interrupted")
        changed = _tag(body, job.name, job.id)
        with contextlib.suppress(CannotRead):
            load.remove_pulled_names()
    answer = {**job.figures, "wire_bytes": peer.wire_bytes + job.wire_bytes,
              "damaged": peer.damaged + job.damaged}  # fmt: skip
    return {**answer, "changed": changed, "took_s": round(time.monotonic() - started, 2)}


def _alone(stack: contextlib.ExitStack, peer: client.Peer) -> None:
    """Takes the lock of image transfers; a giver that waits is told when another one has it."""
    try:
        stack.enter_context(spool.TransferLock("image"))
    except NodeError as refused:
        peer.bye(str(refused))
        raise


@dataclass
class _Came:
    """An image that is here whole: the tag that it is to have, its id here, what came of it."""

    name: str
    id: str
    figures: Json
    wire_bytes: int = 0
    damaged: int = 0


def _bring(peer: client.Peer, body: Json) -> _Came:
    """Brings the image whole, without a tag, and tells the giver how it ended."""
    error: str | None = "it failed"
    try:
        own = offer.find_store()
        name = load.name_for(body["image"], own.containerd)
        came = _Came(name, body["want"]["id"], {"layers": 0, "bytes": 0, "resumed_bytes": 0})
        if not load.is_complete(body["want"]):
            listing = peer.ask({"list": True})
            # from one of docker's own stores to another only the layers go, without docker's pull
            by_layer = not own.containerd and "config" in listing
            (_by_layer if by_layer else _by_pull)(came, own, peer, body, listing)
        remove_leftovers()
        error = None
        return came
    except (NodeError, OSError) as failure:
        error = str(failure)
        raise
    except CannotRead as failure:
        error = str(failure)
        raise NodeError(error, "docker", "systemctl status docker") from None
    finally:
        peer.bye(error)


def _by_layer(came: _Came, own: offer.Store, peer: client.Peer, body: Json, listing: Json) -> None:
    job = ImageReceiver(body, peer)
    try:
        job.bring(own.root, listing)
    finally:
        job.end()
    came.figures = job.figures


def _by_pull(came: _Came, own: offer.Store, peer: client.Peer, body: Json, listing: Json) -> None:
    # here: http.server is of no use to any other verb

    job = ImagePull(body, peer, listing)
    came.id = job.own_id(own.containerd)
    if load.is_complete({"id": came.id, "layers": body["want"]["layers"]}):
        return
    try:
        job.bring(own.root, own.containerd)
    finally:
        job.end()
        came.wire_bytes, came.damaged = job.wire_bytes, job.damaged
    came.figures = job.figures


def tag(request: Json) -> Json:
    """`image tag`: set the tag on an image that is here whole, as a journalled step."""
    body = validate.keys(request, "request", _TAG_KEYS, _TAG_KEYS)
    reference, want = validate.image(body["image"], "image"), _wanted(body["want"])
    name = load.name_for(reference, "@" in reference and offer.find_store().containerd)
    request = {"change": journal.parse_change(body["change"]), "image": reference, "want": want}
    changed = _tag(request, name, want["id"])
    # The image came by another way: what a transfer that was given up left is of no use.
    with contextlib.suppress(NodeError, CannotRead, OSError), spool.TransferLock("image"):
        remove_leftovers()
        load.remove_pulled_names()
    return {"changed": changed}


def _tag(body: Json, name: str, image_id: str) -> bool:
    """Sets the tag `name` under the host's lock; gives whether it was another one."""
    with transaction.opened(body["change"], "image receive") as steps:
        if not load.is_complete({"id": image_id, "layers": body["want"]["layers"]}):
            raise NodeError(
                "the image went away before it was tagged", "image_load", "run it again"
            )
        if "@" in body["image"] and not body["image"].endswith(f"@{image_id}"):
            raise NodeError(f"the image is {image_id}, {body['image']} names another one",
                            "not_the_same")  # fmt: skip
        changed = load.TagKind("tag").do({"image": name, "id": image_id}, steps)[0]
        if load.tagged(body["image"]) != image_id:
            raise NodeError(f"docker set {name} and does not know {body['image']}", "image_tag")
        return changed
