"""A tag of an image, set as a journalled step: what it named before is kept; undo puts it back."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from node.core.errors import Json, NodeError
from node.docker import containers
from node.image.load import inspect

# The name under which an image stays that lost its tag: `docker image prune` leaves it alone.
KEPT = "rigbook-kept"
TIMEOUT_S = 30.0


def split(reference: str) -> tuple[str, str]:
    """Gives repository and tag. Raises NodeError for a reference by digest: it cannot be set."""
    if "@" in reference:
        raise NodeError(f"{reference} is a digest: only a pull sets it", "bad_request")
    head, colon, tag = reference.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (reference, "latest")


def current(reference: str) -> str | None:
    """Gives the id of the image that has this tag, or None."""
    found = inspect(reference)
    return None if found is None else str(found["Id"])


def _set(image_id: str, reference: str) -> None:
    repo, tag = split(reference)
    path = f"/images/{quote(image_id, safe=':')}/tag?repo={quote(repo, safe='')}&tag={quote(tag)}"
    status, said = containers.call("POST", path, TIMEOUT_S)
    if status != 201:
        raise NodeError(f"docker tag {reference}: {status} {said}", "image_tag")


def _drop(reference: str) -> None:
    path = f"/images/{quote(reference, safe='/:')}?noprune=true"
    status, said = containers.call("DELETE", path, TIMEOUT_S)
    if status not in (200, 404):
        raise NodeError(f"docker rmi {reference}: {status} {said}", "image_tag")


def kept_name(image_id: str) -> str:
    """Gives the name under which a displaced image stays."""
    return f"{KEPT}:{image_id[7:19]}"


def do(reference: str, image_id: str, records: list[Json], record: Callable[[], None]) -> bool:
    """Tag an image; gives whether that changed something. Announced before, marked done after."""
    before = current(reference)
    if before == image_id:
        return False
    step = {
        "op": "tag",
        "image": reference,
        "state": "intent",
        "pre": before,
        "post": image_id,
        "kept": None if before is None else kept_name(before),
    }
    records.append(step)
    record()
    if before is not None:
        _set(before, kept_name(before))
    _set(image_id, reference)
    if current(reference) != image_id:
        raise NodeError(f"docker set {reference} and shows another image under it", "image_tag")
    step["state"] = "done"
    record()
    return True


def revert(step: Json) -> str:
    """Put a tag back to what the step found; gives what was done in words.

    A tag that somebody moved later is left alone.
    """
    now = current(step["image"])
    if now == step["pre"]:
        done = "was as before"
    elif now != step["post"]:
        return "left alone: somebody has moved the tag since"
    elif step["pre"] is None:
        # Its only name may be this one: without another, docker would remove image and layers.
        _set(step["post"], kept_name(step["post"]))
        _drop(step["image"])
        return f"removed; the image stays as {kept_name(step['post'])}"
    elif inspect(step["pre"]) is None:
        former = f"the former image {step['pre'][:19]} of {step['image']}"
        raise NodeError(f"{former} is gone", "image_tag", "bring it back, then: rignode undo")
    else:
        _set(step["pre"], step["image"])
        done = "restored"
    if step["kept"] and current(step["kept"]) == step["pre"]:
        _drop(step["kept"])
    return done


def settle(step: Json) -> bool:
    """Find out whether a tag was set that a kill left announced; gives whether that could be told.

    Docker sets a tag or does not; a third image under it was set by somebody else.
    """
    now = current(step["image"])
    if now == step["post"]:
        step["state"] = "done"
    elif now == step["pre"]:
        revert(step)
        step["state"] = "undone"
    return bool(step["state"] != "intent")
