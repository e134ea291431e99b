"""image offer and image receive: a container image from one host's docker to another's.

The giver reads from docker's own store only the layers that are asked for. The receiver brings
them into the spool and hands them to docker load while they come, looks at the whole image, and
sets the tag last.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from typing import Callable, Iterator, Optional

from node import change, check, fetch, imagebring, imageload, imagetag, journal, layers, offer
from node import spool as spooling
from node.errors import CannotRead, Json, NodeError
from node.lock import Lock
from node.snapshot import docker

_TAG_KEYS = ("change", "image", "want")


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

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
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
    started = time.monotonic()
    peer = fetch.Peer(body["from"], body["key"], alive.gone)
    with contextlib.ExitStack() as stack:
        _alone(stack, peer)
        job = imagebring.Bringing(body, peer)
        _bring(job, peer, body)
        why = alive.gone()
        if why:
            raise NodeError(f"the image is there without its tag: {why}", "interrupted")
        changed = _tag(body)
    answer = {**job.figures, "wire_bytes": peer.wire_bytes, "damaged": peer.damaged}
    return {**answer, "changed": changed, "took_s": round(time.monotonic() - started, 2)}


def _alone(stack: contextlib.ExitStack, peer: fetch.Peer) -> None:
    """Takes the lock of image transfers; a giver that waits is told when another one has it."""
    try:
        stack.enter_context(spooling.Busy("image"))
    except NodeError as refused:
        peer.bye(str(refused))
        raise


def _bring(job: imagebring.Bringing, peer: fetch.Peer, body: Json) -> None:
    """Brings the image whole, without a tag, and tells the giver how it ended."""
    error: Optional[str] = "it failed"
    try:
        root = store()
        if not imageload.whole(body["want"]):
            job.bring(root)
        imagebring.sweep()
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


def tag(request: Json) -> Json:
    """`image tag`: set the tag on an image that is here whole, as a journalled step."""
    body = check.keys(request, "request", _TAG_KEYS, _TAG_KEYS)
    reference = check.image(body["image"], "image")
    imagetag.split(reference)
    header = journal.checked_change(body["change"])
    changed = _tag({"change": header, "image": reference, "want": _wanted(body["want"])})
    # The image came by another way: what a transfer that was given up left is of no use.
    with contextlib.suppress(NodeError, CannotRead, OSError), spooling.Busy("image"):
        imagebring.sweep()
    return {"changed": changed}


def _tag(body: Json) -> bool:
    """Sets the tag under the host's lock; gives whether it was another one."""
    header = body["change"]
    with Lock(f"image receive {header['deploy']} by {header['operator']}"):
        journal.sweep()
        found = change.opened(header)
        if not imageload.whole(body["want"]):
            raise NodeError(
                "the image went away before it was tagged", "image_load", "run it again"
            )
        return imagetag.do(
            body["image"], body["want"]["id"], found["steps"], lambda: journal.save(found)
        )
