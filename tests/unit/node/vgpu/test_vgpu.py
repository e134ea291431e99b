"""node/vgpu.py against the real compiler and binutils' nm; what is broken is named."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from facts import pack
from node import vgpu as node_vgpu
from node.core import mapped_files
from tests.unit.node.support.host import Host, apply_request, at_most
from tests.unit.node.support.libs import HOLDER, cc, folder, holding, library, needing, sha


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
    found = node_vgpu.parse_elf(good.read_bytes())
    assert (found.bits, found.shared, found.soname) == (64, True, "libvgpu.so.2")
    assert set(found.exported) == exported_by_nm(good)
    assert {"cuInit", "cuCtxGetDevice", "nvmlInit"} <= set(found.exported)
    assert not {"inner", "secret"} & set(found.exported)


def test_the_c_library_of_this_machine_is_read_as_nm_reads_it() -> None:
    ldd = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    path = Path(next(line.split()[2] for line in ldd.splitlines() if "libc.so.6" in line))
    assert set(node_vgpu.parse_elf(path.read_bytes()).exported) == exported_by_nm(path)


def test_needed_libraries_stand_in_their_order(tmp_path: Path) -> None:
    assert node_vgpu.parse_elf(needing(tmp_path).read_bytes()).needed[0] == "libdep.so"


def test_machine_of_this_process_is_that_of_a_compiled_library(good: Path) -> None:
    own = Path("/proc/self/exe").read_bytes()[:64]
    assert node_vgpu.machine_of(own) == node_vgpu.machine_of(good.read_bytes()[:64])


def test_every_truncation_is_named(good: Path) -> None:
    """A cut at any place: never accepted, and never another error than ours."""
    raw = good.read_bytes()
    for size in [*range(0, 200), *range(200, len(raw), 97), len(raw) - 1]:
        with pytest.raises(node_vgpu.BrokenElf) as caught:
            node_vgpu.parse_elf(raw[:size])
        assert any(word in str(caught.value) for word in ("cut off", "not an ELF")), size


def test_any_flipped_byte_gives_an_answer_or_our_error(good: Path) -> None:
    raw = good.read_bytes()
    for at in range(0, len(raw), 41):
        changed = raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]
        with contextlib.suppress(node_vgpu.BrokenElf):
            node_vgpu.parse_elf(changed)


@pytest.mark.parametrize(("raw", "said"), [
    (b"", "not an ELF file (starts with nothing)"),
    (b"#!/bin/sh\necho hello\n", "not an ELF file (starts with 23212f62696e2f73)"),
    (b"GGUF" + b"\0" * 100, "not an ELF file (starts with 4747554600000000)"),
    (b"\x7fELF" + b"\x09" * 80, "no known class"),
])  # fmt: skip
def test_what_is_no_elf_is_told(raw: bytes, said: str) -> None:
    with pytest.raises(node_vgpu.BrokenElf) as caught:
        node_vgpu.parse_elf(raw)
    assert said in str(caught.value)


def test_without_section_headers_it_is_not_whole(good: Path) -> None:
    raw = bytearray(good.read_bytes())
    raw[40:48] = bytes(8)
    with pytest.raises(node_vgpu.BrokenElf, match="no section headers"):
        node_vgpu.parse_elf(bytes(raw))


# An ELF file whose tables overlap: what it asks for is bounded by what a real library has.

SYMBOL, SECTION = 24, 64
SIZE = 16 << 20


def crafted(rows: list[tuple[int, int, int, int, int]], body: bytes = b"") -> bytes:
    """A 64 bit library with these section headers (kind, offset, size, link, entry), the body at
    byte 64 and the headers behind it, filled up to SIZE bytes."""
    start = 64 + len(body)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, SECTION,
                        len(rows), 0)  # fmt: skip
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, entry)
        for kind, offset, size, link, entry in rows
    )
    return (head + body + table).ljust(SIZE, b"A") + b"\0"


# a symbol that is exported, and the name of it: most of the file
NAMED = struct.pack("<IBBHQQ", 0, 0x12, 0, 1, 0, 0)
NEEDS = struct.pack("<QQ", 1, 0)
STRINGS = (3, 1 << 20, SIZE + 1 - (1 << 20), 0, 0)
CASES: dict[str, Callable[[], bytes]] = {
    "dynsym sections that overlap": lambda: crafted(
        [(11, 64, SYMBOL * 30000, 1, SYMBOL), STRINGS]
        + [(11, 64, SYMBOL * 30000, 1, SYMBOL)] * 65000,
        bytes(64) * 12000,
    ),
    "sections that are the whole file": lambda: crafted([(1, 0, SIZE, 0, 0)] * 65000),
    "symbols with names of megabytes": lambda: crafted(
        [(11, 64, SYMBOL * 40000, 1, SYMBOL), STRINGS], NAMED * 40000
    ),
    "dynamic entries with names of megabytes": lambda: crafted(
        [(6, 64, 16 * 60000, 1, 16), STRINGS], NEEDS * 60000
    ),
    "dynamic sections that overlap": lambda: crafted(
        [(6, 64, 16 * 60000, 1, 16), STRINGS, *[(6, 64, 16 * 60000, 1, 16)] * 65000],
        struct.pack("<QQ", 5, 0) * 60000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_tables_that_overlap_end_soon_and_take_little_memory(name: str) -> None:
    raw = CASES[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with at_most(5):
        found = node_vgpu.described_elf(raw)
    assert (found["elf"] is None) == bool(found["broken"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


# library look and check with real libraries and real processes; the swap under load.

PRELOADED = ["sh", "-ec", 'said=$(LD_PRELOAD="$1" /bin/true 2>&1); test -z "$said"', "sh", "{tmp}"]


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """The plugin's library, a smaller one of ours (as in the seed), and a program that uses it."""
    with folder() as path:
        library(path / "original.so", 900_000, 1)
        library(path / "ours.so", 600_000, 2)
        cc(HOLDER, path / "holder")
        yield path


