"""The version of the program that runs here, and of the one that the console's `rignode` runs."""

from __future__ import annotations

import os

LINK = "/usr/local/bin/rignode"
PROGRAMS = "/usr/local/lib/rigbook"


def _of(name: str) -> str | None:
    """Gives the version in the name of a program's file."""
    if name.startswith("rignode-") and name.endswith(".pyz"):
        return name[len("rignode-") : -len(".pyz")]
    return None


def running_version() -> str | None:
    """Gives the version of this very program; None where it is not the installed file."""
    return next(filter(None, map(_of, __file__.split("/"))), None)


def path_of(version: str) -> str:
    """Gives where a version of the program is installed."""
    return os.path.join(PROGRAMS, f"rignode-{version}.pyz")


def installed_version() -> str | None:
    """Gives the version that the console's `rignode` link points to, or None."""
    try:
        return _of(os.path.basename(os.readlink(LINK)))
    except OSError:
        return None
