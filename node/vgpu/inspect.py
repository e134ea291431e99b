"""library look: the library folder as it is, who maps what of it, and what the plugin says."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import re
import stat
from typing import Any

from node.core import mapped_files, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.kube import kubectl
from node.vgpu import elf, state

_BASE = re.compile(r"^[A-Za-z0-9._+-]{1,80}$")


def guarded(read: Any) -> Any:
    """Gives what `read` gives, or why it cannot be read."""
    try:
        return read()
    except (CannotRead, NodeError) as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"unreadable": io_reason(error)}
    except (ValueError, KeyError, TypeError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def inspect_library(request: Any) -> Json:
    """Gives the folder's libraries, their mappers, the preload files, plugins, pods and our state.

    Request: `folder`, `base` (`libvgpu.so`), `kubectl` and `kubeconfig` (null: not asked).
    """
    body = validate.keys(
        request, "request", ("folder", "base", "kubectl", "kubeconfig"), ("folder",)
    )
    folder = validate.path(body["folder"], "folder")
    base = validate.text(body.get("base") or "libvgpu.so", "base", 80)
    if not _BASE.match(base):
        raise validate.bad(f"base: {base!r} is not a file's name")
    words = body.get("kubectl")
    where = body.get("kubeconfig")
    if words is not None:
        validate.choice(words, "kubectl", kubectl.CLIENTS)
    with open("/proc/self/exe", "rb") as file:
        bits, machine = elf.machine_of(file.read(64))
    preload = ("/etc/ld.so.preload", os.path.join(folder, "ld.so.preload"))
    return {
        "folder": folder,
        "host": {"bits": bits, "machine": machine},
        "files": guarded(lambda: files(folder, base)),
        "preload": {path: guarded(lambda path=path: text_of(path)) for path in preload},
        "mappers": guarded(lambda: mapped_files.mappers(base)),
        "plugins": None if words is None else guarded(lambda: plugins(words, where, folder)),
        "pods": None if words is None else guarded(lambda: pods(words, where)),
        "state": guarded(state.load),
    }


def text_of(path: str) -> str | None:
    """Gives a small text file's content; None where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def files(folder: str, base: str) -> list[Json]:
    """Gives the folder's entries named `base` or `base.VERSION`, with what ELF says of each."""
    found: list[Json] = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    for name in names:
        if name == base or name.startswith(base + "."):
            found.append(_file(os.path.join(folder, name)))
    return found


def _file(path: str) -> Json:
    """Gives one entry: kind, owner, hash and its own tables (`elf`), or why they are not read."""
    info = os.lstat(path)
    row: Json = {
        "path": path,
        "kind": "file" if stat.S_ISREG(info.st_mode) else "other",
        "size": info.st_size,
        "inode": info.st_ino,
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "uid": info.st_uid,
        "gid": info.st_gid,
        "owner": _name(lambda: pwd.getpwuid(info.st_uid).pw_name, info.st_uid),
        "group": _name(lambda: grp.getgrgid(info.st_gid).gr_name, info.st_gid),
        "sha256": None,
        "elf": None,
        "broken": None,
    }
    if row["kind"] != "file":
        row["broken"] = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "not a plain file"
        return row
    if info.st_size > elf.MAX_BYTES:
        row["broken"] = f"larger than {elf.MAX_BYTES >> 20} MiB"
        return row
    with open(path, "rb") as file:
        raw = file.read()
    row["sha256"] = hashlib.sha256(raw).hexdigest()
    row.update(elf.described(raw))
    return row


def _name(find: Any, number: int) -> str:
    """Gives a user's or group's name, or its number where it has none."""
    try:
        return str(find())
    except KeyError:
        return str(number)


def plugins(words: Any, where: Any, folder: str) -> list[Json]:
    """Gives the containers of DaemonSets that mount the folder or one above it from the host."""
    found: list[Json] = []
    client = kubectl.client(words, where)
    for item in client.json(["get", "daemonsets", "--all-namespaces"])["items"]:
        spec = item["spec"]["template"]["spec"]
        hosts = [(v.get("hostPath") or {}).get("path") for v in spec.get("volumes") or []]
        inside = folder + "/"
        mounted = [path for path in hosts if path and inside.startswith(path.rstrip("/") + "/")]
        if not mounted:
            continue
        for box in spec.get("containers") or []:
            found.append(
                {
                    "namespace": item["metadata"]["namespace"],
                    "name": item["metadata"]["name"],
                    "container": box["name"],
                    "image": str(box.get("image", "")),
                    "args": [str(w) for key in ("command", "args") for w in box.get(key) or []],
                    "mounts": mounted,
                }
            )
    return found


def pods(words: Any, where: Any) -> dict[str, Json]:
    """Gives the cluster's pods by uid: namespace, name, phase, and who owns each."""
    found: dict[str, Json] = {}
    client = kubectl.client(words, where)
    for item in client.json(["get", "pods", "--all-namespaces"])["items"]:
        meta = item["metadata"]
        owner = (meta.get("ownerReferences") or [{}])[0]
        found[meta["uid"]] = {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "phase": str((item.get("status") or {}).get("phase", "")),
            "owner_kind": str(owner.get("kind", "")),
            "owner": str(owner.get("name", "")),
        }
    return found
