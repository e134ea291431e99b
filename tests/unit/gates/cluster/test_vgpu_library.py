"""The gates of a swapped library: which file counts, what may replace it, whether it stayed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gates.cluster import vgpu_library as gates
from gates.cluster.mounted_library import target_of
from gates.core.violation import Violation
from gates.core.waiver import apply_waivers
from schema.observed.library import LibraryLook
from schema.observed.snapshot import Unreadable
from tests.unit.builders.library_parts import (
    BASE,
    FOLDER,
    NAMES,
    ORIGINAL,
    OTHER,
    OURS,
    candidate,
    elf,
    file,
    look,
    mapper,
    plugin,
    swapped,
)

VERSIONED = (file(), file(f"{BASE}.v2.4.0"), file(f"{BASE}.v2.5.0"))


def codes(found: Iterable[Violation]) -> list[str]:
    """The codes of findings."""
    return [violation.code for violation in found]


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (look(), BASE),
        (look(files=VERSIONED), f"{BASE}.v2.4.0"),
        (look(files=VERSIONED, plugins=(plugin("hub/hami:2.5.0@sha256:ab"),)), f"{BASE}.v2.5.0"),
        (look(files=VERSIONED, plugins=(plugin("hami:beclab-7"),),
              mappers=(mapper(source=f"{BASE}.v2.5.0"),)), f"{BASE}.v2.5.0"),
        (look(files=VERSIONED, plugins=Unreadable(unreadable="no kubectl"), mappers=()), None),
        (look(files=VERSIONED, plugins=(), mappers=(mapper(source=BASE),
              mapper(source=f"{BASE}.v2.4.0"))), None),
        (look(files=()), None),
    ],
)  # fmt: skip
def test_the_versioned_file_is_the_one_mounted(now: LibraryLook, path: str | None) -> None:
    """Fault 31; what cannot be told blocks."""
    assert target_of(now).path == path
    found = list(gates.target_known("one", now, None))
    assert codes(found) == ([] if path else ["libvgpu-target"])


def test_target_names_the_file_and_a_link_is_not_swapped() -> None:
    now = look(files=(*VERSIONED, file(f"{BASE}.1", kind="other", broken="a symbolic link")))
    assert target_of(now, BASE).path == BASE
    assert target_of(now, "/etc/passwd").path is None
    linked = list(gates.target_known("one", now, f"{BASE}.1"))
    assert "a symbolic link" in linked[0].summary


def test_another_library_than_the_two_known_ones_blocks() -> None:
    """A new plugin's own, fixed library is told apart from its old one."""
    for digest, wanted in ((ORIGINAL, []), (OURS, []), (OTHER, ["libvgpu-other"])):
        now = look(state=swapped())
        assert codes(gates.known_content("one", now, file(sha256=digest), OURS)) == wanted
    assert codes(gates.known_content("one", look(), file(sha256=OTHER), OURS)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"elf": None, "broken": "cut off: section 3 ends at byte 9 of 8"}, "cut off"),
        ({"elf": None, "broken": "not an ELF file (starts with 4747)"}, "not an ELF file"),
        ({"elf": elf(machine="aarch64"), "refused": "left out"}, "64 bits aarch64, the host is"),
        ({"elf": elf(bits=32, machine="i386")}, "32 bits i386"),
        ({"elf": elf(shared=False)}, "not a shared library"),
        ({"missing": ("libcudart.so.12",), "refused": "x"}, "the host lacks libcudart.so.12"),
        ({"refused": "the loader leaves it out"}, "the loader leaves it out"),
    ],
)
def test_a_library_that_does_not_fit_is_named(changes: dict[str, object], said: str) -> None:
    """Fault 30."""
    found = list(gates.candidate_fits("one", look(), file(), candidate(**changes)))
    assert codes(found) == ["libvgpu-candidate"] and said in found[0].evidence


def test_a_library_that_fits_is_not() -> None:
    now = look()
    assert codes(gates.candidate_fits("one", now, file(), candidate())) == []
    assert codes(gates.symbols_kept("one", file(), candidate(), ())) == []
    assert [*gates.readable("one", now), *gates.preloaded("one", now)] == []


def test_lost_names_block_unless_each_is_named() -> None:
    """Fault 30: missing symbols."""
    small = candidate(elf=elf(exported=NAMES[:1]))
    found = list(gates.symbols_kept("one", file(), small, ("cuInit",)))
    assert codes(found) == ["libvgpu-symbols"] and found[0].evidence == "cuMemAlloc_v2"
    assert "--data without=cuMemAlloc_v2" in found[0].remedy
    assert codes(gates.symbols_kept("one", file(), small, NAMES)) == []


def test_of_many_lost_names_each_is_told_and_a_reason_is_enough() -> None:
    """The field report's own swap lost them by the dozen, and nobody types `without` for those."""
    lost = tuple(f"cuHook{n:03}" for n in range(187))
    found = list(gates.symbols_kept("one", file(elf=elf(exported=lost)), candidate(), ()))
    assert found[0].evidence.split(", ") == list(lost)
    assert found[0].remedy.endswith('libvgpu.py --data waive=libvgpu-symbols --data reason="…"')
    assert apply_waivers(found, ("libvgpu-symbols",), "no pod here calls them") == ([], found)


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("/etc/ld.so.preload", f"{BASE}\n", 1),
        ("/etc/ld.so.preload", "/usr/lib/other.so\n", 0),
        (f"{FOLDER}/ld.so.preload", "", 1),
        (f"{FOLDER}/ld.so.preload", None, 0),
        (f"{FOLDER}/ld.so.preload", Unreadable(unreadable="EIO"), 1),
    ],
)
def test_the_preload_files(path: str, text: object, count: int) -> None:
    assert codes(gates.preloaded("one", look(preload={path: text}))) == ["libvgpu-preload"] * count


def test_what_cannot_be_read_blocks() -> None:
    dark = Unreadable(unreadable="no permission")
    for changes in ({"files": dark}, {"mappers": dark}, {"state": dark}):
        found = list(gates.readable("one", look(**changes)))
        assert codes(found) == ["libvgpu-unreadable"] and found[0].severity == "block"


def test_doctor_names_the_overwrite_and_who_keeps_the_old_one() -> None:
    """Faults 29 and 32, incident A6."""
    state = swapped()
    back = list(gates.stayed("one", look(state=state)))
    assert codes(back) == ["libvgpu-drift"] and "put its own library back" in back[0].summary
    new = list(gates.stayed("one", look(state=state, files=(file(sha256=OTHER),))))
    assert codes(new) == ["libvgpu-drift"] and "no longer the library" in new[0].summary
    gone = list(gates.stayed("one", look(state=state, files=())))
    assert "it is gone" in gone[0].evidence
    good = look(state=state, files=(file(sha256=OURS),))
    assert codes(gates.stayed("one", good)) == [] and codes(gates.stayed("one", look())) == []
    old = list(gates.old_mapped("one", good))
    assert codes(old) == ["libvgpu-old-mapped"] and old[0].severity == "warn"
    assert old[0].evidence == "ai/lucebox-7d9 (pid 812) has aaaaaaaaaaaa"
    assert codes(gates.old_mapped("one", look(state=state, mappers=(mapper(sha256=OURS),)))) == []
