"""image restore: a backed up image, and what started it, back as they were; a journalled change.

The image is loaded only where docker does not have its content any more, under no name; the name is
a step of the change, and so is each file: undo gives back what lay there.
"""

from __future__ import annotations

import contextlib
import secrets
import time

from node.backup import compress, create, host_files, kept_files, store, verify
from node.change import journal, transaction
from node.change.transaction import Transaction
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.engine import held_stopped
from node.image import load, stores, tag_step
from node.restore import compatibility
from node.weights.manifest import Folder

LOAD_TIMEOUT_S = 1800.0
# how docker says what a load without a name came to
_LOADED = "Loaded image ID: "


def _parse_request(request: Json) -> Json:
    """Gives the request with every value checked; at the console a change is made up."""
    body = validate.keys(request, "request", ("change", "backup", "allow", "dry"))
    rows = validate.array(body.get("allow", []), "allow", 10)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    own = {"id": f"{stamp}-restore-{secrets.token_hex(2)}", "deploy": "image restore",
           "operator": "console"}  # fmt: skip
    backup = body.get("backup")
    return {
        "change": journal.parse_change(body.get("change") or own),
        "backup": None if backup is None else store.checked_id(backup),
        "allow": [validate.choice(row, "allow", compatibility.WAIVABLE) for row in rows],
        "dry": validate.boolean(body.get("dry", False), "dry"),
    }


def restore(request: Json) -> Json:
    """Bring a backup's image back under its name, and the unit, its drop-ins and launch files as
    they were recorded; the change stays OPEN for the caller to end.

    Nothing changes when all of it is there. Raises NodeError: on any error the name and the files
    are as they were.
    """
    wanted = _parse_request(request)
    compress.programs()
    try:
        with store.Held(shared=True):
            manifest = compatibility.select(wanted["backup"], None, image=True)
            tree = manifest["tree"]
            waived = compatibility.require_compatible(manifest, tree, wanted["allow"])
            if wanted["dry"]:
                return _plan(manifest, waived)
            with transaction.opened(wanted["change"], "image restore") as steps:
                lacks, rows = _lacks(manifest), _files(manifest)
                if not lacks and not rows:
                    return {**_about(manifest), **steps.answer(), "changed": False, "files": [],
                            "detail": "the image and its files are as the backup"}  # fmt: skip
                _require_possible(manifest)
                engine = held_stopped.engine_if_stopped()
                with held_stopped.unit_held(steps, engine):
                    cleared = held_stopped.end_leftovers(engine) if engine else []
                    answer = _restore(steps, manifest, rows, lacks)
                return {**answer, "cleared": cleared, "waived": waived}
    except CannotRead as error:
        raise NodeError(str(error), "docker", "systemctl status docker") from None


def _about(manifest: Json) -> Json:
    """Gives what every answer says."""
    return {"backup": manifest["id"], "tree": manifest["tree"], "real": manifest["real"],
            "members": manifest["members"]["count"], "bytes": manifest["payload"]["bytes"],
            "weights": _weights(manifest)}  # fmt: skip


def _plan(manifest: Json, waived: list[str]) -> Json:
    """Gives what a restore would do; reads only."""
    lacks, rows = _lacks(manifest), _files(manifest)
    if lacks:
        _require_possible(manifest)
    files = host_files.words(rows)
    detail = lacks or "; ".join(files) or "the image and its files are as the backup"
    return {**_about(manifest), "change": None, "status": None, "changed": bool(lacks or rows),
            "unpacks": bool(lacks), "files": files, "detail": detail, "waived": waived,
            "room_bytes": manifest["room_bytes"]}  # fmt: skip


def _is_content(row: Json | None, image: Json) -> bool:
    """Gives whether docker's inspection is of an image of the same layers and config."""
    if row is None:
        return False
    known = api.image(row)
    return all(known[key] == image[key] for key in ("layers", "config_sha256"))


def _lacks(manifest: Json) -> str:
    """Gives in what docker does not have the image under its name, "" when it has."""
    reference, image = manifest["tree"], manifest["image"]
    now = load.inspect(reference)
    if now is None:
        return f"docker has no image {reference}"
    return "" if _is_content(now, image) else f"{reference} is another image now"


