"""Versions and names of Python packages."""

from __future__ import annotations

import re

# a version that can be a folder's name
VERSION = re.compile(r"[0-9][0-9A-Za-z]*([._+-][0-9A-Za-z]+)*\Z")
# a distribution's name as PEP 508 writes it
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,100}[A-Za-z0-9])?\Z")


def same_version(wanted: str, installed: str) -> bool:
    """Gives True when the installed version is the wanted one; 0.32.0 is any build (PEP 440)."""
    return wanted == installed or ("+" not in wanted and wanted == installed.partition("+")[0])
