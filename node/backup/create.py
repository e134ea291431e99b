"""tree backup: an installation's own files, whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from node.backup import payload as backup_payload
from node.backup import store
from node.backup.payload import Reader, Safety
from node.core import errors, files, proc, validate
from node.core.errors import Json, NodeError

# The host's own files in a backup, each as a file: the unit, its drop-ins, environment, launch.
#
# They lie in backups/ID/files under the path that they have on the host, with mode, owner and
# time;
# nobody but root enters the folder. The manifest lists them.

MAX_FILE = MAX_ALL = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Kept(NamedTuple):
    """A file of the host: its bytes, mode and owner, and (in nanoseconds) its time."""

    raw: bytes
    mode: int
    uid: int
    gid: int
    mtime: int

    def row(self) -> Json:
        """Gives the file as the manifest lists it."""
        return {"sha256": hashlib.sha256(self.raw).hexdigest(), "bytes": len(self.raw),
                "mode": f"{self.mode:04o}", "uid": self.uid, "gid": self.gid}  # fmt: skip


Found = dict[str, Kept | None]


def collect_files(value: Any) -> Found:
    """Gives files of the host by path (of a folder: those in it); None for one that is not there.

    Raises NodeError (`bad_request`, `too_large`).
    """
    found: Found = {}
    for n, row in enumerate(validate.array(value, "files", 50)):
        path = validate.path(row, f"files[{n}]")
        names = [path]
        if os.path.isdir(path):
            names = sorted(os.path.join(path, name) for name in os.listdir(path))[:50]
        for name in names:
            found[name] = read_kept(name)
    if sum(len(kept.raw) for kept in found.values() if kept) > MAX_ALL:
        raise NodeError("the host's files are larger than 1 MiB together", "too_large")
    return found


def read_kept(path: str) -> Kept | None:
    """Gives a file of the host as it is now, None for what is no file."""
    return _read(path) if os.path.isfile(path) else None


def _read(path: str) -> Kept:
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        if info.st_size > MAX_FILE:
            raise NodeError(f"{path} is larger than 1 MiB", "too_large")
        mode = stat.S_IMODE(info.st_mode)
        return Kept(file.read(), mode, info.st_uid, info.st_gid, info.st_mtime_ns)


def kept_rows(found: Found) -> Json:
    """Gives the files as the manifest lists them, by path."""
    return {path: kept.row() if kept else None for path, kept in found.items()}


def write_kept(folder: str, found: Found) -> Json:
    """Write the files into a new folder; gives the manifest's list. They are on the disk then."""
    os.mkdir(folder, 0o700)
    for path, kept in found.items():
        if kept is None:
            continue
        place = folder + path
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        fd = os.open(place, _NEW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(kept.raw)
            file.flush()
            os.fchown(fd, kept.uid, kept.gid)
            os.fchmod(fd, kept.mode)
            os.utime(fd, ns=(kept.mtime, kept.mtime))
            os.fsync(fd)
    for above, _, _ in os.walk(folder):
        os.chmod(above, 0o700)  # whatever the umask
        files.sync_folder(above)
    return kept_rows(found)


def check_files(backup: str, manifest: Json, folder: str = "") -> Found:
    """Gives the files that a backup holds, in another `folder` than its own. Raises NodeError
    (`backup_damaged`) unless each is as the manifest lists it, and no other lies there.
    """
    folder = folder or store.of(backup, store.FILES)
    found: Found = {}
    for path, row in manifest["files"].items():
        try:
            found[path] = None if row is None else _read(folder + path)
        except OSError as error:
            raise store.damaged(backup, f"files{path} cannot be read: {error.strerror}") from None
    if kept_rows(found) != manifest["files"]:
        wrong = next(
            path for path, row in kept_rows(found).items() if row != manifest["files"][path]
        )
        raise store.damaged(backup, f"files{wrong} is not as it was recorded")
    there = {os.path.join(above, name) for above, _, names in os.walk(folder) for name in names}
    more = there - {folder + path for path, row in manifest["files"].items() if row}
    if more:
        raise store.damaged(backup, f"{min(more)} is not in its manifest")
    return found


# What `tree backup` is asked for, every value checked.

MAX_DOCUMENTS = 1 << 20
BESIDE = ("documents", "documents_sha256", "files", "dry")


def parse_tree(value: Any, where: str = "tree") -> str:
    """Gives a tree's path. Raises NodeError for one that nobody may take for an installation."""
    path = validate.path(value, where)
    if path.count("/") < 2:
        raise validate.bad(f"{where}: {path} is a folder of the system, not an installation")
    for mine in (files.state_root(), os.path.realpath(files.state_root())):
        if path == mine or mine.startswith(path + "/") or path.startswith(mine + "/"):
            raise validate.bad(f"{where}: {path} and the backups' own folder hold each other")
    return path


def documents(given: Any) -> Json:
    """Gives the caller's documents, which are kept in the manifest."""
    if not isinstance(given, dict):
        raise validate.bad("documents is not an object")
    for name in given:
        validate.text(name, "documents: a name", 200)
    if len(json.dumps(given)) > MAX_DOCUMENTS:
        raise validate.bad("documents are larger than 1 MiB together")
    return given


def request_digest(given: Json) -> str:
    """Gives the hash of the caller's documents."""
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode("utf-8")).hexdigest()