def _here(image: Json) -> str:
    """Gives the id of the image where docker has it under whatever name, else ""."""
    return str(image["id"]) if _is_content(load.inspect(image["id"]), image) else ""


def _files(manifest: Json) -> list[Json]:
    """Gives the steps for the recorded files."""
    return host_files.differing(kept_files.check(manifest["id"], manifest))


def _weights(manifest: Json) -> list[str]:
    """Gives a line for each file of the weights that is not as it was then."""
    was = manifest["facts"]["weights"]
    if was is None:
        return []
    now = {row["name"]: row for row in Folder(was["path"]).recorded()}
    lines = []
    for row in was["files"]:
        seen = now.get(row["name"])
        path = f"{was['path']}/{row['name']}"
        if seen is None:
            lines.append(f"{path} is gone")
        elif seen["size"] != row["size"]:
            lines.append(f"{path} has {seen['size']} bytes, it had {row['size']}")
        elif None not in (seen["sha256"], row["sha256"]) and seen["sha256"] != row["sha256"]:
            lines.append(f"{path} has another sha256 than it had")
    return lines


def _require_possible(manifest: Json) -> None:
    """Raise NodeError where docker here will not take the image under its name, or has no room."""
    reference, image = manifest["tree"], manifest["image"]
    own = stores.find()
    if not _lacks(manifest):
        return
    if "@" in reference and not (own.containerd and reference.endswith(f"@{image['digest']}")):
        tag = f"{manifest['real']}:rigbook-{reference.partition('@')[2][7:19]}"
        payload = store.of(manifest["id"], store.PAYLOAD)
        raise NodeError(
            f"{reference} is a name by digest, which docker's store here takes from its registry "
            "alone", "bad_request",
            f"docker pull {reference}; where the registry has deleted it: zstd -dc {payload} | "
            f"docker load, docker tag {image['id']} {tag}, and name {tag} in the recipe",
        )  # fmt: skip
    if not _here(image):
        create.check_room(own.root, manifest["room_bytes"], manifest["members"]["count"])


def _restore(steps: Transaction, manifest: Json, rows: list[Json], lacks: str) -> Json:
    """Do it, step by step; on an error the name and the files are as they were."""
    began = time.time()
    loads = False
    try:
        if lacks:
            found = _here(manifest["image"])
            loads = not found
            _name(steps, manifest, found or _load(manifest))
        host_files.bring_back(rows, steps)
        wrong = _lacks(manifest) or "; ".join(host_files.words(_files(manifest)))
        if wrong:
            raise NodeError(f"what is here is not what was restored: {wrong}", "tree_changing",
                            "end what changes it, then run it again")  # fmt: skip
    except (NodeError, CannotRead, OSError) as error:
        raise steps.take_back(error) from error
    return {**_about(manifest), **steps.answer(), "changed": True, "loaded": loads,
            "detail": "restored", "files": host_files.words(rows),
            "took_s": round(time.time() - began, 2)}  # fmt: skip


def _load(manifest: Json) -> str:
    """Have docker load the payload, which is read and checked as it passes; gives the id here.

    docker sees an archive that is cut where something is wrong with it, and makes no image.
    """
    backup, said = manifest["id"], [""]

    def told(row: Json) -> None:
        words = str(row.get("stream", ""))
        if words.startswith(_LOADED):
            said[0] = words[len(_LOADED) :].strip()

    pieces = verify.pieces(backup, manifest, f"restore {backup}", [])
    with contextlib.closing(pieces):
        load.load(pieces, LOAD_TIMEOUT_S, lambda: None, told, verify.stop)
    found = load.inspect(said[0]) if said[0] else None
    if found is None or not _is_content(found, manifest["image"]):
        raise NodeError(f"docker loaded {said[0] or 'an image under a name'}, which is not the "
                        f"image of {backup}", "image_load", "docker images --no-trunc")  # fmt: skip
    return said[0]


def _name(steps: Transaction, manifest: Json, image_id: str) -> None:
    """Set the name, as a step; docker then knows the reference as it was recorded."""
    reference = manifest["tree"]
    name = tag_step.name_for(reference, "@" in reference and stores.find().containerd)
    tag_step.TagKind("tag").do({"image": name, "id": image_id}, steps)
    if tag_step.tagged(reference) != image_id:
        raise NodeError(f"docker set {name} and does not know {reference}", "image_tag")
