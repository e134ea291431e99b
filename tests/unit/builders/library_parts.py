"""A library folder as `node library look` reports it, with one value changed at a time."""

from __future__ import annotations

from schema.observed.library import (
    Candidate,
    Elf,
    HostElf,
    LibraryFile,
    LibraryLook,
    Mapper,
    Plugin,
    PodName,
    Swapped,
)

FOLDER = "/usr/local/vgpu"
BASE = f"{FOLDER}/libvgpu.so"
ORIGINAL, OURS, OTHER = "a" * 64, "b" * 64, "c" * 64
POD = "5c1e2d3f-0a1b-4c2d-8e3f-0123456789ab"
NAMES = ("cuCtxGetDevice", "cuInit", "cuMemAlloc_v2")


def elf(**changes: object) -> Elf:
    """What a library says of itself."""
    values = {"bits": 64, "machine": "x86-64", "shared": True, "soname": "", "exported": NAMES,
              "needed": ("libc.so.6",)}  # fmt: skip
    return Elf.model_validate({**values, **changes})


def file(path: str = BASE, **changes: object) -> LibraryFile:
    """One entry of the folder."""
    values = {"path": path, "kind": "file", "size": 863032, "inode": 7, "mode": "0755", "uid": 0,
              "gid": 0, "owner": "root", "group": "root", "sha256": ORIGINAL, "elf": elf(),
              "broken": None}  # fmt: skip
    return LibraryFile.model_validate({**values, **changes})


def mapper(**changes: object) -> Mapper:
    """A GPU process that has the library mapped."""
    values = {"pid": 812, "start_ticks": 9, "uid": 0, "argv0": "python3", "container": "d" * 64,
              "pod": POD, "path": BASE, "inode": 7, "deleted": False, "sha256": ORIGINAL,
              "source": BASE}  # fmt: skip
    return Mapper.model_validate({**values, **changes})


def plugin(image: str = "projecthami/hami:v2.4.0") -> Plugin:
    """The plugin's container."""
    return Plugin(namespace="gpu", name="hami-device-plugin", container="device-plugin",
                  image=image, args=(), mounts=("/usr/local/vgpu",))  # fmt: skip


def swapped(**changes: object) -> Swapped:
    """What an earlier swap wrote down."""
    values = {"rig": "olares", "node": "one", "target": BASE, "original": ORIGINAL, "ours": OURS,
              "guard": False, "reapply": False}  # fmt: skip
    return Swapped.model_validate({**values, **changes})


def look(**changes: object) -> LibraryLook:
    """A folder with the plugin's own library in it, and one pod that has it mapped."""
    values: dict[str, object] = {
        "folder": FOLDER,
        "host": HostElf(bits=64, machine="x86-64"),
        "files": (file(),),
        "preload": {"/etc/ld.so.preload": None, f"{FOLDER}/ld.so.preload": f"{BASE}\n"},
        "mappers": (mapper(),),
        "plugins": (plugin(),),
        "pods": {POD: PodName(namespace="ai", name="lucebox-7d9", phase="Running",
                              owner_kind="ReplicaSet", owner="lucebox-7d")},
        "state": None,
    }  # fmt: skip
    return LibraryLook(**{**values, **changes})


def candidate(**changes: object) -> Candidate:
    """A library of ours that fits."""
    values = {"sha256": OURS, "size": 676000, "elf": elf(), "broken": None, "missing": (),
              "refused": None}  # fmt: skip
    return Candidate.model_validate({**values, **changes})
