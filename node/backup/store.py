"""The folder of the backups: one folder each, whole once its manifest is in place.

- backups/ID/payload.tar.zst: the members, compressed
- backups/ID/members.jsonl: one line a member, in the payload's order
- backups/ID/files/: the host's own files, each under its path
- backups/ID/manifest.json: what it is; sealed by a hash of its own, written last
- backups/ID/verified.json: when the payload was last read back, and what came of it
- backups/ID.partial/: being made, or being removed
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from node.change import journal
from node.core import files as core_files
from node.core import proc, validate
from node.core.errors import Json, NodeError

FORMAT = 2
# what 0.2.0 made beside, and this program does not read: base and changes, each in a tar of its
# own; an image
INCREMENTAL, IMAGE = 3, 4
PARTIAL = ".partial"
ID = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9A-Za-z._-]{1,40}-[0-9a-f]{4}$")
PAYLOAD, MEMBERS, MANIFEST, VERIFIED, NOTE, FILES = (
    "payload.tar.zst", "members.jsonl", "manifest.json", "verified.json", "progress",
    "files")  # fmt: skip
_KEYS = ("format", "id", "created_unix_s", "tree", "real", "payload", "members",
         "tree_sha256", "documents", "files", "facts", "seal")  # fmt: skip


def folder() -> str:
    """Gives the folder of all backups."""
    return os.path.join(core_files.state_root(), "backups")


def of(backup: str, *names: str) -> str:
    """Gives a path in a backup's folder."""
    return os.path.join(folder(), backup, *names)


def new_id(tree: str) -> str:
    """Gives a fresh id: UTC time, the tree's own name, four random digits; call it under the
    exclusive lock, so that no other backup takes it meanwhile.
    """
    name = re.sub(r"[^0-9A-Za-z._-]", "_", os.path.basename(tree))[:40]
    head = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}"
    while os.path.lexists(of(found := f"{head}-{secrets.token_hex(2)}")):
        pass  # several of one second
    return found


def checked_id(value: Any, where: str = "backup") -> str:
    """Gives a backup's id, which is also its folder's name."""
    text = validate.text(value, where, 80)
    if not ID.match(text):
        raise validate.bad(f"{where}: {text[:60]!r} is not the id of a backup")
    return text


class Held(core_files.FileLock):
    """The backups' own lock, as a context manager: exclusive, or shared for readers.

    It is flock on the folder, so it ends with its process: under the exclusive one, whatever is
    partial belongs to nobody that lives.
    """

    def __init__(self, shared: bool = False, wait_s: float = 2.0) -> None:
        super().__init__(wait_s, shared)

    def path(self) -> str:
        """Gives the folder of the backups."""
        core_files.ensure_state()
        private_folder(folder())
        return folder()

    def refused(self, said: str) -> NodeError:
        """Gives the error of another process that works on them."""
        return NodeError("another process works on the backups of this host", "locked",
                         "wait for it; see: rignode tree list")  # fmt: skip


def busy() -> bool:
    """Gives whether somebody works on the backups now; writes nothing."""
    return core_files.held_by(folder(), shared=False) is not None


def private_folder(path: str) -> None:
    """Make a folder of ours, 0700. Raises NodeError when something else is there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        info = os.lstat(path)
        if not os.path.isdir(path) or os.path.islink(path) or info.st_uid != os.geteuid():
            raise NodeError(f"{path} is not a folder of our own", "unsafe_state") from None
        if info.st_mode & 0o077:
            os.chmod(path, 0o700)
    else:
        core_files.sync_folder(os.path.dirname(path))


def sweep() -> list[str]:
    """Remove what a kill left half made or half removed; call it under the exclusive lock."""
    gone = [name for name in sorted(os.listdir(folder())) if name.endswith(PARTIAL)]
    for name in gone:
        shutil.rmtree(os.path.join(folder(), name))
    return gone


def remove(backup: str) -> None:
    """Remove a backup; a kill in the midst leaves a partial one, never a hollow whole one."""
    hidden = of(backup) + PARTIAL
    os.rename(of(backup), hidden)
    core_files.sync_folder(folder())
    shutil.rmtree(hidden)


def seal(manifest: Json) -> str:
    """Gives the hash over all of a manifest but its seal."""
    rest = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def save_manifest(path: str, manifest: Json) -> None:
    """Seal a manifest and write it; it is on the disk on return."""
    manifest["seal"] = seal(manifest)
    raw = json.dumps(manifest, indent=1, sort_keys=True).encode("utf-8") + b"\n"
    core_files.save_private(path, raw)


def damaged(backup: str, what: str) -> NodeError:
    """Gives the error for a backup that is not what it was."""
    return NodeError(f"backup {backup}: {what}; it is not used", "backup_damaged",
                     "take another one: rignode tree list")  # fmt: skip


def load(backup: str) -> Json:
    """Gives a backup's manifest. Raises NodeError when there is none, or it was edited."""
    try:
        with open(of(backup, MANIFEST), "rb") as file:
            manifest = json.loads(file.read().decode("utf-8"))
    except FileNotFoundError:
        if os.path.isdir(of(backup)):
            raise damaged(backup, "its manifest is missing") from None
        known = [row.id for row in all_backups()[-5:]]
        raise NodeError(f"no backup {backup}", "no_backup",
                        f"known: {', '.join(known) or 'none'}") from None  # fmt: skip
    except ValueError:
        raise damaged(backup, "its manifest cannot be read") from None
    return checked(backup, manifest)


