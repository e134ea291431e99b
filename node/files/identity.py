"""Which file or folder it is: a file system gives an inode number again once it is free.

The device is not compared: its number may be another one after a reboot, and what trades places
lies on one file system.
"""

from __future__ import annotations

import ctypes
import os
import struct

from node.core.errors import Json

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


def of(path: str, info: os.stat_result) -> Json:
    """Gives the identity of what lies at a path, a link not followed; `info` is its lstat."""
    return {"ino": info.st_ino, "mark": _handle(path) or _birth(path)}
