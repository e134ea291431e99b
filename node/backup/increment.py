"""An incremental backup: of a tree that changed little, only what differs from a full backup.

Its folder has all that a restore needs, whatever becomes of the full one: base.tar.zst and
base.jsonl are hard links to the full one's payload and list. payload.tar.zst holds the members of
changed.jsonl; `removed` names, each ended by NUL, the base's members that go before they come:
those that are not in the tree any more, or are another entry now. members.jsonl lists the whole
tree, as that of a full one does. The base is always a full one, so nothing has to be followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from node.backup import store
from node.backup.walk import FILE, FOLDER, LINK, Listing, Member, member
from node.core.errors import Json
from node.files import dirfd

# a tree that differs in more of its bytes than one in so many is stored whole
SHARE = 4
_DEFAULT_ACL = "system.posix_acl_default"


class Base(NamedTuple):
    """A full backup's payload and lists: of which backup, the manifest's words for them, and by
    which name each lies in the folder of the backup `place`."""

    place: str
    row: Json
    names: dict[str, str]


class Increment(NamedTuple):
    """What differs from a base: for each line of the listing whether it is in the payload, the
    base's line where it is not, the base's paths that go, and the bytes of the payload's files."""

    base: Base
    inside: list[bool]
    known: list[bytes]
    removed: list[str]
    size: int

    def members(self, listing: Listing) -> Iterator[Member]:
        """Gives the payload's members; nobody has read their bytes yet."""
        pairs = zip(self.inside, listing.lines, strict=True)
        return (member(line) for inside, line in pairs if inside)

    def paths(self, listing: Listing) -> list[str]:
        """Gives the paths of the payload's members."""
        pairs = zip(self.inside, listing.stamps, strict=True)
        return [path for inside, path in pairs if inside]

    def lines(self, listing: Listing, hashes: Iterable[str]) -> tuple[list[bytes], list[bytes]]:
        """Gives the lines of the whole tree and of the payload; `hashes` are its files'."""
        left = iter(hashes)
        whole: list[bytes] = []
        changed: list[bytes] = []
        for inside, line, known in zip(self.inside, listing.lines, self.known, strict=True):
            if not inside:
                whole.append(known)
                continue
            row = member(line)
            row = row._replace(sha256=next(left)) if row.type == FILE else row
            whole.append(row.line())
            changed.append(whole[-1])
        return whole, changed


def stamps(listing: Listing) -> list[bytes]:
    """Gives inode and ctime of each entry, a line each: what the next backup compares."""
    return [b"%d %d\n" % (stamp[0], stamp[-1]) for stamp in listing.stamps.values()]


def find(real: str, roots: list[str], listing: Listing) -> Increment | None:
    """Gives what differs from the base of the tree's newest verified backup; None without one, and
    where a whole backup is better.

    An entry is the same by inode, mode, owner, size, mtime and ctime, as a whole tree is.
    """
    for row in reversed(store.all_backups()):
        manifest = row.manifest
        if not manifest or not row.verified or row.problem:
            continue
        if (manifest["real"], manifest["roots"]) == (real, roots):
            base = _base(row.id, manifest, row.verified)
            return _compare(base, listing) if base else None
    return None


def _base(backup: str, manifest: Json, verified: float) -> Base | None:
    """Gives the full backup that is, or is in, a backup; None in one without stamps."""
    if manifest["format"] == store.INCREMENTAL:
        row = {**manifest["base"], "verified_unix_s": verified}
        names = {store.BASE: store.BASE, store.BASE_MEMBERS: store.BASE_MEMBERS}
        return Base(backup, row, {**names, store.STAMPS: store.STAMPS})
    if "stamps" not in manifest:
        return None
    row = {"backup": backup, "verified_unix_s": verified}
    row.update({key: manifest[key] for key in ("payload", "members", "stamps")})
    names = {store.BASE: store.PAYLOAD, store.BASE_MEMBERS: store.MEMBERS}
    return Base(backup, row, {**names, store.STAMPS: store.STAMPS})


def _key(line: bytes) -> bytes:
    """Gives all of a member's line but the hash of its bytes."""
    return line[: line.rindex(b",")]


def _path(line: bytes) -> str:
    """Gives the path of a member's line."""
    return str(json.loads(line)[0])


