"""The host's files of a backup as one tar: how they travel where owners and modes are not kept."""

from __future__ import annotations

import io
import re
import tarfile

from node.backup import store
from node.backup.kept_files import MAX_ALL, Found, Kept
from node.core import validate
from node.core.errors import Json, NodeError

NAME = "files.tar"
# 50 arguments of 50 files each, a header of at most 2 KiB and the padding for each
MOST = MAX_ALL + 2500 * 3072
_TIME = re.compile(r"(\d{1,12})\.(\d{9})")


def dump(found: Found) -> bytes:
    """Gives the tar: the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, kept in sorted(found.items()):
            if kept is None:
                continue
            info = tarfile.TarInfo(path[1:])
            info.size, info.mode = len(kept.raw), kept.mode
            info.uid, info.gid, info.mtime = kept.uid, kept.gid, kept.mtime // 10**9
            # to the nanosecond, which a float does not hold
            info.pax_headers = {"mtime": f"{kept.mtime // 10**9}.{kept.mtime % 10**9:09}"}
            tar.addfile(info, io.BytesIO(kept.raw))
    return raw.getvalue()


def load(raw: bytes, manifest: Json) -> Found:
    """Gives the files of a tar that a manifest lists. Raises NodeError (`backup_damaged`)."""
    listed = manifest["files"]
    found: Found = dict.fromkeys(listed)
    for path in listed:
        validate.path(path, "files")
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
            for info in tar:
                file = tar.extractfile(info) if info.isreg() else None
                if file is None or f"/{info.name}" not in listed:
                    raise store.damaged(manifest["id"], f"{NAME} has {info.name[:80]!r}")
                found[f"/{info.name}"] = Kept(file.read(), info.mode, info.uid, info.gid,
                                              _mtime(info))  # fmt: skip
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise store.damaged(manifest["id"], f"{NAME}: {error}") from None
    return found


def _mtime(info: tarfile.TarInfo) -> int:
    exact = _TIME.fullmatch(info.pax_headers.get("mtime", ""))
    if exact is None:
        raise NodeError(f"{NAME}: {info.name[:80]!r} has no time", "backup_damaged")
    return int(exact[1]) * 10**9 + int(exact[2])