def beside(body: Json) -> Json:
    """Gives what of a request, with the keys BESIDE, goes beside a payload.

    With `dry` the documents may be given by their hash alone: a reading command's line can be
    read by every user of the host.
    """
    given = documents(body.get("documents", {}))
    known = request_digest(given)
    if body.get("documents_sha256") is not None:
        known = validate.sha256(body["documents_sha256"], "documents_sha256")
    return {
        "dry": validate.boolean(body.get("dry", False), "dry"),
        "digest": known,
        "documents": given,
        "files": collect_files(body.get("files", [])),
    }


def parse_backup(request: Json) -> Json:
    """Gives a backup's request; `tree` as it was named, `real` as the folder behind its links."""
    body = validate.keys(request, "request", (*BESIDE, "tree"), ("tree",))
    path = parse_tree(body["tree"])
    with files.Folder(path):
        pass  # nobody else may swap what is read here
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_tree",
                        "name the folder of the installation")  # fmt: skip
    parse_tree(real)
    return {
        **beside(body),
        "tree": path,
        "real": real,
        "link": os.readlink(path) if os.path.islink(path) else None,
    }


# What a tree is, read from its files alone: nothing of it is run.

_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", re.M)
_DRIVER = re.compile(r"Kernel Module(?: for \w+)?\s+([0-9.]+)")
_USERINFO = re.compile(r"//[^/@\s]*@")
# packages whose names differ between builds of one program
_VLLM = re.compile(r"^vllm(-cpu)?$")


def _plain(name: str) -> str:
    """Gives a package's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _head(path: str) -> dict[str, str]:
    """Gives the `Key: value` lines of METADATA up to the first empty line."""
    found: dict[str, str] = {}
    for line in proc.read_text(path).splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key not in found:
            found[key] = value.strip()
    return found


def packages(root: str) -> list[tuple[str, str, str]]:
    """Gives name, version and origin (a URL without its user, or "") of what is installed."""
    rows: list[tuple[str, str, str]] = []
    pattern = os.path.join(glob.escape(root), "lib*", "python3*", "site-packages", "*.dist-info")
    for folder in sorted({os.path.realpath(path) for path in glob.glob(pattern)}):
        head = _head(os.path.join(folder, "METADATA"))
        name, version = head.get("Name"), head.get("Version")
        if not name or not version:
            continue
        origin = ""
        text = proc.read_text(os.path.join(folder, "direct_url.json"))
        with contextlib.suppress(ValueError, KeyError, TypeError):
            origin = str(json.loads(text)["url"])
        rows.append((name, version, _USERINFO.sub("//", origin)))
    return sorted(rows, key=lambda row: _plain(row[0]))


def freeze(rows: list[tuple[str, str, str]]) -> list[str]:
    """Gives the packages as pip freeze prints them."""
    return [f"{name} @ {url}" if url else f"{name}=={version}" for name, version, url in rows]


def _settings(root: str) -> dict[str, str]:
    """Gives pyvenv.cfg as a map, empty where the tree is no venv."""
    lines = proc.read_text(os.path.join(root, "pyvenv.cfg")).splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def interpreter(root: str) -> Json | None:
    """Gives the venv's interpreter: its link, where that ends, and whether inside the tree.

    None where the tree has no bin/python. `base` is what the host has to have, `version` what
    pyvenv.cfg says, e.g. 3.12.4.
    """
    link = os.path.join(root, "bin", "python")
    if not os.path.lexists(link):
        return None
    settings = _settings(root)
    real = os.path.realpath(link)
    base = link
    # the first of the links that leaves the tree: what the host has to have
    while base.startswith(root + "/") and os.path.islink(base):
        base = os.path.normpath(os.path.join(os.path.dirname(base), os.readlink(base)))
    version = settings.get("version") or settings.get("version_info") or ""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return {
        "link": os.readlink(link) if os.path.islink(link) else None,
        "base": base,
        "real": real,
        "inside": real.startswith(os.path.realpath(root) + "/"),
        "there": os.path.isfile(real) and os.access(real, os.X_OK),
        "home": settings.get("home"),
        "version": found[0] if found else None,
    }


def _torch(root: str, version: str | None) -> Json:
    """Gives torch's version and the CUDA variant that it was built for ("cpu" for none)."""
    if version is None:
        return {"torch": None, "cuda": None}
    pattern = os.path.join(glob.escape(root), "lib*", "python3*", "site-packages", "torch",
                           "version.py")  # fmt: skip
    texts = [proc.read_text(path) for path in sorted(glob.glob(pattern))]
    cuda = next((found[1] for found in map(_CUDA.search, texts) if found), None)
    local = version.partition("+")[2]
    return {"torch": version, "cuda": cuda or local or None}


