"""A set of weights swapped in as one step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from node.change.journal import DONE, INTENT
from node.change.kinds import PATH, Kind, Seen, Steps
from node.core import dirfd
from node.core.errors import Json, NodeError
from node.transfer import manifest
from node.transfer.manifest import OWN, Folder, Hash

# What has come of each file, in `.rigbook/` beside the weights: a part that grows, or the whole
# file, flushed, with its sha256 in its name, so that the next run need not read it again.

_PART, _WHOLE = ".part", ".whole"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def _prefix(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16] + "-"


def _stem(row: Json) -> str:
    """Gives a listed file's stem: another size or content of the source is another part."""
    text = f"{row['size']}\0{row['probe']}"
    return _prefix(row["name"]) + hashlib.sha256(text.encode()).hexdigest()[:16]


class Parts:
    """The parts of one transfer; `own` is the descriptor of `.rigbook`, root's alone.

    `only`: the one file that is moved, where other models may lie beside it.
    """

    def __init__(self, own: int, wanted: list[Json], only: str | None) -> None:
        self._own = own
        self._whole: dict[str, str] = {}
        rows = {_stem(row): row for row in wanted}
        mine = _prefix(only) if only else ""
        for name in os.listdir(own):
            if not name.startswith(mine) or not name.endswith((_PART, _WHOLE)):
                continue
            stem = name.partition(".")[0]
            row = rows.get(stem)
            if row is None or (
                name.endswith(_WHOLE) and row["sha256"] not in (None, _digest(name))
            ):
                os.unlink(name, dir_fd=own)  # of another transfer, or of another content
            elif name.endswith(_WHOLE):
                self._whole[stem] = name

    def part(self, row: Json) -> str:
        """Gives the name under which a file grows."""
        return _stem(row) + _PART

    def whole(self, row: Json) -> str | None:
        """Gives the name of the file that has come whole, or None."""
        return self._whole.get(_stem(row))

    def digest(self, row: Json) -> str:
        """Gives the sha256 of a file that has come whole."""
        return _digest(self._whole[_stem(row)])

    def size(self, row: Json) -> int:
        """Gives the bytes of a file that are here."""
        with contextlib.suppress(FileNotFoundError):
            name = self.whole(row) or self.part(row)
            return os.stat(name, dir_fd=self._own, follow_symlinks=False).st_size
        return 0

    def flush(self, row: Json) -> None:
        """Has what is here of a growing file written to the disk, and takes it out of the page
        cache. Raises OSError, and NodeError (`io`) for what the disk did not take: that is removed,
        because Linux tells a writeback error once, and the next flush would find all well."""
        fd = os.open(self.part(row), _FLAGS, dir_fd=self._own)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            os.unlink(self.part(row), dir_fd=self._own)
            raise NodeError(
                f"{row['name']}: the disk did not take what came of it, which is removed: "
                f"{error.strerror}",
                "io",
                "sudo dmesg | tail; then run it again: it is fetched anew",
            ) from None
        finally:
            os.close(fd)

    def complete(self, row: Json, digest: str) -> None:
        """Notes, flushed, that a file has come whole."""
        self.flush(row)
        name = f"{_stem(row)}.{digest}{_WHOLE}"
        os.rename(self.part(row), name, src_dir_fd=self._own, dst_dir_fd=self._own)
        os.fsync(self._own)
        self._whole[_stem(row)] = name


def _digest(name: str) -> str:
    return name.split(".")[1]


# The step of a set of weights: complete beside, its files get their names together, and undo puts
# the former files back.
#
# What is replaced or pruned is kept by a second name (a hard link, no copy) in the change's folder
# of `.rigbook/`, flushed before the first file gets its name. Meanwhile a mark says that the set
# is
# none: prelaunch refuses a start then. Which file is which is told by inode, size and mtime: a
# file
# that keeps all three was renamed, not written.