def parse(backup: str, place: str) -> Json:
    """Gives the manifest of a backup that lies in another folder. Raises NodeError as load."""
    raw = proc.read_bytes(os.path.join(place, MANIFEST))
    try:
        manifest = json.loads((raw or b"").decode("utf-8"))
    except ValueError:
        raise damaged(backup, f"its manifest in {place} cannot be read") from None
    return checked(backup, manifest)


def checked(backup: str, manifest: Any) -> Json:
    """Gives a manifest that was read. Raises NodeError when it is not whole, or was edited; and
    `unknown_format` for a kind that 0.2.0 alone makes and brings back.
    """
    if not isinstance(manifest, dict) or any(key not in manifest for key in _KEYS):
        raise damaged(backup, "its manifest is not whole")
    if manifest["format"] == IMAGE:
        raise damaged(backup, "it is of an image (by hand: zstd -dc payload.tar.zst | docker load)")
    if manifest["format"] not in (FORMAT, INCREMENTAL) or manifest["id"] != backup:
        raise damaged(backup, "its manifest is of another format or of another backup")
    if manifest["seal"] != seal(manifest):
        raise damaged(backup, "its manifest was edited")
    if manifest["format"] == INCREMENTAL:
        raise _of_0_2_0(backup, "is an incremental one")
    # an image has none
    if manifest.get("roots") not in (None, [], ["."]):
        raise _of_0_2_0(backup, "holds single paths")
    found: Json = manifest
    return found


def _of_0_2_0(backup: str, what: str) -> NodeError:
    return NodeError(f"backup {backup} {what}, which only 0.2.0's rignode, or tar, brings back",
                     "unknown_format", "back the tree up anew; with tar: the runbook restore, "
                     "'From a rescue disk'")  # fmt: skip


def parts(manifest: Json) -> dict[str, Json]:
    """Gives the files of a backup that its manifest knows by size and hash."""
    return {PAYLOAD: manifest["payload"], MEMBERS: manifest["members"]}


def parts_bytes(manifest: Json) -> int:
    """Gives the bytes of these files."""
    return sum(row["bytes"] for row in parts(manifest).values())


class Backup(NamedTuple):
    """A backup as the folder holds it; `manifest` None and `problem` for one that cannot be used.

    `verified` is the time at which it was last read back and found whole, 0 when never.
    """

    id: str
    manifest: Json | None
    verified: float
    problem: str


def _verified(backup: str, manifest: Json) -> tuple[float, str]:
    """Gives when a backup was verified, and what a failed look at it said."""
    raw = proc.read_bytes(of(backup, VERIFIED))
    if raw is None:
        return 0.0, ""
    try:
        seen = json.loads(raw.decode("utf-8"))
        if seen["seal"] != manifest["seal"]:
            return 0.0, ""
        return (float(seen["unix_s"]), "") if seen["ok"] else (0.0, str(seen["problem"]))
    except (ValueError, KeyError, TypeError):
        return 0.0, ""


def mark(backup: str, manifest: Json, problem: str) -> None:
    """Note what reading a backup back came to; an empty problem is a whole one."""
    note = {"seal": manifest["seal"], "unix_s": time.time(), "ok": not problem,
            "problem": problem}  # fmt: skip
    core_files.save_private(of(backup, VERIFIED), json.dumps(note).encode("utf-8") + b"\n")


def inspect(backup: str) -> Backup:
    """Gives one backup; its payload's size is compared, its bytes are not read."""
    try:
        manifest = load(backup)
    except NodeError as error:
        return Backup(backup, None, 0.0, str(error))
    for name, part in parts(manifest).items():
        try:
            size = os.lstat(of(backup, name)).st_size
        except FileNotFoundError:
            return Backup(backup, None, 0.0, f"{name} is missing")
        if size != part["bytes"]:
            return Backup(backup, None, 0.0, f"{name} has {size} bytes, not {part['bytes']}")
    verified, problem = _verified(backup, manifest)
    return Backup(backup, manifest, verified, problem)


