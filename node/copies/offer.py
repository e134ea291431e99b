"""tree offer: give a backup to a peer, or a copy that this host keeps back to the one it is of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from node.backup import kept_files, store
from node.copies import host_pack, others
from node.core.errors import Json, NodeError
from node.files import cold_read
from node.transfer import server
from node.transfer.block import BLOCK


class Folder(server.Source):
    """A backup's folder: its files, and the host's files in it as one tar. Raises NodeError."""

    def __init__(self, backup: str, folder: str) -> None:
        self._folder = folder
        self._manifest = store.parse(backup, folder)
        found = kept_files.check(backup, self._manifest, os.path.join(folder, store.FILES))
        self._pack = host_pack.dump(found)
        self._rows = [{"name": name, "size": row["bytes"], "sha256": row["sha256"]}
                      for name, row in store.parts(self._manifest).items()]  # fmt: skip
        digest = hashlib.sha256(self._pack).hexdigest()
        self._rows.append({"name": host_pack.NAME, "size": len(self._pack), "sha256": digest})

    def listing(self) -> Json:
        """Gives the manifest, and the items by number."""
        return {"manifest": self._manifest, "files": self._rows}

    def size(self, item: int) -> int:
        """Gives a file's size."""
        return int(self._rows[item]["size"])

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a file's bytes."""
        name = self._rows[item]["name"]
        if name == host_pack.NAME:
            for at in range(offset, len(self._pack), BLOCK):
                yield memoryview(self._pack)[at : at + BLOCK]
            return
        fd = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        buffer = bytearray(BLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file, cold_read.Passing(fd) as passing:
            file.seek(offset)
            for count in iter(lambda: file.readinto(buffer), 0):
                yield memoryview(buffer)[:count]
                offset += count
                passing.upto(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Is told what came out of the file; the taker compares it with the manifest."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives what the manifest says of a file."""
        return str(self._rows[item]["sha256"])


def offer(request: Json) -> Json:
    """`tree offer`: give `backup` of this host, or with `host` the copy of it that is kept for that
    one, to the peers. Raises NodeError.
    """
    wanted = server.parse_request(request, ["backup", "host"])
    backup = store.checked_id(request["backup"])
    if request["host"] is None:
        with store.Held(shared=True):
            row = store.inspect(backup)
            if row.problem or not row.verified:
                raise NodeError(f"backup {backup} is not verified {row.problem}".rstrip(),
                                "no_backup", "rignode tree verify")  # fmt: skip
            return server.serve(Folder(backup, store.of(backup)), wanted)
    host = others.host_name(request["host"], "host")
    folder = others.folder(host, backup)
    if not os.path.isdir(folder):
        raise NodeError(f"no copy of {backup} of {host} on this host", "no_backup",
                        "rignode tree copies")  # fmt: skip
    return server.serve(Folder(backup, folder), wanted)
