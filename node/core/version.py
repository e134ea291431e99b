"""Where the versions of the program lie, and which one the console's `rignode` runs."""

from __future__ import annotations

import os

LINK = "/usr/local/bin/rignode"
LIBRARY = "/usr/local/lib/rigbook"


def installed_version() -> str | None:
    """Gives the version that the console's `rignode` link points to, or None."""
    try:
        name = os.path.basename(os.readlink(LINK))
    except OSError:
        return None
    if name.startswith("rignode-") and name.endswith(".pyz"):
        return name[len("rignode-") : -len(".pyz")]
    return None
