"""Names of kernels and of their modules, as they are typed."""

from __future__ import annotations

import re

# What `node` and GRUB take as a kernel's name.
RELEASE = re.compile(r"[0-9][A-Za-z0-9.+~_-]{0,100}\Z")


def release_name(value: str) -> str:
    """The value, when it is `current` or a kernel's release as `uname -r` says it."""
    if value != "current" and not RELEASE.match(value):
        raise ValueError("is no kernel; allowed: current, or such as 6.17.0-22-generic")
    return value


def module_name(value: str) -> str:
    """The value, when it is a kernel module's name with `_` for `-`."""
    if not re.match(r"[a-z][a-z0-9_]{0,31}\Z", value):
        raise ValueError("is no module's name; allowed: such as nvidia")
    return value