@pytest.fixture
def vgpu(built: Path) -> Iterator[Path]:
    """A library folder with the plugin's file in it."""
    with folder() as path:
        shutil.copy(built / "original.so", path / "libvgpu.so")
        yield path


def swap_step(target: Path, new: Path, **more: object) -> dict[str, object]:
    """The file step of a swap, as deploys/libvgpu.py sends it."""
    return {
        "op": "file", "path": str(target), "mode": "0755", "keep": True,
        "content_base64": base64.b64encode(new.read_bytes()).decode(),
        "expect_sha256": sha(target), "validate": PRELOADED, **more,
    }  # fmt: skip


def check(raw: bytes) -> dict[str, object]:
    """`library check` of some bytes."""
    return node_vgpu.check_candidate({"content_base64": base64.b64encode(raw).decode()})


def test_swap_under_20_processes_kills_none_and_each_keeps_the_old_one(
    host: Host, built: Path, vgpu: Path
) -> None:
    """Fault 29: a rename is harmless, and whoever mapped the old file keeps it."""
    target = vgpu / "libvgpu.so"
    old = sha(target)
    with holding(built / "holder", target, 20) as held:
        host.call("apply", apply_request(swap_step(target, built / "ours.so")))
        time.sleep(0.3)
        assert held.deaths() == []
        assert sha(target) == sha(built / "ours.so")
        rows = [row for row in mapped_files.mappers("libvgpu.so") if row["pid"] in held.pids]
        assert len(rows) == 20
        assert {(row["sha256"], row["deleted"]) for row in rows} == {(old, True)}
        with holding(built / "holder", target) as fresh:
            new = next(r for r in mapped_files.mappers("libvgpu.so") if r["pid"] == fresh.pids[0])
            assert (new["sha256"], new["deleted"]) == (sha(target), False)