def all_backups() -> list[Backup]:
    """Gives the backups, oldest first; one that cannot be used is among them."""
    try:
        names = sorted(os.listdir(folder()))
    except FileNotFoundError:
        return []
    rows = [inspect(name) for name in names if ID.match(name)]
    # the id has whole seconds
    rows.sort(key=lambda row: (row.id[:16], (row.manifest or {}).get("created_unix_s", 0.0)))
    return rows


def sharing(payload: str) -> list[Backup]:
    """Gives the backups that hold the payload with this sha256."""
    return [row for row in all_backups()
            if row.manifest and row.manifest["payload"]["sha256"] == payload]  # fmt: skip


def _copies_of(backup: str) -> str:
    """Gives the file in which this host notes the copies of a backup; it outlives the backup."""
    return os.path.join(core_files.state_root(), "copies", backup + ".json")


def copies(backup: str) -> list[Json]:
    """Gives the copies of a backup: `place`, and `unix_s` when it was last read back there."""
    raw = proc.read_bytes(_copies_of(backup))
    try:
        rows = json.loads(raw.decode("utf-8")) if raw else []
        return [{"place": str(row["place"]), "unix_s": float(row["unix_s"])} for row in rows]
    except (ValueError, KeyError, TypeError):
        return []


def note_copy(backup: str, place: str, unix_s: float) -> None:
    """Note that a copy was read back and is whole."""
    rows = [row for row in copies(backup) if row["place"] != place]
    rows.append({"place": place, "unix_s": unix_s})
    private_folder(os.path.dirname(_copies_of(backup)))
    core_files.save_private(_copies_of(backup), json.dumps(rows).encode("utf-8") + b"\n")


def needed_by(backup: str) -> list[str]:
    """Gives the changes that are not settled and name a backup. Raises when the journal is
    damaged: then nobody knows what is needed."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    unsettled = (row for row in changes if row["status"] in ("OPEN", "INCONSISTENT"))
    return [row["id"] for row in unsettled if backup in json.dumps(row)]


# List a tree: every entry with what a restore has to bring back, and what shows an edit.

NS = 10**9
# tar's own letters
FILE, LINK, SYMLINK, FOLDER = "0", "1", "2", "5"
# one encoder for all lines: json.dumps with separators of its own makes one for each
_encode = json.JSONEncoder(separators=(",", ":")).encode
# what shows that an entry was edited: inode, mode, owner, size, mtime and ctime in ns
Stamp = tuple[int, int, int, int, int, int, int]


class Member(NamedTuple):
    """An entry as the payload holds it: its path from the tree's root ("." is the root itself).

    `link` is a symlink's target or the path of the member that a hard link shares; `mtime` is in
    nanoseconds, `xattrs` maps names to base64, `sha256` is of a file's bytes, holes being zeros
    ("" where nobody has read them yet).
    """

    path: str
    type: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    xattrs: dict[str, str]
    sha256: str = ""

    def line(self) -> bytes:
        """Gives the member as its line of members.jsonl."""
        return _encode(self).encode("ascii") + b"\n"


def member(line: bytes) -> Member:
    """Gives the member of a line. Raises ValueError when it is not one."""
    row = json.loads(line.decode("ascii"))
    if not isinstance(row, list) or len(row) != len(Member._fields):
        raise ValueError("not a member")
    return Member(*row)


class Listing:
    """A walk over a tree.

    `stamps` by path and `lines` (of members.jsonl), both in the payload's order; `apparent` are
    the files' bytes, `room` those on a disk.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.lines: list[bytes] = []
        self.stamps: dict[str, Stamp] = {}
        self.apparent = 0
        self.room = 0
        self.setuid: list[str] = []
        self._shared: dict[tuple[int, int], str] = {}
        self._device = os.lstat(root).st_dev

    def members(self) -> Iterator[Member]:
        """Gives the members as they were listed; nobody has read their bytes yet."""
        return map(member, self.lines)

    def hashed(self, hashes: Iterable[str]) -> Iterator[bytes]:
        """Gives the lines with the hashes of the files' bytes, which come in the same order."""
        left = iter(hashes)
        for row in self.members():
            yield row._replace(sha256=next(left)).line() if row.type == FILE else row.line()

    def sha256(self) -> str:
        """Gives one hash over all stamps: equal for a tree in which nothing was touched."""
        digest = hashlib.sha256()
        for path in sorted(self.stamps):
            digest.update(f"{path!a} {self.stamps[path]}\n".encode("ascii"))
        return digest.hexdigest()

    def _is_mounted(self, path: str) -> bool:
        """Gives True for a file that is a mount point of its own, or where nobody can tell."""
        place = os.path.join(os.path.realpath(self.root), path)
        rows = proc.read_text("/proc/self/mountinfo").splitlines()
        # the kernel writes a blank, a tab, a newline and a backslash as octal digits
        points = {row.split()[4].encode().decode("unicode_escape") for row in rows}
        return not points or place in points

    def add(self, path: str, info: os.stat_result) -> None:
        """Take an entry in. Raises NodeError for what no installation holds."""
        kind = stat.S_IFMT(info.st_mode)
        mode = stat.S_IMODE(info.st_mode)
        # on an overlay only folders have the device number of the whole; files have their layer's
        if info.st_dev != self._device and (kind == stat.S_IFDIR or self._is_mounted(path)):
            raise NodeError(f"{self.root}/{path} is on another file system", "tree_mixed",
                            "back up only what lies on one file system")  # fmt: skip
        self.stamps[path] = stamp(info)
        size, link = 0, ""
        place = f"{self.root}/{path}"
        if kind == stat.S_IFREG:
            letter, size = FILE, info.st_size
        elif kind == stat.S_IFDIR:
            letter = FOLDER
        elif kind == stat.S_IFLNK:
            letter = SYMLINK
        else:
            raise NodeError(f"{self.root}/{path} is a device, a pipe or a socket", "tree_mixed",
                            "remove it: no installation holds one")  # fmt: skip
        if kind != stat.S_IFDIR and info.st_nlink > 1:
            first = self._shared.setdefault((info.st_dev, info.st_ino), path)
            if first != path:
                letter, size, link = LINK, 0, first
        self.apparent += size
        # one block for the entry itself; file systems of 4 KiB blocks are the rule
        self.room += (size + 4095) // 4096 * 4096 + (4096 if letter == FOLDER else 256)
        if mode & 0o6000 and letter == FILE:
            self.setuid.append(path)
        if letter == SYMLINK:
            link = os.readlink(place)
        xattrs = {} if letter == LINK else xattrs_of(place)
        row = Member(path, letter, mode, info.st_uid, info.st_gid, size,
                     info.st_mtime_ns, link, xattrs)  # fmt: skip
        self.lines.append(row.line())