def _driver() -> str | None:
    """Gives the running NVIDIA kernel module's version, or None."""
    text = proc.read_text("/sys/module/nvidia/version")
    if text:
        return text
    found = _DRIVER.search(proc.read_text("/proc/driver/nvidia/version"))
    return found[1] if found else None


def host_facts() -> Json:
    """Gives what tells one host from another, and its kernel and driver."""
    name = os.uname()
    return {
        "hostname": socket.gethostname(),
        "machine_id": proc.read_text("/etc/machine-id") or None,
        "boot_id": proc.boot_id(),
        "arch": name.machine,
        "kernel": name.release,
        "driver": _driver(),
    }


def collect_contents(root: str) -> Json:
    """Gives the facts of a tree and its host."""
    rows = packages(root)
    versions: dict[str, Any] = {_plain(name): version for name, version, _ in rows}
    vllm = next((version for name, version in versions.items() if _VLLM.match(name)), None)
    return {
        "host": host_facts(),
        "interpreter": interpreter(root),
        "versions": {"vllm": vllm, **_torch(root, versions.get("torch"))},
        "freeze": freeze(rows),
    }


# beside what is needed: the file system's own, and other programs that write meanwhile
MARGIN_SHARE, MARGIN_BYTES = 0.02, 256 << 10
# longer than the clock of a file's times stands still
TICK_S = 0.02


def backup(request: Json) -> Json:
    """Back a tree up; gives its id, or the id of a verified backup that holds it already.

    Raises NodeError when there is no room, when the tree changes meanwhile, and when tar fails;
    nothing is left of the backup then.
    """
    wanted = parse_backup(request)
    backup_payload.compressors()
    if wanted["dry"]:
        return _dry(wanted)
    with store.Held():
        store.sweep()
        began = time.time()
        listing = store.walk(wanted["real"])
        facts = collect_contents(wanted["real"])
        digest = listing.sha256()
        twin = find_twin(wanted, digest)
        if twin and twin.manifest and is_same(twin.manifest, wanted, facts):
            detail = f"{twin.id} is verified and holds the same files; nothing was stored"
            return answer(twin.manifest, False, detail, began)
        check_room(store.folder(), 0 if twin else listing.apparent, 16)
        # whatever is edited from here on has later times than any that were read
        time.sleep(TICK_S)
        backup_id = store.new_id(wanted["tree"])

        def make(partial: str) -> Json:
            made = _make(backup_id, partial, wanted, listing, twin)
            return {**made, "facts": facts, "tree_sha256": digest, "seconds": time.time() - began}

        manifest = whole(backup_id, make)
    detail = f"the files are those of {twin.id}, which shares them" if twin else "stored"
    return answer(manifest, True, detail, began)


def whole(backup_id: str, make: Callable[[str], Json]) -> Json:
    """Have a backup's folder filled, which has its name once it is whole; gives its manifest.

    `make` fills the folder that it gets and gives the manifest. Nothing is left on an error.
    """
    partial = store.of(backup_id) + store.PARTIAL
    os.mkdir(partial, 0o700)
    try:
        manifest = make(partial)
        store.save_manifest(os.path.join(partial, store.MANIFEST), manifest)
        files.sync_folder(partial)
        os.rename(partial, store.of(backup_id))
        files.sync_folder(store.folder())
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _dry(wanted: Json) -> Json:
    """Gives whether a backup would store something; reads only."""
    listing = store.walk(wanted["real"])
    facts = collect_contents(wanted["real"])
    twin = find_twin(wanted, listing.sha256())
    known = bool(twin and twin.manifest and is_same(twin.manifest, wanted, facts))
    return {"backup": twin.id if twin and known else None, "stored": not known,
            "tree": wanted["tree"], "members": len(listing.lines),
            "apparent_bytes": listing.apparent, "shares": twin.id if twin else None,
            "versions": facts["versions"]}  # fmt: skip


def _make(
    backup_id: str,
    partial: str,
    wanted: Json,
    listing: store.Listing,
    twin: store.Backup | None,
) -> Json:
    """Write the payload and the members; gives the manifest, not yet written."""
    if twin and twin.manifest:
        parts = linked(twin.id, twin.manifest, partial)
    else:
        parts = _pack(partial, wanted, listing)
    _require_unedited(wanted, listing)
    return {
        "id": backup_id,
        **kept(partial, wanted),
        **parts,
        **store.as_json(listing),
    }


