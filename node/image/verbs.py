"""image offer and image receive: a container image from one host's docker to another's.

The giver reads from its store only what is asked for. Where both keep images in docker's own store,
the receiver brings layers into the spool and hands them to docker load while they come; else docker
pulls from an endpoint on loopback, which passes on what the giver has. The receiver looks at the
whole image, and sets the tag last.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from node.change import journal, transaction
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.image import load, stores, tag_step
from node.image import receive as image_receive
from node.transfer import client, server
from node.transfer import spool as spooling

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
    wanted = server.parse_request(request, ["want"])
    return server.serve(stores.stored_in(stores.find(), _wanted(request["want"])), wanted)


def _parse_request(request: Json) -> Json:
    keys = ("change", "image", "want", "from", "key", "deadline_s")
    body = validate.keys(request, "request", keys, keys[:5])
    return {
        "change": journal.parse_change(body["change"]),
        "image": validate.image(body["image"], "image"),
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
        stack.enter_context(spooling.TransferLock("image"))
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
        own = stores.find()
        name = tag_step.name_for(body["image"], own.containerd)
        came = _Came(name, body["want"]["id"], {"layers": 0, "bytes": 0, "resumed_bytes": 0})
        if not load.is_complete(body["want"]):
            listing = peer.ask({"list": True})
            # from one of docker's own stores to another only the layers go, without docker's pull
            by_layer = not own.containerd and "config" in listing
            (_by_layer if by_layer else _by_pull)(came, own, peer, body, listing)
        image_receive.remove_leftovers()
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


def _by_layer(came: _Came, own: stores.Store, peer: client.Peer, body: Json, listing: Json) -> None:
    job = image_receive.ImageReceiver(body, peer)
    try:
        job.bring(own.root, listing)
    finally:
        job.end()
    came.figures = job.figures


def _by_pull(came: _Came, own: stores.Store, peer: client.Peer, body: Json, listing: Json) -> None:
    # here: http.server is of no use to any other verb
    from node.image import pull

    job = pull.ImagePull(body, peer, listing)
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
    name = tag_step.name_for(reference, "@" in reference and stores.find().containerd)
    request = {"change": journal.parse_change(body["change"]), "image": reference, "want": want}
    changed = _tag(request, name, want["id"])
    # The image came by another way: what a transfer that was given up left is of no use.
    with contextlib.suppress(NodeError, CannotRead, OSError), spooling.TransferLock("image"):
        image_receive.remove_leftovers()
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
        changed = tag_step.TagKind("tag").do({"image": name, "id": image_id}, steps)[0]
        if tag_step.tagged(body["image"]) != image_id:
            raise NodeError(f"docker set {name} and does not know {body['image']}", "image_tag")
        return changed