SET_OP = "weights_set"
# How far an announced step is: files come beside, or they get their names.
FETCH, SWITCH = "fetch", "switch"
_ABSENT: Json = {"kind": "absent"}


def look(folder: int, name: str) -> Json:
    """Gives what has a name in an opened folder: kind, inode, size in bytes, mtime; or absent."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return dict(_ABSENT)
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "directory"}
    return {"kind": kinds.get(stat.S_IFMT(info.st_mode), "other"), "ino": info.st_ino,
            "size": info.st_size, "mtime_ns": info.st_mtime_ns}  # fmt: skip


def hash_of_post(sha256: str, post: Json) -> Hash:
    """Gives the hash of a file that has got its name by a step, which changed its ctime."""
    return Hash(sha256, post["ino"], post["size"], post["mtime_ns"])


class _Place(NamedTuple):
    """Descriptors of the weights' folder, of our own in it, and of what is displaced there."""

    path: str
    fd: int
    own: int
    kept: int

    @contextlib.contextmanager
    def of(self, name: str, owner: dirfd.Owner | None = None) -> Iterator[tuple[int, str]]:
        """Gives the opened folder of a file, and its name there."""
        where, last = os.path.split(name)
        with dirfd.inside(self.fd, where, self.path, owner) as folder:
            yield folder, last

    @contextlib.contextmanager
    def kept_of(self, name: str, make: bool) -> Iterator[tuple[int, str]]:
        """Gives the opened folder in which the former file of that name is kept."""
        where, last = os.path.split(name)
        ours = dirfd.Owner(os.geteuid(), os.getegid()) if make else None
        with dirfd.inside(self.kept, where, self.path, ours) as folder:
            yield folder, last

    def now(self, name: str) -> Json:
        """Gives what has a file's name."""
        try:
            with self.of(name) as (folder, last):
                return look(folder, last)
        except FileNotFoundError:
            return dict(_ABSENT)

    def former(self, name: str) -> Json:
        """Gives what is kept of the file that had a name."""
        try:
            with self.kept_of(name, make=False) as (folder, last):
                return look(folder, last)
        except FileNotFoundError:
            return dict(_ABSENT)


@contextlib.contextmanager
def _place(entry: Json, make: bool = True) -> Iterator[_Place]:
    folder = Folder(entry["path"])
    with dirfd.folder(folder.path) as fd, folder.own() as own:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(entry["displaced"], 0o700, dir_fd=own)
        with dirfd.inside(own, entry["displaced"], folder.path) as kept:
            yield _Place(folder.path, fd, own, kept)


@contextlib.contextmanager
def _names(path: str) -> Iterator[_Place]:
    """Gives a place in which nothing is kept yet."""
    folder = Folder(path)
    with dirfd.folder(folder.path) as fd, folder.own() as own:
        yield _Place(folder.path, fd, own, own)


def require_replaceable(fd: int, path: str, names: list[str]) -> list[Json]:
    """Gives what of the files is there in the opened folder, each with its name and bytes. Raises
    NodeError (`not_a_file`, `not_a_folder`) for a name that no file can take."""
    found = []
    place = _Place(path, fd, fd, fd)
    for name in names:
        now = place.now(name)
        if now["kind"] not in ("file", "link", "absent"):
            raise NodeError(f"{name} is not a file: it is not replaced", "not_a_file")
        if now["kind"] != "absent":
            found.append({"name": name, "size": now["size"]})
    return found


