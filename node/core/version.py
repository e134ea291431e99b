"""Where the versions of the program lie, which one the console runs, and which one this is."""

from __future__ import annotations

import os
import re

LINK = "/usr/local/bin/rignode"
LIBRARY = "/usr/local/lib/rigbook"
NAME = re.compile(r"rignode-[0-9a-f]{12}\.pyz")


def own_path() -> str | None:
    """Gives the zipapp that this is, by its path; where it was sent and runs from memory, the path
    that it would have. None when it is no zipapp."""
    archive = globals().get("__file__", "").rpartition("/node/")[0]
    if archive.startswith("/proc/self/fd/"):
        found = NAME.search(os.readlink(archive))
        return os.path.join(LIBRARY, found[0]) if found else None
    return archive if NAME.fullmatch(os.path.basename(archive)) else None


def installed_version() -> str | None:
    """Gives the version that the console's `rignode` link points to, or None."""
    try:
        name = os.path.basename(os.readlink(LINK))
    except OSError:
        return None
    return name[len("rignode-") : -len(".pyz")] if NAME.fullmatch(name) else None
