"""Files written whole or not at all, the state folder, what is kept in it, locks."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shlex
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

from node.core import errors, proc, validate
from node.core.errors import Json, NodeError, io_reason

# Where the program keeps its lock, journal and pre-images: root-only folders.

DEFAULT_ROOT = "/var/lib/rigbook"


def state_root() -> str:
    """Gives the state folder; RIGBOOK_STATE names another one (tests)."""
    return os.environ.get("RIGBOOK_STATE") or DEFAULT_ROOT


def journal_folder() -> str:
    """Gives the folder of the changes, one file each."""
    return os.path.join(state_root(), "journal")


def blob_folder() -> str:
    """Gives the folder of the pre-images, named by their sha256."""
    return os.path.join(state_root(), "blobs")


def lock_path() -> str:
    """Gives the lock's path."""
    return os.path.join(state_root(), "lock")


def sync_folder(path: str) -> None:
    """Flush a folder's entries to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def ensure_state() -> None:
    """Make the state folders, 0700 and ours. Raises NodeError when one is not a safe folder."""
    parent = os.path.dirname(state_root())
    os.makedirs(parent, mode=0o755, exist_ok=True)
    for folder in (state_root(), journal_folder(), blob_folder()):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        else:
            sync_folder(os.path.dirname(folder))
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise NodeError(f"{folder} is not a folder of our own", "unsafe_state")
        if stat.S_IMODE(info.st_mode) != 0o700:
            os.chmod(folder, 0o700)


# Extended attributes of a file or folder; its POSIX ACLs are among them.

# the kernel's own: it makes them, and takes them from nobody
_KERNELS = ("security.ima", "security.evm", "trusted.overlay.", "system.nfs4_acl")

# the policy's: restorecon sets it anew, and that is nobody's edit
_RELABELLED = "security.selinux"


def read_attributes(fd: int) -> dict[str, str]:
    """Gives the attributes by name, in base64. Raises OSError."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return {}
    return {name: base64.b64encode(os.getxattr(fd, name)).decode("ascii")
            for name in sorted(names) if not name.startswith(_KERNELS)}  # fmt: skip


def write_attributes(fd: int, wanted: dict[str, str]) -> None:
    """Give it these attributes and no others, as far as the file system takes them.

    What it does not take is seen by whoever reads them afterwards: the bytes are not held up.
    """
    now = read_attributes(fd)
    for name in now.keys() - wanted.keys():
        with contextlib.suppress(OSError):
            os.removexattr(fd, name)
    for name, text in wanted.items():
        if now.get(name) != text:
            with contextlib.suppress(OSError):
                os.setxattr(fd, name, base64.b64decode(text))


def attributes_of(name: str, folder: int) -> dict[str, str]:
    """Gives the attributes of a file or folder in an opened folder. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=folder)
    try:
        return read_attributes(fd)
    finally:
        os.close(fd)


def judged_attributes(found: dict[str, str]) -> dict[str, str]:
    """Gives the attributes that only somebody's edit changes."""
    return {name: text for name, text in found.items() if name != _RELABELLED}


