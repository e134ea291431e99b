"""Where the versions of a venv's engine lie, and what there is of a version: files are read, only.

A venv that rigbook made lies at FOLDER/venvs/VERSION, beside the link FOLDER/NAME that leads to it.
A venv holds its own absolute path (shebangs, pyvenv.cfg), so it cannot be built under another name
and renamed. What is being built is told by the file VERSION.partial beside it: a folder with such a
file is no installation, whatever lies in it.
"""

from __future__ import annotations

import json
import os
import shlex
import time

from node.core import validate
from node.core.errors import Json, NodeError
from node.rules.versions import PACKAGE, VERSION, same_version
from node.venv import pip_plan

PARTIAL = ".partial"
FOLDER = "venvs"


def version_text(value: object, where: str = "version") -> str:
    """Gives a version that can be a folder's name. Raises NodeError otherwise."""
    text = validate.text(value, where, 100)
    if not VERSION.match(text) or ".." in text:
        raise validate.bad(f"{where}: {text[:60]!r} is not a version")
    return text


def package(value: object, where: str = "package") -> str:
    """Gives a distribution's name. Raises NodeError otherwise."""
    text = validate.text(value, where, 100)
    if not PACKAGE.match(text):
        raise validate.bad(f"{where}: {text[:60]!r} is not a package's name")
    return text


def installed(venv: str, name: str) -> tuple[str, ...]:
    """Gives the versions of a distribution that a venv's dist-info folders name."""
    return tuple(sorted(row["version"] for row in pip_plan.installed(venv, [name])))


def folder_of(path: str) -> str:
    """Gives the folder in which the versions of a venv lie."""
    return os.path.join(os.path.dirname(path), FOLDER)


def is_partial(folder: str) -> bool:
    """Gives True for a folder that is being made, or that a kill left so."""
    return os.path.lexists(folder + PARTIAL)


def partials(path: str) -> list[str]:
    """Gives the folders that were begun and never finished."""
    try:
        names = sorted(os.listdir(folder_of(path)))
    except OSError:
        return []
    return [
        os.path.join(folder_of(path), name[: -len(PARTIAL)])
        for name in names
        if name.endswith(PARTIAL) and VERSION.match(name[: -len(PARTIAL)])
    ]


def find(path: str, name: str, version: str) -> str | None:
    """Gives the whole folder beside a venv that holds this version, or None."""
    places = [os.path.realpath(path)]
    try:
        listed = sorted(os.listdir(folder_of(path)))
    except OSError:
        listed = []
    places += [os.path.join(folder_of(path), entry) for entry in listed if VERSION.match(entry)]
    for place in places:
        if not os.path.isdir(place) or os.path.islink(place) or is_partial(place):
            continue
        found = installed(place, name)
        if len(found) == 1 and same_version(version, found[0]):
            return place
    return None


def free_name(path: str, name: str, version: str) -> str:
    """Gives the folder for a new installation of a version: its public part, else all of it."""
    for text in (version.partition("+")[0], version):
        place = os.path.join(folder_of(path), text)
        if is_partial(place) or not os.path.lexists(place):
            return place
    raise NodeError(
        f"{place} is there and does not hold {name} {version}",
        "not_free",
        f"look at it; what nobody needs can go: sudo rm -r {shlex.quote(place)}",
    )


def inspect_versions(request: Json) -> Json:
    """`venv look`: where a version would lie, whether it is there, and how much room there is."""
    keys = ("venv", "package", "version")
    body = validate.keys(request, "request", keys, keys)
    path = validate.path(body["venv"], "venv")
    name, version = package(body["package"]), version_text(body["version"])
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_venv", "name the venv's folder")
    found = find(path, name, version)
    above = folder_of(path)
    seen = os.statvfs(above if os.path.isdir(above) else os.path.dirname(path))
    return {
        "venv": path,
        "real": real,
        "link": os.readlink(path) if os.path.islink(path) else None,
        "installed": list(installed(real, name)),
        "found": found,
        "folder": found or free_name(path, name, version),
        "partial": partials(path),
        "free_bytes": seen.f_bavail * seen.f_frsize,
        "working": working(path),
    }


def working(path: str) -> list[str]:
    """Gives a line for each installation under way: how much it has written, and since when.

    What the file system lost since the beginning stands for the size: nothing has to be walked.
    """
    lines: list[str] = []
    for folder in partials(path):
        try:
            with open(folder + PARTIAL, encoding="utf-8") as file:
                begun = json.load(file)
            seen = os.statvfs(folder)
            wrote = max(0, int(begun["free_bytes"]) - seen.f_bavail * seen.f_frsize)
            need, since = int(begun["room_bytes"]), time.time() - float(begun["since_unix_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # others write there, too: a share above all of it says nothing
        told = f"{wrote >> 20} of about {need >> 20} MiB, " if need and wrote <= need else ""
        lines.append(f"{begun['what']}: {told}{since:.0f} s")
    return lines