def kept(partial: str, wanted: Json) -> Json:
    """Write what goes beside a payload; gives the manifest's words for what is backed up."""
    return {
        "created_unix_s": time.time(),
        "tree": wanted["tree"],
        "real": wanted["real"],
        "link": wanted["link"],
        "documents": {"given": wanted["documents"]},
        "files": write_kept(os.path.join(partial, store.FILES), wanted["files"]),
    }


def linked(backup: str, manifest: Json, partial: str) -> Json:
    """Link another backup's payload and lists into a folder; gives its manifest's words for it."""
    for name in store.parts(manifest):
        os.link(store.of(backup, name), os.path.join(partial, name))
    return {key: manifest[key] for key in ("format", "payload", "members")}


def _pack(partial: str, wanted: Json, listing: store.Listing) -> Json:
    """Write the payload, and the list of its members with the hash of each file's bytes."""
    reader = Reader(listing.members(), Safety())
    note = os.path.join(partial, store.NOTE)
    progress = backup_payload.Progress(f"backup of {wanted['tree']}", listing.apparent, note)
    target = os.path.join(partial, store.PAYLOAD)
    try:
        payload = backup_payload.pack(wanted["real"], list(listing.stamps), target, progress,
                                reader.feed, stop)  # fmt: skip
        reader.finish()
    except NodeError as error:
        if error.code == "backup_damaged":  # tar met another file than the one that was listed
            _require_unedited(wanted, listing)
        raise
    progress.over()
    lines = listing.hashed(reader.hashes)
    members = backup_payload.write_lines(os.path.join(partial, store.MEMBERS), lines)
    return {"format": store.FORMAT, "payload": payload, "members": members}


def _require_unedited(wanted: Json, listing: store.Listing) -> None:
    """Raise NodeError (`tree_changing`) when the tree is not what was listed any more."""
    edited = store.edited_since(listing)
    if edited:
        raise NodeError(f"{wanted['real']} changed while it was read: {edited}",
                        "tree_changing", "stop what changes it, then run it again")  # fmt: skip


def stop() -> None:
    """Raise NodeError when a signal asked to end."""
    number = errors.interrupted()
    if number:
        raise NodeError(f"ended by {number}; nothing of the backup is left", "interrupted",
                        "run it again")  # fmt: skip


def check_room(folder: str, need: int, entries: int) -> None:
    """Raise NodeError (`no_room`) when a folder's file system lacks bytes or entries."""
    seen = os.statvfs(folder)
    need += int(need * MARGIN_SHARE) + MARGIN_BYTES
    free = seen.f_bavail * seen.f_frsize
    if free < need:
        raise NodeError(
            f"no room in {folder}: {free / 2**20:.1f} MiB are free, {need / 2**20:.1f} MiB are"
            " needed at most", "no_room", "make room, or: rignode tree prune '{\"keep\": 2}'",
        )  # fmt: skip
    if seen.f_files and seen.f_favail < entries:
        raise NodeError(f"no room in {folder}: {seen.f_favail} inodes are free, {entries} are"
                        " needed", "no_room", "make room there")  # fmt: skip


def find_twin(wanted: Json, digest: str) -> store.Backup | None:
    """Gives the newest verified backup of the very same files, or None."""
    for row in reversed(store.all_backups()):
        if not row.manifest or not row.verified or row.problem:
            continue
        if (row.manifest["real"], row.manifest["tree_sha256"]) == (wanted["real"], digest):
            return row
    return None


def is_same(manifest: Json, wanted: Json, facts: Json) -> bool:
    """Gives True when all that stands beside the files is the same, too (but the boot)."""
    # 0.2.0 kept more
    old, new = {key: manifest["facts"].get(key) for key in facts}, dict(facts)
    for row in (old, new):
        row["host"] = {key: value for key, value in row["host"].items() if key != "boot_id"}
    given = request_digest(manifest["documents"]["given"])
    mine = (wanted["tree"], wanted["link"], wanted["digest"], kept_rows(wanted["files"]), new)
    return mine == (manifest["tree"], manifest["link"], given, manifest["files"], old)


def answer(manifest: Json, stored: bool, detail: str, began: float) -> Json:
    """Gives what became of a backup."""
    return {
        "backup": manifest["id"],
        "stored": stored,
        "detail": detail,
        "tree": manifest["tree"],
        "members": manifest["members"]["count"],
        "apparent_bytes": manifest["apparent_bytes"],
        "bytes": manifest["payload"]["bytes"],
        "sha256": manifest["payload"]["sha256"],
        "versions": manifest["facts"]["versions"],
        "setuid": manifest["setuid"],
        "took_s": round(time.time() - began, 2),
    }