def differing_attributes(path: str, now: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Gives a line for each attribute that is not as wanted, its value left out."""
    out = []
    now, wanted = judged_attributes(now), judged_attributes(wanted)
    for name in sorted({*now, *wanted}):
        if now.get(name) != wanted.get(name):
            how = "gone" if name not in now else "new" if name not in wanted else "another one"
            out.append(f"{path}: the attribute {name} is {how} (getfattr -m - -d {path})")
    return out


# A private folder in memory for what is made to be looked at.

# a folder that a kill left; nothing that is made so takes that long
STALE_S = 600.0


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[str]:
    """A folder of ours alone, gone afterwards; those of this prefix that a kill left go as well."""
    parent = "/run" if os.access("/run", os.W_OK) else tempfile.gettempdir()
    for old in glob.glob(f"{parent}/{prefix}*"):
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(old).st_mtime > STALE_S:
                shutil.rmtree(old, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


# Which file or folder it is: a file system gives an inode number again once it is free.
#
# The device is not compared: its number may be another one after a reboot, and what trades places
# lies on one file system.

_HERE, _NO_FOLLOW = -100, 0x100
_HANDLE_MOST = 128
# struct statx (linux/stat.h): the bit of stx_mask that says there is a time of birth, and where
_BIRTH, _BIRTH_AT, _STATX_BYTES = 0x800, 0x50, 256


def _handle(path: str) -> str | None:
    """Gives the kernel's handle, which holds the inode's generation; None where there is none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "name_to_handle_at", None)
    buffer = ctypes.create_string_buffer(struct.pack("Ii", _HANDLE_MOST, 0), 8 + _HANDLE_MOST)
    mount = ctypes.c_int()
    if call is None or call(_HERE, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return None
    size, kind = struct.unpack_from("Ii", buffer.raw)
    return f"handle {kind} {buffer.raw[8 : 8 + size].hex()}"


def _birth(path: str) -> str | None:
    """Gives the time of birth, None where the file system keeps none (statx(2))."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if call is None or call(_HERE, os.fsencode(path), _NO_FOLLOW, _BIRTH, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("I", buffer.raw)
    seconds, nanoseconds = struct.unpack_from("qI", buffer.raw, _BIRTH_AT)
    return f"birth {seconds}.{nanoseconds:09d}" if mask & _BIRTH else None


def identity_of(path: str, info: os.stat_result) -> Json:
    """Gives the identity of what lies at a path, a link not followed; `info` is its lstat."""
    return {"ino": info.st_ino, "mark": _handle(path) or _birth(path)}


# Replace, remove and describe files so that a reader or a crash sees old or new, never a mix.
#
# All work goes through the parent folder's descriptor: a path swapped between check and use
# cannot redirect it.

MAX_BYTES = 64 << 20
TEMP_PREFIX = ".rigbook-"
ABSENT: Json = {"kind": "absent"}


class Owner(NamedTuple):
    """Mode bits, uid and gid of a file to be."""

    mode: int
    uid: int
    gid: int


class Folder:
    """The opened parent folder of one path, as a context manager.

    Raises NodeError when it is missing or when somebody else may swap entries in it or above it;
    without `links` also when the folder is a link, which its owner may have put there.
    """

    def __init__(self, path: str, links: bool = True) -> None:
        self.path = path
        self.links = links
        self.parent, self.name = os.path.split(path)
        self.fd = -1

    def __enter__(self) -> Folder:
        for folder in _ancestors(self.parent):
            try:
                info = os.stat(folder)
            except FileNotFoundError:
                raise NodeError(
                    f"{self.path}: the folder {folder} does not exist",
                    "no_folder",
                    "make it first, with a directory step",
                ) from None
            if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
                raise NodeError(
                    f"{self.path}: everybody may write in the folder {folder}",
                    "unsafe_folder",
                    f"chmod o-w {shlex.quote(folder)}",
                )
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self.fd = os.open(self.parent, flags if self.links else flags | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise NodeError(f"{self.path}: the folder {self.parent} is a link", "unsafe_folder",
                            f"ls -ld {shlex.quote(self.parent)}") from None  # fmt: skip
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        os.close(self.fd)
        if isinstance(error, OSError) and not str(error.filename or "").startswith("/"):
            error.filename = self.path  # nobody knows a temp's name, and a write has none

    def lstat(self) -> os.stat_result | None:
        """Gives the entry's state, a link not followed, or None when it is absent."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Remove an entry of the folder when it is there, and flush the folder."""
        try:
            # a read-only file system refuses to unlink even what is not there
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        os.fsync(self.fd)


def _ancestors(folder: str) -> Iterator[str]:
    """Gives a folder and those above it, from the root down."""
    parts = folder.split("/")
    for n in range(1, len(parts) + 1):
        yield "/".join(parts[:n]) or "/"


def read_entry(folder: Folder, keep: Callable[[bytes], None] | None = None) -> Json:
    """Gives the entry's description: absent; a folder; or a file with sha256, mode and owner.

    `keep` is called with the file's bytes. Raises NodeError for a link or a special file.
    """
    info = folder.lstat()
    if info is None:
        return dict(ABSENT)
    owner = {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "uid": info.st_uid, "gid": info.st_gid}
    if stat.S_ISDIR(info.st_mode):
        return {"kind": "directory", **owner}
    if not stat.S_ISREG(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "a special file"
        raise NodeError(
            f"{folder.path} is {what}: it is not touched",
            "not_a_file",
            f"look at it with: ls -l {shlex.quote(folder.path)}",
        )
    if info.st_size > MAX_BYTES:
        raise NodeError(f"{folder.path} is larger than {MAX_BYTES >> 20} MiB", "too_large")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder.name, flags, dir_fd=folder.fd), "rb") as file:
        raw = file.read()
    if keep:
        keep(raw)
    return {"kind": "file", "sha256": hashlib.sha256(raw).hexdigest(), **owner}


def temp_name(name: str) -> str:
    """Gives a fresh hidden name in the same folder; the suffix stays, validators look at it."""
    tail = name[-160:]
    while len(os.fsencode(tail)) > 160:
        tail = tail[1:]
    return f"{TEMP_PREFIX}{secrets.token_hex(6)}-{tail}"


