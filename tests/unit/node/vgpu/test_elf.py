"""node/vgpu/elf.py against the real compiler and binutils' nm; what is broken is named."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from node.vgpu import elf
from tests.unit.node.support.libs import library, needing


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library as cc makes it."""
    more = "static int inner(void) { return 1; }\n__attribute__((weak)) int nvmlInit(void)"
    more += ' { return inner(); }\n__attribute__((visibility("hidden"))) int secret = 2;'
    return library(tmp_path_factory.mktemp("elf") / "libvgpu.so", 5000, 1, more,
                   "-Wl,-soname,libvgpu.so.2")  # fmt: skip


def exported_by_nm(path: Path) -> set[str]:
    """What binutils says that a library defines for others."""
    out = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True,
                         text=True, check=True).stdout  # fmt: skip
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def test_a_compiled_library_is_read_as_nm_reads_it(good: Path) -> None:
    found = elf.parse(good.read_bytes())
    assert (found.bits, found.shared, found.soname) == (64, True, "libvgpu.so.2")
    assert set(found.exported) == exported_by_nm(good)
    assert {"cuInit", "cuCtxGetDevice", "nvmlInit"} <= set(found.exported)
    assert not {"inner", "secret"} & set(found.exported)


def test_the_c_library_of_this_machine_is_read_as_nm_reads_it() -> None:
    ldd = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    path = Path(next(line.split()[2] for line in ldd.splitlines() if "libc.so.6" in line))
    assert set(elf.parse(path.read_bytes()).exported) == exported_by_nm(path)


def test_needed_libraries_stand_in_their_order(tmp_path: Path) -> None:
    assert elf.parse(needing(tmp_path).read_bytes()).needed[0] == "libdep.so"


def test_machine_of_this_process_is_that_of_a_compiled_library(good: Path) -> None:
    own = Path("/proc/self/exe").read_bytes()[:64]
    assert elf.machine_of(own) == elf.machine_of(good.read_bytes()[:64])


def test_every_truncation_is_named(good: Path) -> None:
    """A cut at any place: never accepted, and never another error than ours."""
    raw = good.read_bytes()
    for size in [*range(0, 200), *range(200, len(raw), 97), len(raw) - 1]:
        with pytest.raises(elf.BrokenElf) as caught:
            elf.parse(raw[:size])
        assert any(word in str(caught.value) for word in ("cut off", "not an ELF")), size


def test_any_flipped_byte_gives_an_answer_or_our_error(good: Path) -> None:
    raw = good.read_bytes()
    for at in range(0, len(raw), 41):
        changed = raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]
        with contextlib.suppress(elf.BrokenElf):
            elf.parse(changed)


@pytest.mark.parametrize(("raw", "said"), [
    (b"", "not an ELF file (starts with nothing)"),
    (b"#!/bin/sh\necho hello\n", "not an ELF file (starts with 23212f62696e2f73)"),
    (b"GGUF" + b"\0" * 100, "not an ELF file (starts with 4747554600000000)"),
    (b"\x7fELF" + b"\x09" * 80, "no known class"),
])  # fmt: skip
def test_what_is_no_elf_is_told(raw: bytes, said: str) -> None:
    with pytest.raises(elf.BrokenElf) as caught:
        elf.parse(raw)
    assert said in str(caught.value)


def test_without_section_headers_it_is_not_whole(good: Path) -> None:
    raw = bytearray(good.read_bytes())
    raw[40:48] = bytes(8)
    with pytest.raises(elf.BrokenElf, match="no section headers"):
        elf.parse(bytes(raw))