def switch_set(log: Steps, entry: Json, wanted: list[Json], pruned: list[str]) -> None:
    """Give files that are complete beside their names, all of them or none: `wanted` has a row for
    each with `name` and `part`. Raises NodeError and OSError; a run or an undo after it finishes.
    """
    rows = [*wanted, *({"name": name, "part": None} for name in pruned)]
    with _names(entry["path"]) as place:
        require_replaceable(place.fd, place.path, [row["name"] for row in rows])
        for row in rows:
            row["pre"] = place.now(row["name"])
            row["post"] = look(place.own, row["part"]) if row["part"] else dict(_ABSENT)
            if row["part"] and row["post"]["kind"] != "file":
                raise NodeError(f"what came of {row['name']} is no longer in {place.path}/{OWN}",
                                "part_gone", "run it again: it is fetched anew")  # fmt: skip
        folders = {str(above) for row in wanted for above in PurePosixPath(row["name"]).parents}
        missing = sorted(name for name in folders - {"."} if place.now(name) == _ABSENT)
    # What was half a set before would be one again after an undo.
    entry["was_half"] = manifest.incomplete(entry["path"])
    number = sum(row["op"] == SET_OP and "files" in row for row in log.rows)
    entry.update(stage=SWITCH, files=rows, folders=missing,
                 displaced=manifest.displaced_name(entry["change"], number))  # fmt: skip
    entry["words"] = SetKind(SET_OP).describe(entry)
    log.write()
    forward(entry)
    log.finish(entry)


def _is_atomic(entry: Json) -> bool:
    """Gives whether the set is switched by one rename: then no mix can be met."""
    return len(entry["files"]) < 2


def forward(entry: Json) -> None:
    """Give the files their names, and keep what had them; also what a kill left of that.

    Raises NodeError (`changed_meanwhile`) and OSError; the mark stays then.
    """
    with _place(entry) as place:
        todo = [row for row in entry["files"] if place.now(row["name"]) != row["post"]]
        if not _is_atomic(entry):
            manifest.mark_beside(place.own, entry["change"])
        for row in todo:
            _keep(place, row)
        _flush_kept(place)
        for row in todo:
            _name(place, row, dirfd.Owner(*entry["owner"]))
        manifest.unmark_beside(place.own)


def _keep(place: _Place, row: Json) -> None:
    """Give what has the name a second one in the change's folder."""
    now, former = place.now(row["name"]), place.former(row["name"])
    if now["kind"] == "absent" and row["pre"] in (now, former):
        return
    if now != row["pre"]:
        raise NodeError(f"{place.path}/{row['name']} was changed meanwhile", "changed_meanwhile",
                        "look at it; then run it again, or: rignode undo")  # fmt: skip
    if former == now:
        return
    with place.of(row["name"]) as (folder, name), place.kept_of(row["name"], True) as (kept, last):
        try:
            os.link(name, last, src_dir_fd=folder, dst_dir_fd=kept, follow_symlinks=False)
        except OSError as error:
            if isinstance(error, FileExistsError) or not stat.S_ISREG(
                os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            ):
                raise
            # A filesystem without hard links: the name is free for a moment.
            os.rename(name, last, src_dir_fd=folder, dst_dir_fd=kept)


def _flush_kept(place: _Place) -> None:
    for _, _, _, fd in os.fwalk(".", dir_fd=place.kept):
        os.fsync(fd)
    os.fsync(place.own)


def _name(place: _Place, row: Json, owner: dirfd.Owner) -> None:
    with place.of(row["name"], owner) as (folder, name):
        if row["part"] is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        else:
            fd = os.open(row["part"], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.own)
            try:
                os.fchown(fd, *owner)
                os.fchmod(fd, 0o644)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(row["part"], name, src_dir_fd=place.own, dst_dir_fd=folder)
        os.fsync(folder)


