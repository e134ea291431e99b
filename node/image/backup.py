"""image backup: a container image with what starts it, in the store of the backups.

The payload is one tar that docker load takes, so it comes back with zstd and docker alone. Beside
it lie unit, drop-ins and launch files, what the recipe renders, the names of the engine's
environment, and which weights there were. An image of a verified backup is not stored twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import time

from node.backup import compress, contents, create, store
from node.backup import request as backup_request
from node.backup.tar_reader import Reader, Safety
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.image import load, stores
from node.image.archive import Archive
from node.rules.image_names import repository
from node.weights.manifest import Folder


def backup(request: Json) -> Json:
    """Back an image up; gives its id, or the id of a verified backup that holds it already.

    Raises NodeError when the image is not there, there is no room, or docker's store does not have
    its bytes; nothing is left of the backup then.
    """
    wanted = _parse_request(request)
    compress.programs()
    if wanted["dry"]:
        return _dry(wanted)
    with store.Held():
        store.sweep()
        began = time.time()
        image, facts = look(wanted["tree"]), _facts(wanted["weights"])
        twin = create.find_twin(wanted, image["sha256"])
        if twin and twin.manifest and create.is_same(twin.manifest, wanted, facts):
            detail = f"{twin.id} is verified and holds the same image and files"
            return create.answer(twin.manifest, False, detail, began)
        archive = None if twin else read(image)
        create.check_room(store.folder(), archive.size if archive else 0, 16)
        backup_id = store.new_id(wanted["real"])

        def make(partial: str) -> Json:
            if archive:
                parts = _pack(partial, wanted, archive)
                about = {**image, "digest": archive.digest, "apparent_bytes": archive.size}
            else:
                assert twin and twin.manifest
                parts = create.linked(twin.id, twin.manifest, partial)
                about = dict(twin.manifest["image"])
            beside = create.kept(partial, wanted)
            return {"id": backup_id, **beside, **parts, "facts": facts, "image": about,
                    "apparent_bytes": about["apparent_bytes"],
                    "room_bytes": about["apparent_bytes"] + image["unpacked_bytes"],
                    "setuid": [], "tree_sha256": image["sha256"],
                    "seconds": time.time() - began}  # fmt: skip

        manifest = create.whole(backup_id, make)
    detail = f"the image is that of {twin.id}, which shares it" if twin else "stored"
    return create.answer(manifest, True, detail + _only_by_pull(wanted["tree"]), began)


def _parse_request(request: Json) -> Json:
    """Gives the request with every value checked; the image's name stands where a tree's does."""
    keys = (*backup_request.BESIDE, "image", "weights")
    body = validate.keys(request, "request", keys, ("image",))
    reference = validate.image(body["image"], "image")
    weights = body.get("weights")
    return {
        **backup_request.beside(body),
        "tree": reference,
        "real": repository(reference),
        "link": None,
        "weights": None if weights is None else validate.path(weights, "weights"),
    }


def look(reference: str) -> Json:
    """Gives what an image is known by. Raises NodeError when it is not there."""
    try:
        row = load.inspect(reference)
        if row is None:
            raise NodeError(f"this host has no image {reference}", "no_image",
                            "bring it: deploys/image.py")  # fmt: skip
        known = api.image(row)
        own = stores.find()
        unpacked = api.unpacked(known) if own.containerd else known["size"]
    except CannotRead as error:
        raise NodeError(str(error), "docker", "systemctl status docker") from None
    content = {"layers": known["layers"], "config_sha256": known["config_sha256"]}
    return {
        **content,
        "id": known["id"],
        "containerd": own.containerd,
        "unpacked_bytes": unpacked,
        # the same in each store, and on each host
        "content": _sha256(content),
        # a registry's image may have the same content and another digest
        "sha256": _sha256({**content, "id": known["id"]}),
    }


def _sha256(said: Json) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read(image: Json) -> Archive:
    """Gives what docker load takes of an image. Raises NodeError when the store lacks a part."""
    try:
        want = {"id": image["id"], "layers": image["layers"]}
        return Archive(stores.stored_in(stores.find(), want), image["layers"])
    except OSError as error:
        raise NodeError(f"docker's store lacks a part of {image['id'][:19]}: {error.filename}",
                        "image_store", "pull or load the image again") from None  # fmt: skip


def _facts(weights: str | None) -> Json:
    """Gives the facts of a host, and which weights its engine reads: names, sizes, known hashes."""
    return {
        "host": contents.host(),
        "interpreter": None,
        "versions": {"vllm": None, "torch": None, "cuda": None},
        "weights": None
        if weights is None
        else {"path": weights, "files": Folder(weights).recorded()},
    }


def _dry(wanted: Json) -> Json:
    """Gives whether a backup would store something; reads only."""
    image, facts = look(wanted["tree"]), _facts(wanted["weights"])
    twin = create.find_twin(wanted, image["sha256"])
    known = bool(twin and twin.manifest and create.is_same(twin.manifest, wanted, facts))
    archive = None if twin else read(image)
    size = archive.size if archive else 0
    return {"backup": twin.id if twin and known else None, "stored": not known,
            "tree": wanted["tree"], "members": len(image["layers"]), "apparent_bytes": size,
            "shares": twin.id if twin else None, "versions": facts["versions"]}  # fmt: skip


def _pack(partial: str, wanted: Json, archive: Archive) -> Json:
    """Write the payload and the list of its members; gives the manifest's words for them."""
    reader = Reader(archive.members(), Safety())
    note = os.path.join(partial, store.NOTE)
    progress = compress.Progress(f"backup of {wanted['tree']}", archive.size, note)
    try:
        payload = compress.squeeze(
            lambda said, children: archive.pieces(), os.path.join(partial, store.PAYLOAD),
            progress, reader.feed, create.stop,
        )  # fmt: skip
        reader.finish()
    except NodeError as error:
        if error.code == "backup_damaged":
            text = str(error).replace("the payload is not what the manifest says: ", "")
            raise NodeError(
                f"docker's store does not hold {wanted['tree']} as its digests say: {text}",
                "image_store", "pull or load the image again",
            ) from None  # fmt: skip
        raise
    progress.over()
    lines = (row.line() for row in archive.members())
    members = compress.write_lines(os.path.join(partial, store.MEMBERS), lines)
    return {"format": store.IMAGE, "payload": payload, "members": members}


def _only_by_pull(reference: str) -> str:
    """Gives a warning where docker's own store will not let the name be set again."""
    if "@" not in reference or stores.find().containerd:
        return ""
    return (
        f"; docker's own store takes {reference[:60]} from its registry alone: to bring it back "
        "without one, name the image by a tag"
    )
