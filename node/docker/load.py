"""docker load of an archive that is made while it is read, through the engine's socket.

The archive leaves out the layers that the store has, and has no tags: docker sets none, so nobody
finds the image by its name before it was looked at as a whole.
"""

from __future__ import annotations

import errno
import http.client
import json
import re
import shlex
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import TAG, Kind, Steps, differing
from node.core.dirfd import BLOCK
from node.core.errors import Json, NodeError, io_reason
from node.docker import api
from node.docker.api import connect
from node.rules.text import repository
from node.transfer import spool

_CHUNK = BLOCK
# The label of the nameless images that keep the layers of an image of which more has to come.
PART = "rigbook.part"
PART_TIMEOUT_S = 60.0
DOCKER_WAIT_S = 60.0


class GrowingLayers:
    """Layers that another thread brings into files, for one that reads them as they grow."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        """`look` is called about once a second while nothing comes, and may end that."""
        self._look = look
        self._change = threading.Condition()
        self._sizes: dict[int, int] = {}
        self._error: Exception | None = None

    def grew(self, item: int, size: int) -> None:
        """Notes that an item's file now has `size` good bytes."""
        with self._change:
            self._sizes[item] = size
            self._change.notify_all()

    def failed(self, error: Exception) -> None:
        """Notes that no more will come."""
        with self._change:
            self._error = error
            self._change.notify_all()

    def wait(self, item: int, more_than: int) -> int:
        """Gives the item's size once it is more than `more_than`. Raises what `failed` noted."""
        with self._change:
            while self._error is None and self._sizes.get(item, -1) <= more_than:
                self._look()
                self._change.wait(1.0)
            if self._error is not None:
                raise self._error
            return self._sizes[item]

    def read(self, item: int, path: str, length: int) -> Iterator[bytes]:
        """Gives the item's file in chunks, waiting for what has not come yet."""
        done = 0
        self.wait(item, -1)
        with open(path, "rb", buffering=0) as file:
            while done < length:
                there = self.wait(item, done)
                while done < there:
                    chunk = file.read(min(_CHUNK, there - done))
                    if not chunk:
                        raise NodeError(f"{path} became shorter while it was read", "io")
                    done += len(chunk)
                    yield chunk