def test_cp_onto_the_mapped_library_kills(built: Path, vgpu: Path) -> None:
    """The seed's `sudo cp`: the test above can fail."""
    target = vgpu / "libvgpu.so"
    with holding(built / "holder", target, 20) as held:
        subprocess.run(["cp", str(built / "ours.so"), str(target)], check=True)
        time.sleep(0.5)
        assert -7 in held.deaths() or -11 in held.deaths(), held.deaths()


def test_a_second_swap_keeps_the_original_and_undo_brings_it_back(
    host: Host, built: Path, vgpu: Path
) -> None:
    """Fault 33: copies are named by their content; none is ever written over."""
    target, before = vgpu / "libvgpu.so", sha(vgpu / "libvgpu.so")
    third = library(vgpu / "third", 500_000, 3)
    for number, new in enumerate((built / "ours.so", third)):
        host.call("apply", apply_request(swap_step(target, new), name=f"change-{number}"))
        host.call("close", {"change": f"change-{number}", "status": "COMMITTED"})
    assert {before, sha(third)} <= {path.name for path in (host.state / "blobs").iterdir()}
    step = {"op": "file", "path": str(target), "mode": "0755", "blob": before}
    host.call("apply", apply_request(step, name="change-back"))
    assert sha(target) == before
    for name in ("change-back", "change-1", "change-0"):
        host.call("undo", {"change": name})
    assert sha(target) == before


def test_a_library_that_does_not_load_from_its_place_is_refused(host: Host, vgpu: Path) -> None:
    target = vgpu / "libvgpu.so"
    old = sha(target)
    junk = vgpu / "junk"
    junk.write_bytes(b"not a library at all")
    answer = host.call("apply", apply_request(swap_step(target, junk)))
    assert not answer["ok"] and answer["code"] == "not_valid" and sha(target) == old


def test_check_of_a_good_library_and_that_it_writes_nothing(built: Path) -> None:
    raw = (built / "ours.so").read_bytes()
    answer = check(raw)
    assert answer["sha256"] == hashlib.sha256(raw).hexdigest()
    assert (answer["broken"], answer["refused"], answer["missing"]) == (None, None, [])


def test_check_names_a_needed_library_that_the_host_lacks(built: Path, tmp_path: Path) -> None:
    answer = check(needing(tmp_path).read_bytes())
    assert answer["missing"] == ["libdep.so"] and answer["refused"]


def test_check_of_a_library_that_crashes_its_process(tmp_path: Path) -> None:
    """The constructor runs as nobody: it cannot harm the host."""
    source = "#include <unistd.h>\n__attribute__((constructor)) static void boom(void) {"
    source += "if (getuid() == 65534) __builtin_trap(); }"
    answer = check(cc(source, tmp_path / "boom.so", "-shared", "-fPIC").read_bytes())
    assert "/bin/true ends with -" in str(answer["refused"])


def test_check_of_another_machine(built: Path) -> None:
    """Faults 30: ld.so says nothing on its exit status; the maps prove it."""
    raw = bytearray((built / "ours.so").read_bytes())
    raw[18:20] = (183).to_bytes(2, "little")
    answer = check(bytes(raw))
    assert answer["elf"]["machine"] == "aarch64"
    assert "the loader leaves it out" in str(answer["refused"])


@pytest.mark.parametrize("cut", [0, 40, 5000])
def test_check_of_a_truncated_library(built: Path, cut: int) -> None:
    answer = check((built / "ours.so").read_bytes()[:cut])
    assert answer["broken"] and answer["elf"] is None


def test_a_fresh_process_proves_what_it_maps(built: Path, vgpu: Path) -> None:
    target = vgpu / "libvgpu.so"
    answer = node_vgpu.check_candidate({"path": str(target)})
    assert (answer["sha256"], answer["inode"]) == (sha(target), target.stat().st_ino)
    (vgpu / "libvgpu.so.2").write_bytes(b"junk")
    nothing = node_vgpu.check_candidate({"path": str(vgpu / "libvgpu.so.2")})
    assert nothing["inode"] is None and "libvgpu.so.2" in nothing["said"]


