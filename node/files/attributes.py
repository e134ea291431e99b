"""Extended attributes of a file or folder; its POSIX ACLs are among them."""

from __future__ import annotations

import base64
import contextlib
import errno
import os

# the kernel's own: it makes them, and takes them from nobody
_KERNELS = ("security.ima", "security.evm", "trusted.overlay.", "system.nfs4_acl")

# the policy's: restorecon sets it anew, and that is nobody's edit
_RELABELLED = "security.selinux"


def read(fd: int) -> dict[str, str]:
    """Gives the attributes by name, in base64. Raises OSError."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return {}
    return {name: base64.b64encode(os.getxattr(fd, name)).decode("ascii")
            for name in sorted(names) if not name.startswith(_KERNELS)}  # fmt: skip


def write(fd: int, wanted: dict[str, str]) -> None:
    """Give it these attributes and no others, as far as the file system takes them.

    What it does not take is seen by whoever reads them afterwards: the bytes are not held up.
    """
    now = read(fd)
    for name in now.keys() - wanted.keys():
        with contextlib.suppress(OSError):
            os.removexattr(fd, name)
    for name, text in wanted.items():
        if now.get(name) != text:
            with contextlib.suppress(OSError):
                os.setxattr(fd, name, base64.b64decode(text))


def of(name: str, folder: int) -> dict[str, str]:
    """Gives the attributes of a file or folder in an opened folder. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=folder)
    try:
        return read(fd)
    finally:
        os.close(fd)


def judged(found: dict[str, str]) -> dict[str, str]:
    """Gives the attributes that only somebody's edit changes."""
    return {name: text for name, text in found.items() if name != _RELABELLED}


def differing(path: str, now: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Gives a line for each attribute that is not as wanted, its value left out."""
    out = []
    now, wanted = judged(now), judged(wanted)
    for name in sorted({*now, *wanted}):
        if now.get(name) != wanted.get(name):
            how = "gone" if name not in now else "new" if name not in wanted else "another one"
            out.append(f"{path}: the attribute {name} is {how} (getfattr -m - -d {path})")
    return out
