"""A tag of an image, set as a journalled step: what it named before is kept; undo puts it back."""

from __future__ import annotations

from urllib.parse import quote

from node.core.errors import Json, NodeError
from node.core.step_kind import TAG, Kind, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.docker import containers
from node.image.load import inspect
from node.rules.image_names import repository

# The name under which an image stays that lost its tag: `docker image prune` leaves it alone.
KEPT = "rigbook-kept"
TIMEOUT_S = 30.0


def split(reference: str) -> tuple[str, str]:
    """Gives repository and tag. Raises NodeError for a reference by digest: it cannot be set."""
    if "@" in reference:
        raise NodeError(f"{reference} is a digest: only a pull sets it", "bad_request")
    head, colon, tag = reference.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (reference, "latest")


def name_for(reference: str, containerd: bool) -> str:
    """Gives the tag to set so that docker knows a reference.

    With the containerd store an image has, by each of its tags, the name by its digest as well.
    Raises NodeError where docker keeps images by itself: there only a pull from the registry that
    the name says sets it.
    """
    _, at, digest = reference.partition("@")
    if not at:
        return reference
    if not containerd:
        raise NodeError(
            f"{reference} is a name by digest: with docker's own store only a pull from its"
            " registry sets it", "bad_request", "docker pull it; or name the image by a tag",
        )  # fmt: skip
    return f"{repository(reference)}:rigbook-{digest[7:19]}"


def tagged(reference: str) -> str | None:
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


class TagKind(Kind):
    """What a tag names: `pre` and `post` are image ids, `kept` the name of a displaced image."""

    phase = TAG

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Have the tag `image` name the image of the id `id`."""
        reference, image_id = step["image"], step["id"]
        before = tagged(reference)
        if before == image_id:
            return False, "as wanted"
        kept = None if before is None else kept_name(before)
        entry = self.record(steps, image=reference, pre=before, post=image_id, kept=kept)
        if before is not None:
            _set(before, kept_name(before))
        _set(image_id, reference)
        if tagged(reference) != image_id:
            raise NodeError(f"docker set {reference} and shows another image under it", "image_tag")
        steps.finish(entry)
        return True, "changed"

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put a tag back to what the step found.

        A tag that somebody moved later is left alone.
        """
        now = tagged(entry["image"])
        if now == entry["pre"]:
            done = "was as before"
        elif now != entry["post"]:
            return self.leave(entry, "left alone: somebody has moved the tag since")
        elif entry["pre"] is None:
            # Its only name may be this one: without another, docker would remove image and layers.
            _set(entry["post"], kept_name(entry["post"]))
            _drop(entry["image"])
            return f"removed; the image stays as {kept_name(entry['post'])}"
        elif inspect(entry["pre"]) is None:
            former = f"the former image {entry['pre'][:19]} of {entry['image']}"
            raise NodeError(f"{former} is gone", "image_tag", "bring it back, then: rignode undo")
        else:
            _set(entry["pre"], entry["image"])
            done = "restored"
        if entry["kept"] and tagged(entry["kept"]) == entry["pre"]:
            _drop(entry["kept"])
        return done

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Docker sets a tag or does not; a third image under it was set by somebody else."""
        now = tagged(entry["image"])
        if now == entry["post"]:
            return DONE
        if now != entry["pre"]:
            return UNKNOWN
        self.revert(entry, overwrite=False)
        return UNDONE

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives what the tag names, where it is not what was recorded."""
        return differing(entry["image"], tagged(entry["image"]), entry[side])