def _member(name: str, length: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = length, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(length: int) -> bytes:
    return bytes(-length % tarfile.BLOCKSIZE)


def archive(
    image_id: str,
    config: bytes,
    diff_ids: list[str],
    sizes: dict[int, int],
    read: Callable[[int], Iterator[bytes]],
) -> Iterator[bytes]:
    """Gives a docker archive of an image; layers without a size are named and left out."""
    names = [f"{diff[7:]}/layer.tar" for diff in diff_ids]
    manifest = [{"Config": f"{image_id[7:]}.json", "RepoTags": None, "Layers": names}]
    for name, raw in (
        (f"{image_id[7:]}.json", config),
        ("manifest.json", json.dumps(manifest).encode()),
    ):
        yield _member(name, len(raw)) + raw + _padding(len(raw))
    for item, length in sorted(sizes.items()):
        yield _member(names[item], length)
        yield from read(item)
        yield _padding(length)
    yield bytes(2 * tarfile.BLOCKSIZE)


def load(
    chunks: Iterator[bytes],
    timeout_s: float,
    sent: Callable[[], None],
    told: Callable[[Json], None],
    look: Callable[[], None],
) -> None:
    """Hand an archive to docker. `sent` is called when docker has it, `told` with what it tells.

    `look` is called about once a second, also while docker hangs: what it raises ends the load.
    Raises NodeError (`image_load`) with docker's words, and whatever making the archive raises:
    docker then sees an archive that is cut, and keeps nothing.
    """
    last = _post("/images/load?quiet=0", chunks, timeout_s, sent, told, look)
    # A connection that just ends is no success: `socat … docker load` gave 0 and no image.
    if not last.startswith("Loaded image"):
        raise _cut(last)


def import_layer(
    chunks: Iterator[bytes],
    timeout_s: float,
    sent: Callable[[], None],
    told: Callable[[Json], None],
    look: Callable[[], None],
) -> None:
    """Hand the tar of a lowest layer to docker, which registers it while it comes.

    docker load writes all of an archive to its disk first; an import does not. The image that it
    makes has no name and carries the label PART. Raises as `load`.
    """
    label = quote(f"LABEL {PART}=1")
    last = _post(f"/images/create?fromSrc=-&changes={label}", chunks, timeout_s, sent, told, look)
    if not last.startswith("sha256:"):
        raise _cut(last)


def _cut(last: str) -> NodeError:
    return NodeError(f"docker ended in the middle of the load ({last.strip()[:80] or 'no word'})",
                     "image_load", "systemctl status docker; then run it again")  # fmt: skip


def _post(
    path: str,
    chunks: Iterator[bytes],
    timeout_s: float,
    sent: Callable[[], None],
    told: Callable[[Json], None],
    look: Callable[[], None],
) -> str:
    """Sends chunks to docker and reads what it tells; gives its last word."""
    connection = None
    try:
        connection = connect(api.SOCKET, timeout_s, look)
        try:
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/x-tar")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for chunk in _out_of_spool(chunks):
                if chunk:
                    connection.send(b"%x\r\n" % len(chunk))
                    connection.send(chunk)
                    connection.send(b"\r\n")
            connection.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # docker has said why, and closed: its answer is read below
        sent()
        return answer(connection, told, "load")
    except TimeoutError:
        raise NodeError(f"docker load was not done in {timeout_s:g} s", "image_load") from None
    except (OSError, http.client.HTTPException) as error:
        raise NodeError(f"docker ended while it loaded: {error}", "image_load",
                        "systemctl status docker; then run it again") from None  # fmt: skip
    finally:
        if connection is not None:
            connection.close()


def _out_of_spool(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Gives the chunks; a disk that fails while they are made is told as such, not as docker."""
    try:
        yield from chunks
    except OSError as error:
        folder = spool.folder()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise NodeError(
            f"the spool {folder}: {io_reason(error)}",
            "no_room" if full else "io",
            f"df -h {shlex.quote(folder)}; make room, then run it again: it goes on" if full
            else "dmesg; then run it again",
        ) from None  # fmt: skip


def answer(connection: http.client.HTTPConnection, told: Callable[[Json], None], what: str) -> str:
    """Gives docker's last word about `docker WHAT`; `told` gets what it tells meanwhile.

    Raises NodeError (`image_load`) with docker's words, OSError, HTTPException.
    """
    response = connection.getresponse()
    last = ""
    for line in iter(response.readline, b""):
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict):
            continue
        if row.get("error") or response.status != 200:
            said = row.get("error") or row.get("message")
            raise NodeError(
                f"docker {what}: {str(said)[:400]}", "image_load", "df -h; run it again"
            )
        last = str(row.get("stream") or row.get("status") or last)
        told(row)
    return last


def part_config(config: bytes, diff_ids: list[str]) -> bytes:
    """Gives the config of an image of the lowest layers only, nameless and labelled PART.

    Docker keeps a layer for as long as an image has it: this is what keeps the layers of an image
    of which more has to come.
    """
    whole: Json = json.loads(config)
    part: Json = {key: whole[key] for key in ("architecture", "os", "variant") if key in whole}
    part["config"] = {"Labels": {PART: "1"}}
    part["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    return json.dumps(part, sort_keys=True).encode()


def remove_partial_images() -> None:
    """Removes the nameless images that only kept layers; what another image has stays."""
    wanted = quote(json.dumps({"label": [f"{PART}=1"], "dangling": ["true"]}))
    for row in api.get(f"/images/json?filters={wanted}"):
        # 409: somebody made a container of it; 404: somebody was faster
        api.call_said("DELETE", f"/images/{quote(str(row['Id']), safe=':')}", PART_TIMEOUT_S)


PULLED = re.compile(r"127\.0\.0\.1:\d+/rigbook-pull@sha256:[0-9a-f]{64}\Z")


def remove_pulled_names() -> None:
    """Removes the names under which docker pulled from this host's own endpoint.

    An image that has no other name goes with it. Raises CannotRead.
    """
    for row in api.get("/images/json"):
        # with the containerd store such a name stands among the tags
        names = {*(row.get("RepoDigests") or []), *(row.get("RepoTags") or [])}
        for name in filter(PULLED.match, names):
            api.call_said(
                "DELETE", f"/images/{quote(name, safe='/:@')}?noprune=true", PART_TIMEOUT_S
            )


def is_docker_back(look: Callable[[], None]) -> bool:
    """Waits for a docker that restarts; gives whether it answers again. Raises what `look` does."""
    deadline = time.monotonic() + DOCKER_WAIT_S
    while time.monotonic() < deadline:
        look()
        if api.daemon_answers():
            return True
        time.sleep(0.5)
    return False


def inspect(reference: str) -> Json | None:
    """Gives an image by name or id as docker knows it, or None. Raises CannotRead."""
    row = api.get(f"/images/{quote(reference, safe='/:@')}/json", absent_ok=True)
    return None if row is None else dict(row)


def is_complete(want: Json) -> bool:
    """Gives whether docker has the image with just this config and these layers."""
    found = inspect(want["id"])
    if found is None:
        return False
    there = (found.get("RootFS") or {}).get("Layers")
    return bool(found["Id"] == want["id"] and there == want["layers"])


# A tag of an image, set as a journalled step: what it named before is kept; undo puts it back.

# The name under which an image stays that lost its tag: `docker image prune` leaves it alone.
KEPT_TAG = "rigbook-kept"
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
    status, said = api.call_said("POST", path, TIMEOUT_S)
    if status != 201:
        raise NodeError(f"docker tag {reference}: {status} {said}", "image_tag")


def _drop(reference: str) -> None:
    path = f"/images/{quote(reference, safe='/:')}?noprune=true"
    status, said = api.call_said("DELETE", path, TIMEOUT_S)
    if status not in (200, 404):
        raise NodeError(f"docker rmi {reference}: {status} {said}", "image_tag")


def kept_name(image_id: str) -> str:
    """Gives the name under which a displaced image stays."""
    return f"{KEPT_TAG}:{image_id[7:19]}"


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
