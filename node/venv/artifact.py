"""Files of an installed engine, in an image or below a folder, read without running anything."""

from __future__ import annotations

import base64
import glob
import grp
import hashlib
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator
from typing import Any

from node.core import files as core_files
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import store
from node.venv import versions
from node.venv.versions import masked, site_packages

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
    for path in store.image_file_matches(layers, pattern):
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
        raw = handle.read(store.MAX_IMAGE_FILE_BYTES + 1)
    contains = probe["contains"]
    text = None
    if probe["content"] and len(raw) <= MAX_CONTENT:
        text = masked(raw.decode("utf-8", "replace"))
    return {
        "path": name,
        "size": os.stat(path).st_size,
        "sha256": hashlib.sha256(raw).hexdigest()
        if len(raw) <= store.MAX_IMAGE_FILE_BYTES
        else None,
        "count": None if contains is None else raw.count(contains.encode()),
        "content": text,
    }


def inspect_artifact(request: Json) -> Json:
    """Gives what each probe finds. Raises NodeError when the image or folder cannot be read."""
    body = _parse_request(request)
    layers: list[str] = []
    if body["image"]:
        try:
            layers = store.layers(body["image"])
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


# What the files that patches are about hold now, and whether a patch tool has anything to do.

_ID = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
MAX_FILE = 4 << 20
# Larger ones are shared libraries; a patch tool edits text.
MAX_TREE_FILE = 4 << 20
MAX_TREE = 256 << 20


def target(path: str, venv: str | None, where: str) -> str:
    """Gives a pattern on this host: an absolute one, or one below the venv's site-packages."""
    if path.startswith("/"):
        return validate.path(path, where)
    if not path or path.startswith("-") or ".." in path.split("/"):
        raise validate.bad(f"{where}: {path[:80]!r} is not a path below site-packages")
    if venv is None:
        raise validate.bad(f"{where}: {path[:80]!r} lies below site-packages, and no venv is named")
    folders = site_packages(venv)
    if len(folders) != 1:
        raise NodeError(f"{venv} has {len(folders)} site-packages folders, not one", "no_venv")
    return validate.path(os.path.join(os.path.realpath(folders[0]), path), where)


def _name(value: int, table: str) -> str | None:
    """Gives a user's or group's name, None when the host knows none."""
    try:
        return pwd.getpwuid(value).pw_name if table == "user" else grp.getgrgid(value).gr_name
    except KeyError:
        return None


def _python(path: str) -> str | None:
    """Gives the interpreter of the venv that a file lies in, None when it lies in none."""
    parts = path.split("/")
    for n in range(len(parts) - 1, 0, -1):
        if parts[n] == "lib":
            found = os.path.join("/", *parts[:n], "bin", "python")
            if os.access(found, os.X_OK):
                return found
    return None


def _patch_file(path: str) -> Json:
    """Gives one file: where it really lies, its content, owner, mode and interpreter."""
    path = os.path.realpath(path)
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
        raise NodeError(f"{path} is no plain file of up to {MAX_FILE >> 20} MiB", "not_a_file")
    with open(path, "rb") as file:
        raw = file.read()
    return {
        "path": path,
        "content_base64": base64.b64encode(raw).decode("ascii"),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "owner": _name(info.st_uid, "user"),
        "group": _name(info.st_gid, "group"),
        "python": _python(path),
    }


def scan_tree(tree: str) -> dict[str, Json]:
    """Gives scan_file's description of each file of a tree, caches of bytecode and links aside."""
    found: dict[str, Json] = {}
    for folder, names, files in os.walk(tree):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            row = {} if name.endswith(".pyc") else scan_file(path)
            if row.get("kind") == "file":
                found[path] = row
    return found


def scan_file(path: str) -> Json:
    """Gives atomic.read_entry's description of a file; "absent" and "other" have the kind alone.

    Of one larger than MAX_TREE_FILE size and time stand for the hash.
    """
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return dict(core_files.ABSENT)
    if not stat.S_ISREG(info.st_mode):
        return {"kind": "other"}
    owner = {
        "kind": "file",
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "uid": info.st_uid,
        "gid": info.st_gid,
    }
    if info.st_size > MAX_TREE_FILE:
        return {**owner, "large": [info.st_size, int(info.st_mtime)]}
    with open(path, "rb") as file:
        return {**owner, "sha256": hashlib.sha256(file.read()).hexdigest()}


