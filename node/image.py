"""image offer and image receive: a container image from one host's docker to another's.

The giver reads from docker's own store only the layers that are asked for. The receiver brings
them into the spool and hands them to docker load while they come, looks at the whole image, and
sets the tag last.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from node import change, check, dockerctl, fetch, imageload, imagetag, journal, layers, offer
from node import spool as spooling
from node.errors import CannotRead, Json, NodeError
from node.lock import Lock
from node.snapshot import docker

SUFFIX = ".layer"
DOCKER_WAIT_S = 60.0
_TAG_KEYS = ("change", "image", "want")
ATTEMPTS = 3


def store() -> str:
    """Gives the root of docker's store. Raises NodeError (`image_store`) for another kind."""
    try:
        info = docker.get("/info")
    except CannotRead as error:
        raise NodeError(str(error), "docker") from None
    driver, root = str(info.get("Driver", "")), str(info.get("DockerRootDir", ""))
    if driver != layers.DRIVER or not os.path.isdir(os.path.join(root, "image", layers.DRIVER)):
        raise NodeError(f"docker's store here is {driver or 'unknown'}, not {layers.DRIVER}",
                        "image_store", "deploys/image.py --data method=ssh")  # fmt: skip
    return root


def _wanted(image: Json) -> Json:
    """Gives what an image is known by: its id (the sha256 of its config) and its layers."""
    body = check.keys(image, "want", ("id", "layers"), ("id", "layers"))
    rows = check.array(body["layers"], "want.layers", 500)
    return {
        "id": check.digest(body["id"], "want.id"),
        "layers": [check.digest(row, f"want.layers[{n}]") for n, row in enumerate(rows)],
    }


class Stored(offer.Source):
    """An image of this host's store."""

    def __init__(self, want: Json) -> None:
        self._want = want
        root = store()
        chains = layers.chains(want["layers"])
        self._config = layers.raw_config(root, want["id"])
        self._layers = [layers.Layer(root, *row) for row in zip(chains, want["layers"])]

    def listing(self) -> Json:
        """Gives the config as it is stored; what it hashes to is the image's id."""
        return {"config": base64.b64encode(self._config).decode("ascii")}

    def size(self, item: int) -> int:
        """Gives the length of a layer's tar."""
        return self._layers[item].size()

    def blocks(self, item: int, offset: int) -> Iterator[bytes]:
        """Gives a layer's tar."""
        return self._layers[item].blocks(offset)

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives the layer's diff id."""
        return str(self._want["layers"][item])[7:]


def offer_image(request: Json) -> Json:
    """`image offer`: give an image to the peers, then be gone."""
    wanted = offer.checked(request, ["want"])
    return offer.serve(Stored(_wanted(request["want"])), wanted)


