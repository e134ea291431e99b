"""Wheels and layer for a machine with a GPU."""

from __future__ import annotations

import csv
import io
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from lab import core
from lab.core import LabError
from lab.engine import record_row

# What a machine with a GPU lacks to be a rig's host: systemd, dbus, ssh, sudo, as one layer.
#
# The layer lies over the machine's own root, so libraries that the machine has stay its own
# (lab/gpu.py).

# Named one by one: what apt would add (perl, a libc of its own) is the machine's already.
_PACKAGES = """
systemd systemd-sysv libsystemd-shared libpam-systemd dbus dbus-daemon dbus-bin
dbus-system-bus-common dbus-session-bus-common libdbus-1-3 openssh-server openssh-client
openssh-sftp-server sudo iproute2 zstd kmod libkmod2 procps libproc2-0 psmisc ethtool libssl3
libbpf1 libelf1 libmnl0 libxtables12 libcap2-bin libcap2 libapparmor1 libaudit1 libcap-ng0
libcryptsetup12 libfdisk1 libip4tc2 libseccomp2 libwrap0 libgssapi-krb5-2 libkrb5-3
libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libedit2 libbsd0 libmd0 libcbor0.8
libfido2-1 libjson-c5 libdevmapper1.02.1 libexpat1 libargon2-1 libgcrypt20 libgpg-error0
libacl1 libtirpc3 libtirpc-common libnsl2 libncursesw6 libtinfo6 iputils-ping strace
libunwind8 libudev1 jq libjq1 libonig5 rsync libpopt0 libxxhash0 curl libcurl4 libnghttp2-14
libidn2-0 libunistring2 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2
libsasl2-modules-db libbrotli1 file libmagic1 libmagic-mgc netcat-openbsd lsof
"""
PACKAGES = _PACKAGES.split()
MERGED = ("bin", "sbin", "lib", "lib64")
LEFT_OUT = (
    "man", "doc", "locale", "info", "lintian", "bash-completion", "zsh", "common-licenses", "bug",
    "i18n",
)  # fmt: skip


def build_layer(target: Path, scratch: Path) -> None:
    """Pack the layer, `target` a .tar.gz, from Debian packages that apt has verified."""
    debs, tree = scratch / "debs", scratch / "layer"
    debs.mkdir(parents=True)
    for name in MERGED:
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    core.run_console(["apt-get", "download", "-q", *PACKAGES], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE
        ) as unpacker:
            subprocess.run(
                ["tar", "-x", "--keep-directory-symlink", "-C", tree],
                stdin=unpacker.stdout,
                check=True,
            )
    for name in LEFT_OUT:
        core.remove_tree(tree / "usr" / "share" / name)
    with tarfile.open(target, "w:gz", compresslevel=6) as packed:
        for name in (*MERGED, "etc", "usr", "var"):
            packed.add(tree / name, name)


# The engine's wheels as the parcel carries them: pinned, stored, without what is not needed.
#
# vLLM's own wheel holds machine code for many GPUs. That of other architectures is overwritten
# with
# zeros in place, so every address stays as it is, and packs to a tenth. Requirements go from all
# metadata: the machine has torch, transformers and more, which pip of a new venv does not see.
# vLLM's
# then name every wheel of the parcel.

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
VERSION = "0.23.0"
# Hopper (H100, H200); a parcel for another card is built with its major and minor
ARCHITECTURE = 90
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
# A fat binary (`fatbin`) in a shared object: its magic, then parts, each for one architecture.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_PTX, _CUBIN = 1, 2
# What a JIT compiler would take for an architecture that has no code of its own, if it is small.
SMALL = 200_000
LARGE = 30_000_000
DROPPED = re.compile(
    r"^vllm/vllm-rs$|^vllm/third_party/deep_gemm/include/|deep_gemm/_C\.cpython-3(?!12)\d"
    r"|\.jpg$|/static/swagger|\.a$|^pycountry/locales/"
)


