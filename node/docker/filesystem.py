"""Whether a file is there inside a container or an image, links followed as its own root has it.

Read on disk: no container is made and nothing is run in one.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from node.core.errors import CannotRead
from node.docker import api, layer_folders

MAX_LINKS = 40
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Tree(NamedTuple):
    """A container's or image's files: its layers, the topmost first, and what is mounted over.

    `what` names it in words; `path` is its PATH, `workdir` its working folder, `entry` its
    entrypoint, `default` its command.
    """

    what: str
    layers: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    path: str
    workdir: str
    entry: tuple[str, ...]
    default: tuple[str, ...]


def _made(what: str, layers: list[str], mounts: list[tuple[str, str]], config: Any) -> Tree:
    """Gives a Tree from docker's Config of a container or an image."""
    environ = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    return Tree(
        what,
        tuple(layers),
        tuple(sorted(mounts, reverse=True)),
        environ.get("PATH") or DEFAULT_PATH,
        config.get("WorkingDir") or "/",
        tuple(config.get("Entrypoint") or ()),
        tuple(config.get("Cmd") or ()),
    )


def container(name: str) -> Tree:
    """Gives a container's files, running or not. Raises CannotRead."""
    row = api.inspection(f"/containers/{quote(name, safe='')}/json")
    if row is None:
        raise CannotRead(f"there is no container {name}")
    what = f"container {name}"
    pid = (row.get("State") or {}).get("Pid")
    if pid:
        return _made(what, [f"/proc/{pid}/root"], [], row["Config"])
    layers = layer_folders.of_container(row)
    if not layers:
        raise CannotRead(f"{what} does not run, and its store keeps layers packed")
    mounts = [
        (str(mount["Destination"]).rstrip("/"), str(mount["Source"]))
        for mount in row.get("Mounts") or []
        if mount.get("Source")
    ]
    return _made(what, layers, mounts, row["Config"])


def image(name: str, mounts: list[tuple[str, str]]) -> Tree:
    """Gives an image's files with these (target, source) mounted. Raises CannotRead."""
    row = api.get(f"/images/{quote(name, safe='/:@')}/json", absent_ok=True)
    if row is None:
        raise CannotRead(f"there is no image {name} here")
    return _made(f"image {name}", layers(name), mounts, row.get("Config") or {})


def layers(image: str) -> list[str]:
    """Gives the folders of an image's layers, the topmost first; of a venv its folder.

    Raises CannotRead.
    """
    if image.startswith("/"):
        if not os.path.isdir(image):
            raise CannotRead(f"no folder {image} here")
        return [image]
    row = api.inspection(f"/images/{quote(image, safe='/:@')}/json")
    if row is None:
        raise CannotRead(f"no image {image} here")
    return layer_folders.of_image(row) or [_running_root(str(row["Id"]), image)]


def _running_root(image_id: str, image: str) -> str:
    """Gives the root folder of a running container of the image. Raises CannotRead."""
    for row in api.get("/containers/json"):
        if row.get("ImageID") == image_id:
            pid = api.get(f"/containers/{row['Id']}/json")["State"]["Pid"]
            return f"/proc/{pid}/root"
    raise CannotRead(f"{image}: its store keeps layers packed, and no container of it runs")


def layered(folders: Sequence[str], path: str) -> os.stat_result | None:
    """Gives the entry of the topmost layer that has the path; overlay's marks are heeded.

    No link is followed: a path that leads through one has no entry.
    """
    parts = [part for part in path.split("/") if part]
    for layer in folders:
        at = layer
        for n, part in enumerate(parts):
            at = os.path.join(at, part)
            try:
                info = os.lstat(at)
            except (FileNotFoundError, NotADirectoryError):
                break
            if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                return None  # overlay's mark of something deleted
            if n == len(parts) - 1:
                return info
            hides = _opaque(at) and not _under(at, parts[n + 1 :])
            if hides or not stat.S_ISDIR(info.st_mode):
                return None
    return None


def _opaque(folder: str) -> bool:
    """Gives True for a folder that hides what the layers below have in it."""
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False


def _under(folder: str, parts: list[str]) -> bool:
    return os.path.lexists(os.path.join(folder, *parts))


def _entry(tree: Tree, path: str) -> tuple[os.stat_result | None, str]:
    """Gives a path's entry, no link followed, and where it lies on this host."""
    for target, source in tree.mounts:
        if path == target or path.startswith(target + "/"):
            real = source + path[len(target) :]
            try:
                return (os.stat(real) if path == target else os.lstat(real)), real
            except OSError:
                return None, real
    info = layered(tree.layers, path)
    for layer in tree.layers:
        if info is not None and os.path.lexists(layer + path):
            return info, layer + path
    return info, path


def stat_mode(tree: Tree, path: str) -> int | None:
    """Gives the st_mode of what a path leads to inside the tree, or None when nothing is there.

    Raises CannotRead for links without end.
    """
    todo = [part for part in reversed(path.split("/")) if part]
    at, links, found = "", 0, stat.S_IFDIR
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at, found = posixpath.dirname(at), stat.S_IFDIR
            continue
        info, real = _entry(tree, f"{at}/{part}")
        if info is None:
            return None
        if not stat.S_ISLNK(info.st_mode):
            at, found = f"{at}/{part}", info.st_mode
            continue
        links += 1
        if links > MAX_LINKS:
            raise CannotRead(f"{path} in {tree.what} is a link without end")
        leads = os.readlink(real)
        at = "" if leads.startswith("/") else at
        todo += [step for step in reversed(leads.split("/")) if step]
    return found


def program_problem(tree: Tree, name: str) -> str | None:
    """Gives what is wrong with a program that is to run inside the tree, or None.

    A bare name is looked for on the tree's PATH. Raises CannotRead.
    """
    if "/" in name:
        paths = [posixpath.join(tree.workdir, name)]
    else:
        paths = [f"{folder}/{name}" for folder in tree.path.split(":") if folder]
    found = [info for info in (stat_mode(tree, path) for path in paths) if info is not None]
    if not found:
        return f"which is not in {tree.what}"
    if not any(stat.S_ISREG(info) and info & 0o111 for info in found):
        return f"which is no executable file in {tree.what}"
    return None