def test_look_tells_files_preload_and_who_maps(built: Path, vgpu: Path) -> None:
    target = vgpu / "libvgpu.so"
    shutil.copy(target, vgpu / "libvgpu.so.v2.4.0")
    (vgpu / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    (vgpu / "other.so").write_bytes(b"no business of ours")
    (vgpu / "libvgpu.so.link").symlink_to(target)
    with holding(built / "holder", target, 2) as held:
        found = node_vgpu.inspect_library({"folder": str(vgpu)})
        pids = [row["pid"] for row in found["mappers"]]
        assert set(held.pids) <= set(pids)
    names = {row["path"].rpartition("/")[2]: row for row in found["files"]}
    assert list(names) == ["libvgpu.so", "libvgpu.so.link", "libvgpu.so.v2.4.0"]
    assert set(names["libvgpu.so"]["elf"]["exported"]) == {"cuCtxGetDevice", "cuInit", "table"}
    assert names["libvgpu.so.link"]["broken"] == "a symbolic link"
    assert found["preload"][f"{vgpu}/ld.so.preload"] == "/usr/local/vgpu/libvgpu.so\n"
    assert found["plugins"] is None and found["state"] is None
    assert node_vgpu.inspect_library({"folder": "/nowhere/vgpu"})["files"] == []


def test_a_bind_mount_is_followed_to_the_hosts_file(built: Path, vgpu: Path) -> None:
    """Fault 31: the container's libvgpu.so is the host's libvgpu.so.VERSION."""
    shutil.copy(built / "original.so", vgpu / "libvgpu.so.v2.4.0")
    script = f"mount --bind {vgpu}/libvgpu.so.v2.4.0 {vgpu}/libvgpu.so"
    script += f" && LD_PRELOAD={vgpu}/libvgpu.so exec {built}/holder"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE) as pod:
        try:
            assert pod.stdout is not None and pod.stdout.readline() == b"mapped\n"
            row = next(r for r in mapped_files.mappers("libvgpu.so") if r["pid"] == pod.pid)
            assert row["path"] == f"{vgpu}/libvgpu.so"
            assert row["source"] == f"{vgpu}/libvgpu.so.v2.4.0"
        finally:
            pod.kill()


POD = "5c1e2d3f-0a1b-4c2d-8e3f-0123456789ab"


@pytest.mark.parametrize(("path", "pod"), [
    ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
     f"{POD.replace('-', '_')}.slice/cri-containerd-ab.scope", POD),
    (f"/kubepods/besteffort/pod{POD}/" + "a" * 64, POD), ("/system.slice/ssh.service", None),
])  # fmt: skip
def test_the_pod_stands_in_the_cgroup(path: str, pod: str | None) -> None:
    assert mapped_files.pod_of(path) == pod


def test_a_request_of_any_length_goes_by_stdin_and_writes_nothing(built: Path) -> None:
    raw = base64.b64encode((built / "original.so").read_bytes()).decode()
    call = pack.stdin_call("library check", {"content_base64": raw})
    assert len(call.line) < 2000 and raw[:40] not in call.line
    done = subprocess.run(["dash", "-c", call.line], input=call.stdin, text=True,
                          capture_output=True, timeout=30)  # fmt: skip
    assert json.loads(done.stdout)["ok"] is True and done.stderr == ""


@pytest.mark.parametrize("bad", [
    {"folder": "relative"}, {"folder": "/a/../b"}, {"folder": "/x", "base": "../etc"},
    {"folder": "/x", "base": "a; touch /tmp/x"}, {"folder": "/x", "kubectl": "rm -rf /"},
    {"folder": "/x", "more": 1},
])  # fmt: skip
def test_bad_requests_are_refused(host: Host, bad: dict[str, object]) -> None:
    answer = host.call("library look", bad)
    assert answer["code"] == "bad_request"