def read_attributes(paths: list[str]) -> dict[str, dict[str, str]]:
    """Gives the extended attributes of those files that have some."""
    found = {}
    for path in paths:
        with open(path, "rb") as file:
            found[path] = core_files.read_attributes(file.fileno())
    return {path: row for path, row in found.items() if row}


def fingerprint(tree: dict[str, Json], tool: Json) -> str:
    """Gives the hash of a tree's state together with the tool that made it."""
    text = json.dumps([tree, tool["argv"], tool["env"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tool_marker(tool_id: str) -> str:
    """Gives the file that says which tree a tool has left behind."""
    return os.path.join(core_files.state_root(), f"patch-tool-{tool_id}")


def tool_already_applied(tool: Json) -> bool:
    """Gives True when the tree is as the tool's last good run left it."""
    try:
        with open(tool_marker(tool["id"]), encoding="utf-8") as file:
            kept = file.read().strip()
    except FileNotFoundError:
        return False
    return kept == fingerprint(scan_tree(tool["tree"]), tool)


def _word(value: object, where: str, pattern: Any) -> str:
    """Gives a text that matches a pattern in whole."""
    found = validate.text(value, where, 128)
    if not pattern.match(found):
        raise validate.bad(f"{where}: {found[:80]!r} is not allowed")
    return found


def parse_tool(value: object, where: str) -> Json:
    """Gives a tool with every value checked, its tree as a folder of this host."""
    allowed = ("id", "argv", "tree", "env", "timeout_s", "venv")
    row = validate.keys(value, where, allowed, ("id", "argv", "tree"))
    venv = None if row.get("venv") is None else validate.path(row["venv"], f"{where}.venv")
    env = validate.keys(row.get("env", {}), f"{where}.env", row.get("env", {}))
    tree = target(validate.text(row["tree"], f"{where}.tree"), venv, f"{where}.tree")
    if not os.path.isdir(tree):
        raise NodeError(f"{tree} is not a folder", "no_tree", "see the recipe's patch_tools")
    argv = [word.replace("{venv}", venv or "{venv}") for word in validate.argv(row["argv"], "argv")]
    return {
        "id": _word(row["id"], f"{where}.id", _ID),
        "argv": argv,
        "tree": os.path.realpath(tree),
        "env": {
            _word(k, f"{where}.env", _VARIABLE): validate.text(v, f"{where}.env")
            for k, v in env.items()
        },
        "timeout_s": validate.number(row.get("timeout_s", 600), f"{where}.timeout_s", 1, 3600),
    }


def inspect_patches(request: Json) -> Json:
    """Gives for each path the files that it matches, and for each tool whether it has been done."""
    body = validate.keys(request, "request", ("venv", "paths", "tools", "package"), ("paths",))
    venv = None if body.get("venv") is None else validate.path(body["venv"], "venv")
    answers: list[Json] = []
    for n, row in enumerate(validate.array(body["paths"], "paths", 100)):
        pattern = target(validate.text(row, f"paths[{n}]"), venv, f"paths[{n}]")
        paths = sorted({os.path.realpath(p) for p in glob.glob(pattern) if os.path.isfile(p)})
        # one file is right; of several only the names are told
        files = [_patch_file(paths[0])] if len(paths) == 1 else []
        answers.append({"path": row, "matches": paths[:20], "file": files[0] if files else None})
    tools = []
    for n, row in enumerate(validate.array(body.get("tools", []), "tools", 20)):
        tool = parse_tool(row, f"tools[{n}]")
        tools.append({"id": tool["id"], "done": tool_already_applied(tool)})
    version = None
    if venv is not None and body.get("package") is not None:
        found = versions.installed_rows(venv, [_word(body["package"], "package", _ID)])
        version = found[0]["version"] if len(found) == 1 else None
    return {"files": answers, "tools": tools, "version": version}


def read_tree(paths: list[str]) -> dict[str, bytes]:
    """Gives the content of files. Raises NodeError when they are too much to keep."""
    kept: dict[str, bytes] = {}
    size = 0
    for path in paths:
        with open(path, "rb") as file:
            kept[path] = file.read()
        size += len(kept[path])
        if size > MAX_TREE:
            raise NodeError(f"more than {MAX_TREE >> 20} MiB of files to keep", "too_large")
    return kept


def save_tool_marker(tool: Json) -> None:
    """Keep that the tree is now as the tool leaves it."""
    text = fingerprint(scan_tree(tool["tree"]), tool) + "\n"
    core_files.save_private(tool_marker(tool["id"]), text.encode())
