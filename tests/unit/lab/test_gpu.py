"""The GPU tier's parcels: what is blanked in a wheel, what its metadata ask for, what is bound."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from lab.gpu import host, wheels

PTX, CUBIN = 1, 2


def part(kind: int, architecture: int, size: int = 32) -> bytes:
    """A part of a fat binary whose code is its architecture's digits."""
    code = (str(architecture).encode() * size)[:size]
    head = struct.pack("<HHIQ", kind, 0, 64, len(code)).ljust(28, b"\0")
    return (head + struct.pack("<I", architecture)).ljust(64, b"\0") + code


def binary(*parts: bytes) -> bytes:
    """A shared object with one fat binary in its middle."""
    body = b"".join(parts)
    return b"ELF" * 5 + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + b"END"


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([(CUBIN, 80), (CUBIN, 90), (PTX, 90)], {(CUBIN, 90)}),
        # nothing for this card: the newest PTX that it can translate
        ([(CUBIN, 80), (PTX, 80), (PTX, 75), (PTX, 100)], {(PTX, 80)}),
        ([(CUBIN, 100)], set()),
    ],
)
def test_code_of_other_cards_is_blanked_and_nothing_moves(
    parts: list[tuple[int, int]], kept: set[tuple[int, int]]
) -> None:
    data = binary(*(part(*one) for one in parts))
    found = wheels.blank(data, 90)
    assert len(found) == len(data) and found.startswith(b"ELF") and found.endswith(b"END")
    for kind, architecture in parts:
        code = part(kind, architecture)[64:]
        at = data.index(part(kind, architecture)) + 64
        wanted = code if (kind, architecture) in kept else bytes(len(code))
        assert found[at : at + len(code)] == wanted, (kind, architecture)


def test_large_ptx_is_not_worth_its_room() -> None:
    data = binary(part(PTX, 80, wheels.SMALL))
    assert bytes(wheels.SMALL) in wheels.blank(data, 90)


def test_bytes_that_only_look_like_a_fat_binary_stay() -> None:
    data = struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 10) + b"some other data"
    assert wheels.blank(data) == data


def test_a_slim_wheel_asks_for_nothing_but_what_it_is_told(tmp_path: Path) -> None:
    source, target = tmp_path / "x", tmp_path / "y"
    source.mkdir()
    target.mkdir()
    made = wheels.made(
        source, "vllm", "0.23.0", {"vllm/a.py": "", "vllm/b.jpg": "", "vllm/c.a": ""}
    )
    slim = wheels.slim(made, target, ("torch", "xgrammar"))
    with zipfile.ZipFile(slim) as wheel:
        names = wheel.namelist()
        text = wheel.read("vllm-0.23.0.dist-info/METADATA").decode()
        record = wheel.read("vllm-0.23.0.dist-info/RECORD").decode()
    assert "vllm/a.py" in names and not {"vllm/b.jpg", "vllm/c.a"} & set(names)
    assert "Requires-Dist: torch\nRequires-Dist: xgrammar" in text
    assert "b.jpg" not in record and record.count("\n") == len(names)


def test_metadata_lose_what_only_another_machine_has() -> None:
    head = "Name: x\nRequires-Dist: numba==0.6\nProvides-Extra: y\nVersion: 1"
    text = f"{head}\n\nRequires-Dist: in prose"
    assert wheels.metadata(text, ()) == "Name: x\nVersion: 1\n\nRequires-Dist: in prose"


def test_only_mounts_that_hold_programs_are_bound() -> None:
    rows = [
        "/",
        "/proc",
        "/usr/local/nvidia",
        "/home",
        "/opt/torch",
        f"{host.BASE}/mnt",
        "/usr/lib/x",
    ]
    text = "\n".join(f"1 2 0:1 / {path} rw - ext4 x rw" for path in rows)
    wanted = sorted(p for p in ("/usr/local/nvidia", "/opt/torch", "/usr/lib/x"))
    assert [p for p in host._mounts(text) if not p.startswith(str(host.BASE))] == wanted