def _compare(base: Base, listing: Listing) -> Increment | None:
    """Gives what differs from a base, None where it is too much or tar could not bring it back."""
    lines = store.content(base.place, base.names[store.BASE_MEMBERS], base.row["members"])
    old = lines.splitlines(keepends=True)
    told = store.content(base.place, base.names[store.STAMPS], base.row["stamps"])
    marks = told.splitlines(keepends=True)
    where = {_key(line): n for n, line in enumerate(old)}
    same = [-1] * len(listing.lines)
    pairs = zip(listing.lines, stamps(listing), strict=True)
    for n, (line, mark) in enumerate(pairs):
        found = where.get(_key(line), -1)
        if found >= 0 and marks[found] == mark:
            same[n] = found
    del where
    paths = list(listing.stamps)
    _whole_groups(listing.lines, paths, same)
    kept = {found for found in same if found >= 0}
    now = {path: n for n, path in enumerate(paths) if same[n] < 0}
    gone = [member(line) for n, line in enumerate(old) if n not in kept]
    folders = {row.path for row in gone if row.type == FOLDER and row.path in now
               and member(listing.lines[now[row.path]]).type == FOLDER}  # fmt: skip
    removed = [row.path for row in reversed(gone) if row.path not in folders]
    needed = _above([*now, *removed])
    inside = [same[n] < 0 or path in needed for n, path in enumerate(paths)]
    rows = {row.path: row for row in Increment(base, inside, [], [], 0).members(listing)}
    size = sum(row.size for row in rows.values())
    if size * SHARE > listing.apparent or not _tar_can(old, rows):
        return None
    known = [old[found] if found >= 0 else b"" for found in same]
    return Increment(base, inside, known, removed, size)


def _whole_groups(lines: list[bytes], paths: list[str], same: list[int]) -> None:
    """Where one of the names of a shared file differs, all of them do: tar links within a payload
    alone."""
    links = [n for n, line in enumerate(lines) if b'","1",' in line]
    rows = {n: row for n in links if (row := member(lines[n])).type == LINK}
    firsts = {row.link for row in rows.values()}
    number = {path: n for n, path in enumerate(paths) if path in firsts}
    differing = {row.link for n, row in rows.items() if same[n] < 0 or same[number[row.link]] < 0}
    for n, row in rows.items():
        if row.link in differing:
            same[n] = same[number[row.link]] = -1


def _above(paths: Iterable[str]) -> set[str]:
    """Gives the folders above paths: tar sets their times again after what it puts into them."""
    found = {"."}
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


def _tar_can(old: list[bytes], rows: dict[str, Member]) -> bool:
    """Gives False where tar, unpacking over the base, would leave an attribute of a folder that it
    has lost, or give new files the default ACL of their folder."""
    for line in old:
        if _key(line).endswith(b",{}"):
            continue
        was = member(line)
        if was.type != FOLDER:
            continue
        now = rows.get(was.path)
        if _DEFAULT_ACL in was.xattrs or (now and was.xattrs.keys() - now.xattrs.keys()):
            return False
    return True


def _removed(backup: str, manifest: Json) -> list[str]:
    """Gives the paths of the base that go, what is in a folder before the folder."""
    raw = store.content(backup, store.REMOVED, manifest["removed"])
    return [os.fsdecode(name) for name in raw.split(b"\0")[:-1]]


def remove(backup: str, manifest: Json, folder: int) -> None:
    """Take away what the base had and the tree has not, in the folder `folder` of ours.

    Raises NodeError where a link lies on the way, OSError where something is not there.
    """
    for path in _removed(backup, manifest):
        above, _, name = path.rpartition("/")
        with dirfd.inside(folder, above, path) as fd:
            try:
                os.unlink(name, dir_fd=fd)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=fd)


def check(backup: str, manifest: Json) -> None:
    """Raise NodeError (`backup_damaged`) unless base, removals and changes together give the list
    of members."""
    base = manifest["base"]
    whole = store.content(backup, store.MEMBERS, manifest["members"]).splitlines()
    old = store.content(backup, store.BASE_MEMBERS, base["members"]).splitlines()
    changed = store.content(backup, store.CHANGED, manifest["changed"]).splitlines()
    removed, over = set(_removed(backup, manifest)), {_path(line) for line in changed}
    found = {line for line in old if (path := _path(line)) not in removed and path not in over}
    if found.union(changed) != set(whole) or len(whole) != manifest["members"]["count"]:
        raise store.damaged(backup, "base and changes do not give its list of members")
