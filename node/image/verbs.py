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
from collections.abc import Callable, Iterator

from node.change import journal, transaction
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api, overlay2
from node.image import load, tag_step
from node.image import receive as image_receive
from node.transfer import client, server
from node.transfer import spool as spooling

_TAG_KEYS = ("change", "image", "want")


def store() -> str:
    """Gives the root of docker's store. Raises NodeError (`image_store`) for another kind."""
    try:
        info = api.get("/info")
    except CannotRead as error:
        raise NodeError(str(error), "docker") from None
    driver, root = str(info.get("Driver", "")), str(info.get("DockerRootDir", ""))
    if driver != overlay2.DRIVER or not os.path.isdir(os.path.join(root, "image", overlay2.DRIVER)):
        raise NodeError(f"docker's store here is {driver or 'unknown'}, not {overlay2.DRIVER}",
                        "image_store", "deploys/image.py --data method=ssh")  # fmt: skip
    return root


def _wanted(image: Json) -> Json:
    """Gives what an image is known by: its id (the sha256 of its config) and its layers."""
    body = validate.keys(image, "want", ("id", "layers"), ("id", "layers"))
    rows = validate.array(body["layers"], "want.layers", 500)
    return {
        "id": validate.digest(body["id"], "want.id"),
        "layers": [validate.digest(row, f"want.layers[{n}]") for n, row in enumerate(rows)],
    }


class Stored(server.Source):
    """An image of this host's store."""

    def __init__(self, want: Json) -> None:
        self._want = want
        root = store()
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


def offer_image(request: Json) -> Json:
    """`image offer`: give an image to the peers, then be gone."""
    wanted = server.parse_request(request, ["want"])
    return server.serve(Stored(_wanted(request["want"])), wanted)


def _parse_request(request: Json) -> Json:
    keys = ("change", "image", "want", "from", "key", "deadline_s")
    body = validate.keys(request, "request", keys, keys[:5])
    reference = validate.image(body["image"], "image")
    tag_step.split(reference)
    return {
        "change": journal.parse_change(body["change"]),
        "image": reference,
        "want": _wanted(body["want"]),
        "from": server.parse_address(body["from"]),
        "key": validate.key(body["key"], "key"),
        "deadline_s": validate.number(body.get("deadline_s", 3600), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`image receive`: bring an image from a node that offers it; the tag comes last.

    Raises NodeError. What had come stays in the spool for the next run; no tag was touched.
    """
    body = _parse_request(request)
    alive = server.ParentWatch()
    started = time.monotonic()
    peer = client.Peer(body["from"], body["key"], alive.gone)
    with contextlib.ExitStack() as stack:
        _alone(stack, peer)
        job = image_receive.ImageReceiver(body, peer)
        _bring(job, peer, body)
        why = alive.gone()
        if why:
            raise NodeError(f"the image is there without its tag: {why}", "interrupted")
        changed = _tag(body)
    answer = {**job.figures, "wire_bytes": peer.wire_bytes, "damaged": peer.damaged}
    return {**answer, "changed": changed, "took_s": round(time.monotonic() - started, 2)}


def _alone(stack: contextlib.ExitStack, peer: client.Peer) -> None:
    """Takes the lock of image transfers; a giver that waits is told when another one has it."""
    try:
        stack.enter_context(spooling.TransferLock("image"))
    except NodeError as refused:
        peer.bye(str(refused))
        raise


def _bring(job: image_receive.ImageReceiver, peer: client.Peer, body: Json) -> None:
    """Brings the image whole, without a tag, and tells the giver how it ended."""
    error: str | None = "it failed"
    try:
        root = store()
        if not load.is_complete(body["want"]):
            job.bring(root)
        image_receive.remove_leftovers()
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
    body = validate.keys(request, "request", _TAG_KEYS, _TAG_KEYS)
    reference = validate.image(body["image"], "image")
    tag_step.split(reference)
    header = journal.parse_change(body["change"])
    changed = _tag({"change": header, "image": reference, "want": _wanted(body["want"])})
    # The image came by another way: what a transfer that was given up left is of no use.
    with contextlib.suppress(NodeError, CannotRead, OSError), spooling.TransferLock("image"):
        image_receive.remove_leftovers()
    return {"changed": changed}


def _tag(body: Json) -> bool:
    """Sets the tag under the host's lock; gives whether it was another one."""
    with transaction.opened(body["change"], "image receive") as steps:
        if not load.is_complete(body["want"]):
            raise NodeError(
                "the image went away before it was tagged", "image_load", "run it again"
            )
        wanted = {"image": body["image"], "id": body["want"]["id"]}
        return tag_step.TagKind("tag").do(wanted, steps)[0]
