"""The program on a node by its version, as the units that rigbook writes name it.

A unit names the versioned file, so that a run of another checkout does not change what the next
boot starts. /usr/local/bin/rignode leads to the newest one and is for people.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

NODE = Path(__file__).resolve().parents[2] / "node"
LIBRARY = "/usr/local/lib/rigbook"
LINK = "/usr/local/bin/rignode"
# units of rigbook 1 named the link
_NAMED = re.compile(rf"{re.escape(LINK)}|{re.escape(LIBRARY)}/rignode-[0-9a-f]{{12}}\.pyz")


@functools.cache
def paths() -> dict[str, Path]:
    """The program's files, `node/...` to where each stands, sorted."""
    found = {f"node/{p.relative_to(NODE).as_posix()}": p for p in NODE.rglob("*.py")}
    return {name: found[name] for name in sorted(found)}


@functools.cache
def raw(name: str) -> bytes:
    """The bytes of one of `paths`."""
    return paths()[name].read_bytes()


def whole() -> dict[str, bytes]:
    """All files of the program, `node/...` to bytes, sorted."""
    return {name: raw(name) for name in paths()}


@functools.cache
def version() -> str:
    """The first 12 hex digits of the sha256 over the program's files."""
    digest = hashlib.sha256()
    for name, source in whole().items():
        digest.update(f"{name}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()[:12]


def path() -> str:
    """The path of this checkout's program on a node."""
    return f"{LIBRARY}/rignode-{version()}.pyz"


def programs_in(text: str) -> list[str]:
    """The programs that a unit's text names, each once."""
    return list(dict.fromkeys(_NAMED.findall(text)))


def unversioned(text: str) -> str:
    """A unit's text with the link in place of the versions that it names."""
    return _NAMED.sub(LINK, text)


def same_but_program(one: str, other: str) -> bool:
    """Whether two texts of a unit differ in nothing but the version of the program they name."""
    return unversioned(one) == unversioned(other)