def _checked(request: Json) -> Json:
    keys = ("change", "image", "want", "from", "key", "deadline_s")
    body = check.keys(request, "request", keys, keys[:5])
    reference = check.image(body["image"], "image")
    imagetag.split(reference)
    return {
        "change": journal.checked_change(body["change"]),
        "image": reference,
        "want": _wanted(body["want"]),
        "from": offer.place(body["from"]),
        "key": check.key(body["key"], "key"),
        "deadline_s": check.number(body.get("deadline_s", 3600), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`image receive`: bring an image from a node that offers it; the tag comes last.

    Raises NodeError. What had come stays in the spool for the next run; no tag was touched.
    """
    body = _checked(request)
    alive = offer.Alive()
    error: Optional[str] = "it failed"
    started = time.monotonic()
    with spooling.Busy("image"):
        peer = fetch.Peer(body["from"], body["key"], alive.gone)
        job = _Transfer(body, peer, alive)
        try:
            root = store()
            if not _whole(body["want"]):
                job.bring(root)
            error = None
        except (NodeError, OSError) as failure:
            error = str(failure)
            raise
        except CannotRead as failure:
            error = str(failure)
            raise NodeError(error, "docker", "systemctl status docker") from None
        finally:
            peer.bye(error)
            job.end()
        why = alive.gone()
        if why:
            raise NodeError(f"the image is there without its tag: {why}", "interrupted")
        changed = _tag(body)
    answer = {**job.figures, "wire_bytes": peer.wire_bytes, "damaged": peer.damaged}
    return {**answer, "changed": changed, "took_s": round(time.monotonic() - started, 2)}


def _whole(want: Json) -> bool:
    """Gives whether docker has the image with just this config and these layers."""
    found = imageload.inspect(want["id"])
    if found is None:
        return False
    there = (found.get("RootFS") or {}).get("Layers")
    return bool(found["Id"] == want["id"] and there == want["layers"])


def tag(request: Json) -> Json:
    """`image tag`: set the tag on an image that is here whole, as a journalled step."""
    body = check.keys(request, "request", _TAG_KEYS, _TAG_KEYS)
    reference = check.image(body["image"], "image")
    imagetag.split(reference)
    header = journal.checked_change(body["change"])
    return {"changed": _tag({"change": header, "image": reference, "want": _wanted(body["want"])})}


def _tag(body: Json) -> bool:
    """Sets the tag under the host's lock; gives whether it was another one."""
    header = body["change"]
    with Lock(f"image receive {header['deploy']} by {header['operator']}"):
        journal.sweep()
        found = change.opened(header)
        if not _whole(body["want"]):
            raise NodeError(
                "the image went away before it was tagged", "image_load", "run it again"
            )
        return imagetag.do(
            body["image"], body["want"]["id"], found["steps"], lambda: journal.save(found)
        )


class _Transfer:
    """One image on its way: wire to spool in one thread, spool to docker in this one."""

    def __init__(self, body: Json, peer: fetch.Peer, alive: offer.Alive) -> None:
        self._body, self._peer, self._alive = body, peer, alive
        self._progress: Optional[spooling.Progress] = None
        self.figures: Json = {"layers": 0, "bytes": 0, "resumed_bytes": 0}

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def bring(self, root: str) -> None:
        """Brings what the store lacks and has docker load it. Raises NodeError."""
        want = self._body["want"]
        config = self._config()
        have = layers.present(root, want["layers"])
        sizes = {n: int(self._peer.ask({"size": n})["size"])
                 for n in range(have, len(want["layers"]))}  # fmt: skip
        names = {n: want["layers"][n][7:] + SUFFIX for n in sizes}
        spooling.keep_only([SUFFIX], list(names.values()))
        paths = {n: os.path.join(spooling.folder(), name) for n, name in names.items()}
        kept = {n: _size(path) for n, path in paths.items()}
        total, there = sum(sizes.values()), sum(kept.values())
        # docker load unpacks the archive beside its store before it registers the layers.
        spooling.require_room([(root, 2 * total), (spooling.folder(), max(0, total - there))])
        self.figures.update(layers=len(sizes), bytes=total, resumed_bytes=there)
        self._progress = spooling.Progress("image", total, there)
        started = time.monotonic()
        growing = imageload.Growing()
        wire_s: List[float] = []

        def fetch_all() -> None:
            try:
                for item in sorted(sizes):
                    self._fetch(item, paths[item], want["layers"][item][7:], growing)
                wire_s.append(time.monotonic() - started)
                # docker needs minutes for what is here now; the giver need not wait for it
                self._peer.bye(None)
            except Exception as error:
                growing.failed(error)

        thread = threading.Thread(target=fetch_all, daemon=True)
        thread.start()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._load(config, sizes, paths, growing)
                break
            except NodeError as error:
                if error.code != "image_load" or attempt == ATTEMPTS or not self._docker_back():
                    raise
        thread.join()
        if not _whole(want):
            raise NodeError("docker load ended well and the image is not what it was to be",
                            "image_load", "docker images --no-trunc; run it again")  # fmt: skip
        self.figures.update(wire_s=round(wire_s[0], 2),
                            load_s=round(time.monotonic() - started, 2))  # fmt: skip
        for path in paths.values():
            os.unlink(path)

    def _config(self) -> bytes:
        """Gives the image's config, which is what its id says."""
        want = self._body["want"]
        raw = base64.b64decode(str(self._peer.ask({"list": True}).get("config", "")))
        if "sha256:" + hashlib.sha256(raw).hexdigest() != want["id"]:
            raise NodeError(
                "the giving node has another image by now", "not_the_same", "run it again"
            )
        said: Any = json.loads(raw)
        if said.get("rootfs", {}).get("diff_ids") != want["layers"]:
            raise NodeError("the image's config names other layers", "not_the_same")
        return raw

    def _fetch(self, item: int, path: str, want: str, growing: imageload.Growing) -> None:
        size = [_size(path)]

        def grown(count: int) -> None:
            size[0] += count
            growing.grew(item, size[0])
            if self._progress:
                self._progress.add(count)

        if size[0]:
            growing.grew(item, size[0])
        fetch.fetch(self._peer, item, path, want, grown)
        growing.grew(item, size[0])

    def _load(
        self,
        config: bytes,
        sizes: Dict[int, int],
        paths: Dict[int, str],
        growing: imageload.Growing,
    ) -> None:
        want = self._body["want"]

        def told(row: Json) -> None:
            self._peer.stop_if_gone()
            detail = row.get("progressDetail") or {}
            if detail.get("total") and self._progress:
                self._progress.at(f"docker load {detail['current'] / 1e9:.2f} GB")

        chunks = imageload.archive(
            want["id"], config, want["layers"], sizes,
            lambda item: growing.read(item, paths[item], sizes[item]),
        )  # fmt: skip
        imageload.load(chunks, self._body["deadline_s"], self._all_sent, told)

    def _all_sent(self) -> None:
        if self._progress:
            self._progress.at("docker load")

    def _docker_back(self) -> bool:
        """Waits for a docker that restarts; gives whether it answers again."""
        deadline = time.monotonic() + DOCKER_WAIT_S
        while time.monotonic() < deadline:
            self._peer.stop_if_gone()
            if dockerctl.answers():
                return True
            time.sleep(0.5)
        return False


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
