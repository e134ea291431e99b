"""What a weights folder holds, and the sha256 of each file for as long as size and mtime hold.

The hashes lie beside the weights in `.rigbook/manifest.json`, so that nothing is hashed twice;
whoever edits a file changes its mtime, and its hash is forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

from node.errors import Json, NodeError

OWN = ".rigbook"
MAX_FILES = 20000
# Read for the quick check: the header of a safetensors file and its end.
PROBE = 64 << 10
_CHUNK = 4 << 20
_NAMES = 4


class Folder:
    """A weights folder, or one file as a folder of one. `only` is that file's name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.only: Optional[str] = None
        if os.path.isfile(path) or path.endswith((".gguf", ".safetensors")):
            self.path, self.only = os.path.split(path)

    def own(self, name: str = "") -> str:
        """Gives a path in our own folder beside the weights."""
        return os.path.join(self.path, OWN, name) if name else os.path.join(self.path, OWN)

    def names(self) -> List[str]:
        """Gives the files, sorted; hidden ones are left out. Raises NodeError for too many.

        A link counts where it leads to a file inside the folder.
        """
        if self.only is not None:
            there = os.path.isfile(os.path.join(self.path, self.only))
            return [self.only] if there else []
        real = os.path.realpath(self.path)
        found: List[str] = []
        for here, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for name in names:
                path = os.path.join(here, name)
                inside = os.path.realpath(path).startswith(real + "/")
                if not name.startswith(".") and os.path.isfile(path) and inside:
                    found.append(os.path.relpath(path, self.path))
            if len(found) > MAX_FILES:
                raise NodeError(f"{self.path} holds more than {MAX_FILES} files", "weights")
        return sorted(found)

    def list(self) -> List[Json]:
        """Gives each file: name, size, mtime_ns, probe, and its sha256 where it is known."""
        known = self._known()
        with ThreadPoolExecutor(_NAMES) as pool:
            return list(pool.map(lambda name: self._file(name, known), self.names()))

    def _file(self, name: str, known: Dict[str, Any]) -> Json:
        path = os.path.join(self.path, name)
        with open(path, "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            probe = hashlib.sha256(file.read(PROBE))
            file.seek(max(0, info.st_size - PROBE))
            probe.update(file.read(PROBE))
        row = {"name": name, "size": info.st_size, "mtime_ns": info.st_mtime_ns}
        had = known.get(name, {})
        holds = (had.get("size"), had.get("mtime_ns")) == (info.st_size, info.st_mtime_ns)
        return {**row, "probe": probe.hexdigest(), "sha256": had.get("sha256") if holds else None}

    def _known(self) -> Dict[str, Any]:
        """Gives what the manifest says; a damaged one says nothing."""
        try:
            with open(self.own("manifest.json"), encoding="utf-8") as file:
                rows = json.load(file)["files"]
            return {str(row["name"]): row for row in rows}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def save(self, hashes: Dict[str, str]) -> None:
        """Writes the manifest: what is there, with these hashes added to those that still hold."""
        rows = [{key: row[key] for key in ("name", "size", "mtime_ns", "sha256")}
                for row in self.list()]  # fmt: skip
        for row in rows:
            row["sha256"] = hashes.get(str(row["name"])) or row["sha256"]
        self.make_own()
        temp = self.own("manifest.json.new")
        with open(temp, "w", encoding="utf-8") as file:
            json.dump({"format": 1, "files": rows}, file, indent=0)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temp, self.own("manifest.json"))

    def make_own(self) -> None:
        """Makes our own folder beside the weights, root's. Raises NodeError for a link there."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.own(), 0o755)
        info = os.lstat(self.own())
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise NodeError(f"{self.own()} is not a folder of our own", "unsafe_folder",
                            f"look at it: ls -ld {self.own()}")  # fmt: skip


def sha256_of(path: str, tick: Callable[[int], None] = lambda count: None) -> str:
    """Gives a file's sha256; `tick` gets the bytes read."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
            tick(len(chunk))
    return digest.hexdigest()


def same(one: Json, other: Json) -> bool:
    """Gives whether two listed files are the same: by sha256 where both are known, else quickly."""
    if one["size"] != other["size"]:
        return False
    if one["sha256"] and other["sha256"]:
        return bool(one["sha256"] == other["sha256"])
    return bool(one["probe"] == other["probe"])
