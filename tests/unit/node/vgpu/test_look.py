"""library look and check with real libraries and real processes; the swap under load."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from facts.rignode import pack
from node.core import mapped_files
from node.vgpu import candidate as vgpu_candidate
from node.vgpu import inspect
from tests.unit.node.support.host import Host, apply_request
from tests.unit.node.support.libs import HOLDER, cc, folder, holding, needing, sha
from tests.unit.node.support.libs import library as build

PRELOADED = ["sh", "-ec", 'said=$(LD_PRELOAD="$1" /bin/true 2>&1); test -z "$said"', "sh", "{tmp}"]


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """The plugin's library, a smaller one of ours (as in the seed), and a program that uses it."""
    with folder() as path:
        build(path / "original.so", 900_000, 1)
        build(path / "ours.so", 600_000, 2)
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
    return vgpu_candidate.candidate({"content_base64": base64.b64encode(raw).decode()})


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
    third = build(vgpu / "third", 500_000, 3)
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
    answer = vgpu_candidate.candidate({"path": str(target)})
    assert (answer["sha256"], answer["inode"]) == (sha(target), target.stat().st_ino)
    (vgpu / "libvgpu.so.2").write_bytes(b"junk")
    nothing = vgpu_candidate.candidate({"path": str(vgpu / "libvgpu.so.2")})
    assert nothing["inode"] is None and "libvgpu.so.2" in nothing["said"]


def test_look_tells_files_preload_and_who_maps(built: Path, vgpu: Path) -> None:
    target = vgpu / "libvgpu.so"
    shutil.copy(target, vgpu / "libvgpu.so.v2.4.0")
    (vgpu / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    (vgpu / "other.so").write_bytes(b"no business of ours")
    (vgpu / "libvgpu.so.link").symlink_to(target)
    with holding(built / "holder", target, 2) as held:
        found = inspect.inspect_library({"folder": str(vgpu)})
        pids = [row["pid"] for row in found["mappers"]]
        assert set(held.pids) <= set(pids)
    names = {row["path"].rpartition("/")[2]: row for row in found["files"]}
    assert list(names) == ["libvgpu.so", "libvgpu.so.link", "libvgpu.so.v2.4.0"]
    assert set(names["libvgpu.so"]["elf"]["exported"]) == {"cuCtxGetDevice", "cuInit", "table"}
    assert names["libvgpu.so.link"]["broken"] == "a symbolic link"
    assert found["preload"][f"{vgpu}/ld.so.preload"] == "/usr/local/vgpu/libvgpu.so\n"
    assert found["plugins"] is None and found["state"] is None
    assert inspect.inspect_library({"folder": "/nowhere/vgpu"})["files"] == []


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