def _write_all(fd: int, raw: bytes) -> None:
    """Write all bytes and flush them to the disk."""
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def replace(
    folder: Folder,
    raw: bytes,
    owner: Owner,
    temp: str,
    validate: Callable[[str], None] | None = None,
    xattrs: dict[str, str] | None = None,
) -> None:
    """Put a file in place of the folder's entry, in one step for every reader.

    `validate` gets the temp file's path and raises to refuse it. `xattrs`: those that it is to have
    (attributes.py). On any error the temp file is gone and the entry is as it was.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temp, flags, 0o600, dir_fd=folder.fd)
    try:
        try:
            # owner before mode: chown clears bits, and nobody else may read before both are set
            os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, owner.mode)
            if xattrs is not None:
                write_attributes(fd, xattrs)
            _write_all(fd, raw)
        finally:
            os.close(fd)
        if validate:
            validate(os.path.join(folder.parent, temp))
        info = folder.lstat()
        if info is not None and not stat.S_ISREG(info.st_mode):
            raise NodeError(f"{folder.path} is not a plain file", "not_a_file")
        os.rename(temp, folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder.fd)
        raise
    os.fsync(folder.fd)


def save_private(path: str, raw: bytes) -> None:
    """Write a file of the state folder, 0600, atomically and flushed."""
    with Folder(path) as folder:
        owner = Owner(0o600, os.geteuid(), os.getegid())
        replace(folder, raw, owner, temp_name(folder.name))


def save_blob(raw: bytes) -> str:
    """Keep a pre-image; gives its sha256, which is its name. Safe on disk on return."""
    digest = hashlib.sha256(raw).hexdigest()
    path = os.path.join(blob_folder(), digest)
    try:
        with open(path, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() == digest:
                return digest
    except FileNotFoundError:
        pass
    save_private(path, raw)
    return digest


def load_blob(digest: str) -> bytes:
    """Gives a pre-image's bytes. Raises NodeError when it is gone or damaged."""
    try:
        with open(os.path.join(blob_folder(), digest), "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raw = b""
    if hashlib.sha256(raw).hexdigest() != digest:
        raise NodeError(
            f"the kept copy {digest[:12]} is gone or damaged",
            "blob_damaged",
            f"put the file back by hand; the copies are in {state_root()}/blobs",
        )
    return raw


# Small JSON files of this host: settings that a deploy wrote, and what lasts between two looks.

T = TypeVar("T")
_MOST = 1 << 20


def read_settings(path: str, parse: Callable[[Any], T], code: str, remedy: str) -> T:
    """Gives a file's JSON as `parse` takes it. Raises NodeError (`code`): one line with the file.

    The parser's own words are left out: they may quote a webhook's URL.
    """
    try:
        with open(path, "rb") as file:
            return parse(json.loads(file.read(_MOST).decode("utf-8")))
    except OSError as error:
        raise NodeError(io_reason(error), code, remedy) from None
    except ValueError:
        raise NodeError(f"{path} is not JSON", code, remedy) from None
    except NodeError as error:
        raise NodeError(f"{path}: {error}", code, remedy) from None


def format_is(body: Json, known: int) -> None:
    """Raise NodeError unless a file's `format` is the one that is known here."""
    if body["format"] != known:
        said = str(body["format"])[:20]
        raise validate.bad(f"format {said} is not the {known} that is known here")


def load_state(path: str, fresh: Json, added: Collection[str] = ()) -> Json:
    """Gives the state kept at `path`; `fresh`, which has its keys, when there is none.

    So, too, when it is damaged, with a warning. The keys `added` may be missing: an older version
    wrote it. Raises OSError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return fresh
    except ValueError:
        found = None
    if isinstance(found, dict) and found.keys() | set(added) == fresh.keys():
        return {**fresh, **found}
    errors.log(f"{path} is damaged: starting anew", errors.WARNING)
    return fresh


def save_state(path: str, state: Json, folder_mode: int = 0o700) -> None:
    """Write the state for the next look; it is on the disk on return."""
    os.makedirs(os.path.dirname(path), mode=folder_mode, exist_ok=True)
    save_private(path, json.dumps(state, sort_keys=True).encode("utf-8") + b"\n")


# Where bundles of evidence lie: a folder each below the state folder, root's alone.

KEEP_BUNDLES = 5
# a bundle that is being written, or that a kill left
UNDONE = ".part"


class Bundle(NamedTuple):
    """A bundle on the disk: its path and the bytes of its files."""

    path: str
    bytes: int


def evidence_root() -> str:
    """Gives the folder of the bundles."""
    return os.path.join(state_root(), "evidence")


def bundles() -> list[Bundle]:
    """Gives the bundles, newest first: their names begin with the time."""
    try:
        names = sorted(os.listdir(evidence_root()), reverse=True)
    except FileNotFoundError:
        return []
    found = []
    for path in (os.path.join(evidence_root(), name) for name in names):
        with os.scandir(path) as rows:
            size = sum(row.stat(follow_symlinks=False).st_size for row in rows)
        found.append(Bundle(path, size))
    return found


def remove_bundle(path: str) -> None:
    """Remove a bundle."""
    shutil.rmtree(path)


def begin_bundle(name: str) -> str:
    """Makes a new bundle's folder, 0700, and the room for it; gives its path for now."""
    ensure_state()
    os.makedirs(evidence_root(), mode=0o700, exist_ok=True)
    for old in [row.path for row in bundles() if row.path.endswith(UNDONE)]:
        remove_bundle(old)
    for old in [row.path for row in bundles()][KEEP_BUNDLES - 1 :]:
        remove_bundle(old)
    path = os.path.join(evidence_root(), name) + UNDONE
    os.mkdir(path, 0o700)
    return path


def finish_bundle(path: str) -> str:
    """Gives the whole bundle its name; gives its path."""
    done = path[: -len(UNDONE)]
    os.rename(path, done)
    sync_folder(evidence_root())
    return done


# Locks of the program: flock on a file or a folder, which ends with the process that holds it.

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
POLL_S = 0.05
# how much of a holder's text is read
TEXT_BYTES = 1000


class FileLock:
    """One lock as a context manager; a subclass says where it lies and what a refusal tells.

    Waits at most `wait_s` seconds, then raises what `refused` gives.
    """

    # the holder's text stands in the file while it is held
    tells = False

    def __init__(self, wait_s: float = 2.0, shared: bool = False) -> None:
        self.wait_s = wait_s
        self.mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.fd = -1

    def path(self) -> str:
        """Gives the file, made when it is missing, or the folder; makes the folders above it."""
        raise NotImplementedError

    def refused(self, said: str) -> NodeError:
        """Gives the error when somebody else holds it; `said` is what that one wrote, or ""."""
        raise NotImplementedError

    def text(self) -> str:
        """Gives what is written into the file for those who wait (`tells`)."""
        return ""

    def __enter__(self) -> FileLock:
        path = self.path()
        self.fd = os.open(path, _FOLDER if os.path.isdir(path) else _FILE, 0o600)
        deadline = time.monotonic() + self.wait_s
        while not _taken(self.fd, self.mode):
            if time.monotonic() >= deadline:
                said = _said(self.fd)
                os.close(self.fd)
                raise self.refused(said)
            time.sleep(POLL_S)
        if self.tells:
            # the text is only information: without room for it (a full disk) flock is the lock
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
                os.pwrite(self.fd, self.text().encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.tells:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
        os.close(self.fd)


def _taken(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _said(fd: int) -> str:
    try:
        return os.pread(fd, TEXT_BYTES, 0).decode("utf-8", "replace")
    except IsADirectoryError:
        return ""


def held_by(path: str, shared: bool = True) -> str | None:
    """Gives what the holder of the lock wrote ("" for nothing), None when it is free; writes
    nothing. With `shared` those who hold it shared do not count.

    It tries flock for an instant; those who want to have it try again for longer.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _taken(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) else _said(fd)
    finally:
        os.close(fd)


# The host's one lock: flock on a file, so it ends with the process that holds it.


class Lock(FileLock):
    """The exclusive lock, as a context manager.

    Takes the verb (for the holder's text) and how long to wait, in seconds. Raises NodeError
    (`locked`) that names the holder.
    """

    # the text is only information, flock is the lock
    tells = True

    def __init__(self, verb: str, wait_s: float = 2.0) -> None:
        super().__init__(wait_s)
        self.verb = verb

    def path(self) -> str:
        """Gives the lock's file."""
        ensure_state()
        return lock_path()

    def refused(self, said: str) -> NodeError:
        """Gives the error that names the holder."""
        return NodeError(
            f"the lock is held by {lock_holder() or 'an unknown process'}",
            "locked",
            "wait for it, or look with: rignode status",
        )

    def text(self) -> str:
        """Gives who holds it, so that another boot's or a reused pid is told from it."""
        stat = proc.stat(os.getpid())
        return json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": stat.start_ticks if stat else 0,
                "boot_id": proc.boot_id(),
                "verb": self.verb,
                "since_unix_s": time.time(),
            }
        )


def lock_holder() -> str | None:
    """Gives who the lock file names, or None when that process is gone (or of another boot)."""
    try:
        known = json.loads(proc.read_text(lock_path()))
        pid, ticks = int(known["pid"]), int(known["start_ticks"])
        stat = proc.stat(pid)
        if stat is None or stat.start_ticks != ticks or known["boot_id"] != proc.boot_id():
            return None
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["since_unix_s"]))
        return f"pid {pid} ({known['verb']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return None


def host_lock() -> tuple[bool, str | None]:
    """Gives whether the lock is held now, and by whom; writes nothing."""
    if held_by(lock_path()) is None:
        return False, None
    return True, lock_holder() or "an unknown process"