def download(target: Path, requirements: str) -> list[Path]:
    """Fetch every wheel that a file of requirements/ pins by hash, for the machine's Python 3.12.

    Raises LabError with pip's own line.
    """
    target.mkdir(parents=True, exist_ok=True)
    argv = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--python-version=3.12", "--implementation=cp",
        "--abi=cp312", "--abi=abi3", "--abi=none", *(f"--platform={name}" for name in PLATFORMS),
        f"--dest={target}", f"--requirement={REQUIREMENTS / requirements}",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise LabError(f"pip download of {requirements}: {(lines or ['no output'])[-1]}")
    return sorted(target.glob("*.whl"))


def blank(data: bytes, architecture: int = ARCHITECTURE) -> bytes:
    """A shared object without the GPU code of other architectures: same size, zeros in its place.

    A binary that has none for this one keeps the newest PTX that it can run, if that is small.
    """
    kept = bytearray(data)
    at = 0
    while (at := kept.find(_MAGIC, at)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", kept, at)
        if version != 1 or header != 16 or at + 16 + size > len(kept):
            at += 4
            continue
        parts = list(_parts(kept, at + header, at + header + size))
        has = any(kind == _CUBIN and arch == architecture for kind, arch, _, _ in parts)
        ptx = max((a for k, a, _, _ in parts if k == _PTX and a <= architecture), default=None)
        small = sum(n for k, a, _, n in parts if k == _PTX and a == ptx) < SMALL
        for kind, arch, begin, length in parts:
            wanted = kind == _CUBIN and arch == architecture
            if not (wanted if has else kind == _PTX and arch == ptx and small):
                kept[begin : begin + length] = bytes(length)
        at += header + size
    return bytes(kept)


def _parts(data: bytearray, at: int, end: int) -> Iterable[tuple[int, int, int, int]]:
    """The parts of one fat binary: kind, architecture, where the code begins, its length."""
    while at < end:
        kind, _, header, length = struct.unpack_from("<HHIQ", data, at)
        yield kind, struct.unpack_from("<I", data, at + 28)[0], at + header, length
        at += header + length


def metadata(text: str, requires: Iterable[str]) -> str:
    """A wheel's METADATA with these requirements and no others."""
    head, mark, body = text.partition("\n\n")
    rows = [row for row in head.splitlines() if not row.startswith(("Requires-Dist:", "Provides-"))]
    return "\n".join([*rows, *(f"Requires-Dist: {one}" for one in requires)]) + mark + body


def slim(source: Path, folder: Path, requires: Iterable[str] = ()) -> Path:
    """The wheel in `folder`, stored (the parcel compresses better), with these requirements."""
    target = folder / source.name
    rows: list[list[str]] = []
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new,
    ):
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        for member in old.infolist():
            name = member.filename
            if member.is_dir() or name == record or DROPPED.search(name):
                continue
            data = old.read(member)
            if name == record.replace("RECORD", "METADATA"):
                data = metadata(data.decode(), requires).encode()
            elif name.endswith(".abi3.so") and len(data) > LARGE:
                data = blank(data)
            elif name.endswith(".so") and "xgrammar" in name:
                data = _stripped(data)
            info = zipfile.ZipInfo(name, member.date_time)
            info.external_attr = member.external_attr
            new.writestr(info, data)
            rows.append(record_row(name, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, [record, "", ""]])
        new.writestr(record, text.getvalue())
    return target


def _stripped(data: bytes) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        core.run_console(["strip", file.name])
        return Path(file.name).read_bytes()


def made(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A wheel of our own: these files, and metadata that call it a stand-in."""
    info = f"{name}-{version}.dist-info"
    tagged = folder / f"{name}-{version}-py3-none-any.whl"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: rigbook lab: a stand-in\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: rigbook\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    with zipfile.ZipFile(tagged, "w") as wheel:
        for path, text in texts.items():
            wheel.writestr(path, text)
        lines = [",".join(record_row(path, text.encode())) for path, text in texts.items()]
        wheel.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return tagged


def name_of(wheel: Path) -> str:
    """The distribution that a wheel's file name says."""
    return wheel.name.partition("-")[0]