def xattrs_of(path: str) -> dict[str, str]:
    """Gives an entry's extended attributes, not through a link."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    if not names:
        return {}
    values = {name: os.getxattr(path, name, follow_symlinks=False) for name in sorted(names)}
    return {name: base64.b64encode(value).decode("ascii") for name, value in values.items()}


def stamp(info: os.stat_result) -> Stamp:
    """Gives what shows that an entry was edited."""
    return (info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_size,
            info.st_mtime_ns, info.st_ctime_ns)  # fmt: skip


def _entries(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Gives the root, and what lies under it, a folder before what is in it; by inode, as disks
    lie."""
    yield ".", os.lstat(root)
    pending = [""]
    while pending:
        here = pending.pop()
        with os.scandir(os.path.join(root, here)) as entries:
            found = sorted(entries, key=lambda entry: entry.inode())
        for entry in found:
            info = entry.stat(follow_symlinks=False)
            yield here + entry.name, info
            if stat.S_ISDIR(info.st_mode):
                pending.append(f"{here}{entry.name}/")


def walk(root: str) -> Listing:
    """Gives the listing of a tree.

    Raises NodeError when an entry vanishes meanwhile, and for devices, pipes, sockets and mounts.
    """
    listing = Listing(root)
    try:
        for path, info in _entries(root):
            listing.add(path, info)
    except FileNotFoundError as error:
        raise NodeError(f"{error.filename} is gone: something changes {root} now",
                        "tree_changing", "wait until it is over") from None  # fmt: skip
    return listing


def edited_since(listing: Listing, limit: int = 3) -> str:
    """Gives in words what differs from a walk that was made before, "" for nothing.

    Takes the listing's stamps away as it goes: a second map of a large tree would be memory.
    """
    found: list[str] = []
    try:
        for path, info in _entries(listing.root):
            old = listing.stamps.pop(path, None)
            if old is None or old != stamp(info):
                found.append(f"{path} {'is new' if old is None else 'was edited'}")
    except FileNotFoundError as error:
        found.append(f"{error.filename} is gone")
    found += [f"{path} is gone" for path in listing.stamps]
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


def as_json(listing: Listing) -> Json:
    """Gives the figures of a walk."""
    return {"apparent_bytes": listing.apparent,
            "room_bytes": listing.room, "setuid": listing.setuid[:100]}  # fmt: skip


def disk_bytes(folder: str) -> int:
    """Gives the bytes on the disk that removing a folder would free; a hard link counts once."""
    seen: dict[int, int] = {}
    for root, names, files in os.walk(folder):
        for entry in (*names, *files):
            info = os.lstat(os.path.join(root, entry))
            seen[info.st_ino] = info.st_blocks * 512
    return sum(seen.values())
