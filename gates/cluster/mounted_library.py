"""Which library of a host counts: HAMi's plugin mounts `libvgpu.so.VERSION` where that exists, else
`libvgpu.so` (nvinternal/plugin/util.go).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from schema.observed.library import LibraryFile, LibraryLook, Mapper, PodName, Swapped
from schema.observed.snapshot import Unreadable

BASE = "libvgpu.so"
_TAG = re.compile(r":([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})(?:@|\Z)")


@dataclass(frozen=True)
class Target:
    """The file that the plugin mounts and how we know; `path` None: it cannot be told, and why."""

    path: str | None
    how: str


def files_of(look: LibraryLook) -> dict[str, LibraryFile]:
    """The folder's libraries by path; none where it cannot be read."""
    return {} if isinstance(look.files, Unreadable) else {file.path: file for file in look.files}


def target_of(look: LibraryLook, wanted: str | None = None) -> Target:
    """The file that counts: the one that was named, the plugin's version, what live pods mount."""
    files = files_of(look)
    base = f"{look.folder}/{BASE}"
    if wanted is not None:
        return Target(wanted, "named by target") if wanted in files else Target(
            None, f"target {wanted} is not there; there are: {', '.join(files) or 'none'}"
        )  # fmt: skip
    versioned = [path for path in files if path.startswith(base + ".")]
    if not versioned:
        if base in files:
            return Target(base, "the only one there")
        return Target(None, f"no {BASE} in {look.folder}")
    named = [path for tag in _tags(look) for path in versioned if _is_version(path, base, tag)]
    if len(set(named)) == 1:
        return Target(named[0], "the version of the plugin's image")
    mounted = {m.source for m in mappers_of(look) if m.pod and m.source in files}
    if len(mounted) == 1:
        return Target(str(mounted.pop()), "what the running GPU pods mount")
    seen = f"running pods mount {', '.join(sorted(map(str, mounted))) or 'none of them'}"
    tags = f"the plugin's image has the version {', '.join(_tags(look)) or 'unknown'}"
    return Target(None, f"there are {', '.join(sorted(files))}; {tags}; {seen}")


def _tags(look: LibraryLook) -> list[str]:
    if look.plugins is None or isinstance(look.plugins, Unreadable):
        return []
    return [match[1] for plugin in look.plugins if (match := _TAG.search(plugin.image))]


def _is_version(path: str, base: str, tag: str) -> bool:
    return path.removeprefix(base + ".").removeprefix("v") == tag.removeprefix("v")


def mappers_of(look: LibraryLook) -> tuple[Mapper, ...]:
    """Who maps a library; none where that cannot be read."""
    return () if isinstance(look.mappers, Unreadable) else look.mappers


def state_of(look: LibraryLook) -> Swapped | None:
    """What an earlier swap left written down; None where there was none or it is unreadable."""
    return None if isinstance(look.state, Unreadable) else look.state


def named(look: LibraryLook, mapper: Mapper) -> str:
    """A mapper in words: pod (or program), pid, and which bytes it has."""
    pods: dict[str, PodName] = look.pods if isinstance(look.pods, dict) else {}
    pod = pods.get(mapper.pod or "")
    who = f"{pod.namespace}/{pod.name}" if pod else (mapper.pod or mapper.argv0)
    return f"{who} (pid {mapper.pid}) has {short(mapper.sha256)}"


def short(sha256: str | None) -> str:
    """The first digits of a hash, as people compare them."""
    return sha256[:12] if sha256 else "unknown"
