"""What the files that patches are about hold now, and whether a patch tool has anything to do."""

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
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.files import atomic, attributes, state_dir
from node.venv import pip_plan
from node.venv.pip_plan import site_packages

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


def _file(path: str) -> Json:
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


def scan(tree: str) -> dict[str, Json]:
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
        return dict(atomic.ABSENT)
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
            found[path] = attributes.read(file.fileno())
    return {path: row for path, row in found.items() if row}


def fingerprint(tree: dict[str, Json], tool: Json) -> str:
    """Gives the hash of a tree's state together with the tool that made it."""
    text = json.dumps([tree, tool["argv"], tool["env"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tool_marker(tool_id: str) -> str:
    """Gives the file that says which tree a tool has left behind."""
    return os.path.join(state_dir.root(), f"patch-tool-{tool_id}")


def tool_already_applied(tool: Json) -> bool:
    """Gives True when the tree is as the tool's last good run left it."""
    try:
        with open(tool_marker(tool["id"]), encoding="utf-8") as file:
            kept = file.read().strip()
    except FileNotFoundError:
        return False
    return kept == fingerprint(scan(tool["tree"]), tool)


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
        files = [_file(paths[0])] if len(paths) == 1 else []
        answers.append({"path": row, "matches": paths[:20], "file": files[0] if files else None})
    tools = []
    for n, row in enumerate(validate.array(body.get("tools", []), "tools", 20)):
        tool = parse_tool(row, f"tools[{n}]")
        tools.append({"id": tool["id"], "done": tool_already_applied(tool)})
    version = None
    if venv is not None and body.get("package") is not None:
        found = pip_plan.installed(venv, [_word(body["package"], "package", _ID)])
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
    text = fingerprint(scan(tool["tree"]), tool) + "\n"
    atomic.save_private(tool_marker(tool["id"]), text.encode())
