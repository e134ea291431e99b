"""What DKMS had built and modprobe was told, kept in one tar file beside the package files.

An undo has dpkg put the old packages back, and DKMS builds their module anew. Where it cannot any
more (a newer compiler, headers that are gone), the former module is taken from this file.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator

from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run
from node.driver import loaded, store
from node.files import atomic, state_dir
from node.kernel import installed

DKMS = "/var/lib/dkms"
CONF = ("/etc/modprobe.d", "/etc/modules-load.d")
# dkms's own common.postinst builds nothing while this file is there
NO_BUILD = "/etc/dkms/no-autoinstall"
_MADE = b"made by rigbook for the time of an undo\n"
DEPMOD_S = 120.0


def conf() -> dict[str, str]:
    """Gives path -> sha256 of what modprobe is told, without the block of this change."""
    found = {}
    for path in sorted(path for folder in CONF for path in glob.glob(f"{folder}/*")):
        if path != loaded.BLOCK and stat.S_ISREG(os.lstat(path).st_mode):
            with open(path, "rb") as stream:
                found[path] = hashlib.sha256(stream.read()).hexdigest()
    return found


def _built(name: str, versions: Iterable[str | None]) -> list[str]:
    """Gives the folders in which DKMS has the driver of these versions."""
    found = (path for version in set(versions) if version
             for path in glob.glob(f"{DKMS}/*/{glob.escape(version)}"))  # fmt: skip
    return sorted(path for path in found if glob.glob(f"{path}/*/*/module/{name}*.ko*"))


def keep(name: str, versions: dict[str, str | None]) -> Json:
    """Writes the file: what DKMS has, each kernel's (`versions`) module files, what modprobe is
    told. Gives {path, conf}. Raises OSError, TimedOut.
    """
    told = conf()
    paths = [*_built(name, versions.values()), *told]
    for release in versions:
        found = installed.module_of(release, name)
        folder = os.path.dirname(found["path"]) if found else ""
        # what a package has brought itself comes back with the package
        if "/updates" in folder:
            paths += sorted(glob.glob(f"{folder}/{name}*.ko*"))
    fd, path = tempfile.mkstemp(prefix="kept-", suffix=".tar", dir=store.folder())
    with os.fdopen(fd, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for each in paths:
            archive.add(each)
        archive.close()
        stream.flush()
        os.fsync(stream.fileno())
    state_dir.sync_folder(store.folder())
    return {"path": path, "conf": told}


def moved(kept: Json, after: dict[str, str] | None) -> list[str]:
    """Gives the files of modprobe.d that the packages changed: not as kept, and since the step
    untouched. `after` None: the step was cut short, and whatever differs is the packages' doing.
    """
    now, before = conf(), kept["conf"]
    return [path for path in sorted({*before, *now, *(after or {})})
            if now.get(path) != before.get(path)
            and (after is None or now.get(path) == after.get(path))]  # fmt: skip


def put_back_conf(kept: Json, after: dict[str, str] | None) -> list[str]:
    """Puts those files back; gives their paths. Raises OSError, NodeError."""
    paths = moved(kept, after)
    if paths:
        with _archive(kept) as archive:
            for path in paths:
                with atomic.Folder(path) as folder:
                    if path not in kept["conf"]:
                        folder.unlink(folder.name)
                        continue
                    row = archive.getmember(path.lstrip("/"))
                    stream = archive.extractfile(row)
                    raw = stream.read() if stream else b""
                    atomic.replace(folder, raw, atomic.Owner(row.mode, row.uid, row.gid),
                                   atomic.temp_name(folder.name))  # fmt: skip
    return paths


def put_back_modules(kept: Json, releases: Iterable[str]) -> None:
    """Puts DKMS's folders and the module files back, and has depmod read them. Raises OSError,
    NodeError.
    """
    with _archive(kept) as archive:
        for row in archive.getmembers():
            path = f"/{row.name}"
            if path not in kept["conf"]:
                _extract(archive, row, path)
    for release in releases:
        with contextlib.suppress(FileNotFoundError, TimedOut):
            run(["depmod", release], DEPMOD_S)


@contextlib.contextmanager
def _archive(kept: Json) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(kept["path"]) as archive:
            yield archive
    except (FileNotFoundError, tarfile.TarError, KeyError) as error:
        raise NodeError(f"{kept['path']}: {error}", "not_fetched") from None


def _extract(archive: tarfile.TarFile, row: tarfile.TarInfo, path: str) -> None:
    if row.isdir():
        os.makedirs(path, mode=0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if row.issym():
        os.symlink(row.linkname, path)
        return
    stream = archive.extractfile(row)
    if stream is not None:
        with open(path, "xb") as out:
            while raw := stream.read(1 << 20):
                out.write(raw)
            os.fchmod(out.fileno(), row.mode)
            os.fsync(out.fileno())


@contextlib.contextmanager
def nothing_built() -> Iterator[None]:
    """While it lasts, a package's postinst has DKMS build nothing: what is kept is put there."""
    if not os.path.exists(NO_BUILD):
        os.makedirs(os.path.dirname(NO_BUILD), exist_ok=True)
        with open(NO_BUILD, "xb") as stream:
            stream.write(_MADE)
    try:
        yield
    finally:
        forget_mark()


def forget_mark() -> None:
    """Removes the mark of an undo, this one's or one that was cut short."""
    with contextlib.suppress(FileNotFoundError), open(NO_BUILD, "rb") as stream:
        if stream.read(len(_MADE) + 1) == _MADE:
            os.unlink(NO_BUILD)
