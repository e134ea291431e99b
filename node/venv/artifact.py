"""Files of an installed engine, in an image or below a folder, read without running anything."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import filesystem, image_files
from node.venv.pip_plan import masked

MAX_CONTENT = 64 * 1024
MAX_FILES = 50
Found = tuple[str, str]


def _parse_request(request: Json) -> Json:
    """Gives a request with every value checked: one of `image` and `root`, and the probes."""
    body = validate.keys(request, "request", ("image", "root", "probes"), ("probes",))
    if (body.get("image") is None) == (body.get("root") is None):
        raise validate.bad("request: give 'image' or 'root', one of them")
    probes = []
    for n, row in enumerate(validate.array(body["probes"], "probes", 500)):
        where = f"probes[{n}]"
        probe = validate.keys(row, where, ("path", "contains", "content"), ("path",))
        contains = probe.get("contains")
        probes.append(
            {
                "path": validate.path(probe["path"], f"{where}.path"),
                "contains": None
                if contains is None
                else validate.text(contains, f"{where}.contains"),
                "content": validate.boolean(probe.get("content", False), f"{where}.content"),
            }
        )
    image, root = body.get("image"), body.get("root")
    return {
        "image": None if image is None else validate.image(image, "image"),
        "root": None if root is None else validate.path(root, "root"),
        "probes": probes,
    }


def _in_image(layers: list[str], pattern: str) -> Iterator[Found]:
    """Gives (path on this host, path in the image) of the files that a pattern finds."""
    for path in image_files.matches(layers, pattern):
        layer = next(layer for layer in layers if path.startswith(layer + "/"))
        yield path, path[len(layer) :]


def _below(root: str, pattern: str) -> Iterator[Found]:
    """Gives (path, path) of the files below a folder; none that a link leads out of it."""
    real = os.path.realpath(root)
    for path in sorted(glob.glob(glob.escape(real) + pattern)):
        if os.path.isfile(path) and os.path.realpath(path).startswith(real + "/"):
            yield path, path


def _file(found: Found, probe: Json) -> Json:
    """Gives one file: path, size, sha256, how often it has the text, its own text where asked."""
    path, name = found
    with open(path, "rb") as handle:
        raw = handle.read(image_files.MAX_BYTES + 1)
    contains = probe["contains"]
    text = None
    if probe["content"] and len(raw) <= MAX_CONTENT:
        text = masked(raw.decode("utf-8", "replace"))
    return {
        "path": name,
        "size": os.stat(path).st_size,
        "sha256": hashlib.sha256(raw).hexdigest() if len(raw) <= image_files.MAX_BYTES else None,
        "count": None if contains is None else raw.count(contains.encode()),
        "content": text,
    }


def inspect_artifact(request: Json) -> Json:
    """Gives what each probe finds. Raises NodeError when the image or folder cannot be read."""
    body = _parse_request(request)
    layers: list[str] = []
    if body["image"]:
        try:
            layers = filesystem.layers(body["image"])
        except CannotRead as error:
            raise NodeError(str(error), "cannot_read", "docker image ls") from None
    elif not os.path.isdir(body["root"]):
        raise NodeError(f"{body['root']} is not a folder", "cannot_read", "name the venv's folder")
    answers = []
    for probe in body["probes"]:
        path = probe["path"]
        found = _in_image(layers, path) if layers else _below(body["root"], path)
        rows: list[Json] = []
        for one in found:
            if len(rows) == MAX_FILES:
                raise NodeError(f"{path} finds more than {MAX_FILES} files", "too_many")
            rows.append(_file(one, probe))
        answers.append({**probe, "files": rows})
    return {"probes": answers}
