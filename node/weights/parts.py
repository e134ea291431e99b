"""What has come of each file, in `.rigbook/` beside the weights: a part that grows, or the whole
file, flushed, with its sha256 in its name, so that the next run need not read it again."""

from __future__ import annotations

import contextlib
import hashlib
import os

from node.core.errors import Json, NodeError

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