class SetKind(Kind):
    """Files of weights that are replaced, brought and pruned as one set."""

    phase = PATH

    def describe(self, entry: Json) -> str:
        """Says how much comes, and where what it replaces is kept."""
        words = f"{entry['count']} files of {entry['path']} ({entry['bytes'] / 1e9:.2f} GB)"
        if entry["stage"] == FETCH:
            return f"bring {words} beside"
        size = sum(row["pre"].get("size", 0) for row in entry["files"])
        if not size:
            return f"switch {words}"
        return f"switch {words}; the former {size / 1e9:.2f} GB are kept in {kept_in(entry)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Finish the names that a kill cut short: all that they need lies beside, complete."""
        if entry["stage"] == FETCH:
            return INTENT
        forward(entry)
        return DONE

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives whether a file was replaced after the step. Raises NodeError where a former file is
        nowhere."""
        edited = False
        for row, now in _now(entry):
            key = f"{entry['path']}/{row['name']}"
            now = seen.now.get(key, now)
            seen.now[key] = row["pre"]
            if now not in (row["pre"], row["post"]):
                edited = True
        return edited

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the former files back, and take away what came."""
        if entry["stage"] == FETCH:
            return "no file was replaced; what had come waits beside for the next run"
        with _place(entry) as place:
            todo = [row for row in entry["files"] if place.now(row["name"]) != row["pre"]]
            for row in todo:
                now = place.now(row["name"])
                if now not in (row["post"], _ABSENT) and not overwrite:
                    raise NodeError(f"{entry['path']}/{row['name']} was replaced after the change",
                                    "later_edit")  # fmt: skip
                _require_kept(entry, row, place.former(row["name"]))
            if todo and not _is_atomic(entry):
                manifest.mark_beside(place.own, entry["change"])
            for row in todo:
                _put_back(place, row)
            for name in reversed(entry["folders"]):
                with contextlib.suppress(OSError), place.of(name) as (folder, last):
                    os.rmdir(last, dir_fd=folder)
            if entry["was_half"]:
                manifest.mark_beside(place.own, entry["was_half"])
            else:
                manifest.unmark_beside(place.own)
        shutil.rmtree(kept_in(entry))
        return f"{len(todo)} files are as before" if todo else "was as before"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the files that are not as the step found or left them."""
        if entry["stage"] == FETCH:
            return []
        return [
            f"{entry['path']}/{row['name']} is {_words(now)}, not {_words(row[side])}"
            for row, now in _now(entry, required=False)
            if now != row[side]
        ]


def kept_in(entry: Json) -> str:
    """Gives the folder in which a step keeps what it replaced."""
    return os.path.join(Folder(entry["path"]).path, OWN, entry["displaced"])


def _words(what: Json) -> str:
    if what["kind"] == "absent":
        return "absent"
    return f"the {what['kind']} of inode {what['ino']} ({what['size']} bytes)"


def _now(entry: Json, required: bool = True) -> list[tuple[Json, Json]]:
    """Gives each file of a step with what has its name now. Raises NodeError (`displaced_gone`)
    where one cannot be put back."""
    if entry["stage"] == FETCH:
        return []
    folder = Folder(entry["path"])
    found = []
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(dirfd.folder(folder.path))
        kept = fd
        here = os.path.isdir(kept_in(entry))
        if here:
            own = stack.enter_context(folder.own())
            kept = stack.enter_context(dirfd.inside(own, entry["displaced"], folder.path))
        place = _Place(folder.path, fd, fd, kept)
        for row in entry["files"]:
            now = place.now(row["name"])
            if required and now != row["pre"]:
                _require_kept(entry, row, place.former(row["name"]) if here else _ABSENT)
            found.append((row, now))
    return found


def _require_kept(entry: Json, row: Json, former: Json) -> None:
    if row["pre"]["kind"] != "absent" and former != row["pre"]:
        raise NodeError(
            f"{kept_in(entry)}/{row['name']}, which was {entry['path']}/{row['name']}, is gone",
            "displaced_gone",
            "bring the weights from a node that has them: deploys/weights.py --data from=NODE",
        )


def _put_back(place: _Place, row: Json) -> None:
    with contextlib.suppress(FileNotFoundError), place.of(row["name"]) as (folder, name):
        if row["pre"]["kind"] == "absent":
            os.unlink(name, dir_fd=folder)
        else:
            with place.kept_of(row["name"], False) as (kept, last):
                os.rename(last, name, src_dir_fd=kept, dst_dir_fd=folder)
        os.fsync(folder)
