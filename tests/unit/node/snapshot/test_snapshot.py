"""snapshot: its document fits the schema, a bad section spoils no other, secrets stay."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gates import weights
from node import gpus, processes, snapshot, units
from node.core import proc
from node.core.errors import CannotRead, NodeError
from node.transfer import manifest
from schema.snapshot import Gpus, NodeSnapshot, RdmaPort, SnapshotRequest, Unreadable
from tests.unit.node.support.host import Host
from tests.unit.node.support.reap_world import World
from tests.unit.node.weights.test_manifest import cache, gguf

LISTS = {"gpus", "memory", "shm", "engine_processes", "network", "ports", "docker", "units",
         "files", "weights", "image_files", "venvs", "disks", "sysctls", "journal",
         "connections", "cron", "health"}  # fmt: skip


# A program's most memory in kB; a snapshot's time is measured by `make bench`.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def take(**request: object) -> NodeSnapshot:
    """The typed snapshot of this machine."""
    return NodeSnapshot.model_validate(json.loads(json.dumps(snapshot.collect(request))))


def readable(section: Any) -> Any:
    """A section of a snapshot, which could be read."""
    assert not isinstance(section, Unreadable), section
    return section


def double(host: Host, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a labelled nvidia-smi first on PATH."""
    host.double("nvidia-smi", f"#!/bin/sh\n# rigbook stand-in\n{script}\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])


def test_the_snapshot_of_this_machine_fits_the_schema(host: Host, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    request = SnapshotRequest(
        files=("/etc/passwd", "/no/such", "/etc"), units=("x.service",), peers=("127.0.0.1",),
        weights=(str(tmp_path / "w"), "/no/such"), disks=("/", "/no/such/there"),
        sysctls=("kernel.ostype", "no.such"), images=("x:1",),
    )  # fmt: skip
    answer = host.run(host.argv("snapshot"), request.model_dump_json())
    seen = NodeSnapshot.model_validate_json(answer.stdout)
    assert seen.identity.boot_id and seen.identity.kernel == os.uname().release
    assert seen.identity.cmdline == Path("/proc/cmdline").read_text().strip()
    files, disks, network = map(readable, (seen.files, seen.disks, seen.network))
    assert [file.kind for file in files] == ["file", "absent", "directory"]
    assert files[0].content is not None and "root:" in files[0].content
    assert seen.sysctls == {"kernel.ostype": "Linux"} and disks[1].mount == disks[0].mount
    assert [one.exists for one in readable(seen.weights)] == [True, False]
    assert any(link.name == "lo" for link in network.links)
    assert network.peers[0].route_device == "lo" and readable(seen.memory).available > 0


def test_every_field_of_the_schema_is_there() -> None:
    assert set(NodeSnapshot.model_fields) - LISTS == {
        "format", "took_s", "identity", "node_version", "watch"}  # fmt: skip
    assert set(snapshot.parse_request({})) == set(SnapshotRequest.model_fields)


def test_the_stand_in_is_labelled(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gb10 = "0, GPU-1, NVIDIA GB10, 580.95.05, [N/A], [N/A], [N/A], 12.1, 0000000F:01:00.0"
    app = f"GPU-1, {os.getpid()}, python3, 100"
    double(host, monkeypatch, f'case $1 in *gpu=*) echo "{gb10}";; *) echo "{app}";; esac')
    seen = take().gpus
    assert isinstance(seen, Gpus) and seen.stand_in and seen.gpus[0].unified_memory
    assert seen.gpus[0].memory_total_mib is None and seen.processes[0].start_ticks is not None


def test_no_driver_and_a_failing_one_are_unreadable_with_its_words(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(host, monkeypatch, "echo NVIDIA-SMI has failed because it could not talk; exit 9")
    seen = take()
    assert isinstance(seen.gpus, Unreadable) and "failed (9)" in seen.gpus.unreadable
    assert "could not talk" in seen.gpus.unreadable and readable(seen.memory)
    monkeypatch.setattr(gpus, "which", lambda name: None)
    assert take().gpus == Unreadable(unreadable="nvidia-smi not found")


def test_a_hung_driver_is_ended_and_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    double(host, monkeypatch, f"echo $$ >> {host.root}/pids; sleep 60 & wait")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 3)
    began = time.time()
    seen = take()
    assert isinstance(seen.gpus, Unreadable) and "driver hang" in seen.gpus.unreadable
    assert 3 < time.time() - began < 30
    # before what waits: of two nodes asked at once, a slow one would seem to be ahead
    assert seen.identity.clock_unix_s - began < 2
    for pid in (host.root / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists(), "the hung nvidia-smi was left running"


def test_a_fault_in_a_section_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "read_weights", lambda *_: 1 / 0)
    seen = take(weights=["/x"])
    assert seen.weights == Unreadable(unreadable="ZeroDivisionError: division by zero")
    assert readable(seen.memory)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with an engine's title, a secret, a listening port and a mapped shm segment."""
    script = (
        "import mmap,os,socket,sys,time\n"
        "s=socket.socket();s.bind(('127.0.0.1',0));s.listen()\n"
        "p='/dev/shm/psm_test_%d'%os.getpid();f=open(p,'wb+');f.truncate(4096)\n"
        "m=mmap.mmap(f.fileno(),4096);f.close()\n"
        "print(s.getsockname()[1],flush=True);sys.stdin.read();os.unlink(p)\n"
    )
    # under another name an interpreter does not find its library
    home = str(Path(os.__file__).parents[2])
    env = {"PATH": "/bin", "VLLM_A": "1", "HF_TOKEN": "hunter2", "HOME": "/", "PYTHONHOME": home}
    child = subprocess.Popen(
        ["VLLM::EngineCore", "-c", script], executable=os.path.realpath("/proc/self/exe"), env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    yield child
    child.communicate(b"", timeout=10)


def test_an_engine_its_port_and_its_shm_are_seen(engine: subprocess.Popen[bytes]) -> None:
    assert engine.stdout is not None
    port = int(engine.stdout.readline())
    seen = take()
    row = next(row for row in readable(seen.engine_processes) if row.pid == engine.pid)
    assert row.argv == ("VLLM::EngineCore",) and row.ppid == os.getpid()
    assert row.environ == {"VLLM_A": "1", "HF_TOKEN": "***"} and row.start_ticks > 0
    assert "hunter2" not in seen.model_dump_json()
    assert [p.pid for p in readable(seen.ports) if p.port == port] == [engine.pid]
    segment = next(s for s in readable(seen.shm) if s.name == f"psm_test_{engine.pid}")
    assert segment.mappers == (engine.pid,) and segment.size == 4096


def test_a_process_that_is_stuck_in_the_kernel_is_named_and_the_snapshot_ends(
    world: World,
) -> None:
    """It waits in uninterruptible sleep (vfork does), and whoever reads its command line or maps
    waits with it: here a pipe that nobody writes into lies over them."""
    pid, comm = world.stuck(), Path(sys.executable).name
    request = json.dumps({"disks": ["/"]})
    seen = NodeSnapshot.model_validate_json(world.run(world.argv("snapshot"), request).stdout)
    for name in ("cmdline", "maps"):
        section = seen.engine_processes if name == "cmdline" else seen.shm
        assert isinstance(section, Unreadable), section
        assert section.unreadable == (
            f"no answer in 20 s: /proc/{pid}/{name} (process {comm}, state D) does not answer"
        )
    assert readable(seen.memory) and readable(seen.disks) and readable(seen.journal)
    assert [row.pid for row in readable(seen.health).stuck] == [pid]


def test_shm_is_unknown_when_the_maps_of_a_process_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment without mappers may be removed by someone who reads this."""

    def guarded(path: str) -> bytes:
        if path == "/proc/2/maps":
            raise PermissionError(path)
        return Path(path).read_bytes()

    (tmp_path / "psm_1").write_text("x")
    monkeypatch.setattr(processes, "FOLDER", str(tmp_path))
    monkeypatch.setattr(proc, "read", guarded)
    monkeypatch.setattr(proc, "pids", lambda: [os.getpid()])
    assert [row["name"] for row in processes.read_shm([])] == ["psm_1"]
    monkeypatch.setattr(proc, "pids", lambda: [2, os.getpid()])
    with pytest.raises(CannotRead, match="the maps of 1 processes"):
        processes.read_shm([])


def test_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("x")
    (folder / "a.safetensors").write_bytes(bytes(range(32)))
    (folder / "sub" / "b").write_text("b")
    (folder / "inner").symlink_to("a.safetensors")
    (folder / "outer").symlink_to(tmp_path / "outside")
    index = {"weight_map": {"x": "a.safetensors", "y": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (seen,) = readable(take(weights=[str(folder)], deep=True).weights)
    names = [file.name for file in seen.files]
    assert names == ["a.safetensors", "inner", "model.safetensors.index.json", "sub/b"]
    assert seen.files[0].magic == bytes(range(16)).hex() and len(seen.files[0].sha256) == 64
    assert seen.missing_shards == ("gone.safetensors",)
    assert readable(take(weights=[str(folder)]).weights)[0].files[0].sha256 is None
    ends = hashlib.sha256(bytes(range(32)) * 2).hexdigest()
    assert (seen.files[0].probe, seen.incomplete, seen.displaced) == (ends, None, ())
    (folder / "model.safetensors.index.json").write_text("[]")
    assert isinstance(take(weights=[str(folder)]).weights, Unreadable)


@pytest.mark.parametrize("named", ["snapshot", "model", "model without refs", "cache elsewhere"])
def test_a_snapshot_of_a_hugging_face_cache_is_weights_like_any_other(
    tmp_path: Path, named: str
) -> None:
    """Its files are links into ../../blobs, and were not followed: `weights-missing` (field.md)."""
    snapshot, wanted = cache(tmp_path / "hub")
    (snapshot / "out.bin").symlink_to("../../../../secret")
    (tmp_path / "secret").write_text("secret")
    model = snapshot.parents[1]
    if named == "model":
        (snapshot.parent / "4567ef01").mkdir()
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(f"{snapshot.name}\n")
    if named == "cache elsewhere":
        (tmp_path / "link").symlink_to("hub")
        snapshot = tmp_path / "link" / snapshot.relative_to(tmp_path / "hub")
    path = model if named.startswith("model") else snapshot
    (seen,) = readable(take(weights=[str(path)], deep=True).weights)
    assert (seen.path, seen.folder, seen.linked) == (str(path), str(snapshot), 3)
    assert [f.name for f in seen.files] == sorted(wanted)
    for file in seen.files:
        raw = wanted[file.name]
        assert (file.size, file.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_what_lies_beside_weights_is_told_and_is_no_file_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(100))
    kept = tmp_path / ".rigbook" / "displaced-change-1+1" / "sub"
    folder = manifest.Folder(str(tmp_path))
    with folder.opened("a.safetensors") as file:
        known = manifest.hash_of(file, "a.safetensors")
    folder.save({"a.safetensors": known})
    kept.mkdir(parents=True)
    (kept / "b.safetensors").write_bytes(bytes(70))
    (tmp_path / ".rigbook" / "1-2.3.whole").write_bytes(bytes(9))
    with folder.own() as own:
        manifest.mark_beside(own, "change-2")
    (seen,) = readable(take(weights=[str(tmp_path)]).weights)
    assert [(file.name, file.sha256) for file in seen.files] == [("a.safetensors", known.sha256)]
    (former,) = seen.displaced
    assert (former.change, former.path) == ("change-1", str(kept.parent))
    assert (former.files, former.bytes, seen.incomplete) == (1, 70, "change-2")


def test_a_gguf_says_how_long_it_is_and_why_it_cannot_be_read(tmp_path: Path) -> None:
    """Under any name: its loader goes by the first bytes, too."""
    whole = gguf()
    for name, raw in {"whole.gguf": whole, "padded.gguf": whole + bytes(64), "cut.bin": whole[:-1],
                      "header.gguf": whole[:90], "old.gguf": gguf(version=1)}.items():  # fmt: skip
        (tmp_path / name).write_bytes(raw)
    (seen,) = readable(take(weights=[str(tmp_path)]).weights)
    found = {f.name: f for f in seen.files}
    for name in ("whole.gguf", "padded.gguf", "cut.bin"):
        assert (found[name].header_says, found[name].broken) == (len(whole), None)
    assert found["header.gguf"].header_says is None
    assert "cut off in its header" in str(found["header.gguf"].broken)
    assert "version 1" in str(found["old.gguf"].broken)
    cut = {name for name, file in found.items() if weights.is_truncated(file)}
    assert cut == {"cut.bin", "header.gguf", "old.gguf"}


def test_a_gguf_with_a_large_vocabulary_keeps_the_snapshot_small(
    host: Host, tmp_path: Path
) -> None:
    """As Gemma's: 262144 words, and a header that would be 400 MB of them is not read for ever."""
    words = b"".join(struct.pack("<Q", 9) + b"%09d" % n for n in range(1 << 18))
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    (tmp_path / "vocabulary.gguf").write_bytes(head + struct.pack("<IIQ", 9, 8, 1 << 18) + words)
    with (tmp_path / "huge.gguf").open("wb") as file:
        file.write(head + struct.pack("<IIQ", 9, 8, 1 << 30))
        file.truncate(400 << 20)
    request = json.dumps({"weights": [str(tmp_path)]})
    answer = host.run(host.argv("snapshot"), request).stdout
    files = {row["name"]: row for row in json.loads(answer)["weights"][0]["files"]}
    size = (tmp_path / "vocabulary.gguf").stat().st_size
    assert files["vocabulary.gguf"]["header_says"] == size
    assert "longer than 64 MiB" in files["huge.gguf"]["broken"]
    done = host.run(["/usr/bin/env", "python3", "-c", MEASURE, *host.argv("snapshot", request)])
    assert float(done.stdout) < 60 * 1024


def test_content_of_private_and_binary_files_stays(tmp_path: Path) -> None:
    names = ("private", "binary", "large", "link", "pipe")
    private, binary, large, link, pipe = (tmp_path / name for name in names)
    private.write_text("hunter2\n")
    private.chmod(0o600)
    binary.write_bytes(b"a\0b")
    large.write_text("x" * (64 * 1024 + 1))
    link.symlink_to(private)
    os.mkfifo(pipe)
    files = readable(take(files=[str(tmp_path / name) for name in names]).files)
    assert [file.content for file in files] == [None] * 5
    assert [file.kind for file in files] == ["file", "file", "file", "link", "other"]
    assert files[0].sha256 is not None and files[0].mode == "0600"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_unreachable_peer_is_no_answer() -> None:
    (peer,) = readable(take(peers=["127.0.0.1"], fabric_device="no-such0").network).peers
    assert peer.full_size_ping is None and "no device" in peer.detail


def reach(port: int, device: str | None = None) -> str:
    """What a connection to a port meets."""
    asked = {"address": "127.0.0.1", "port": port, "device": device}
    (seen,) = readable(take(reach=[asked]).network).reach
    assert seen.detail
    return str(seen.state)


def test_a_port_of_a_peer_is_open_refused_or_without_a_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach(port) == reach(port, "lo") == "open"
    assert reach(port, "lo") == "refused"
    assert reach(port, "no-such0") == "no-way"
    for row in ({"address": "x", "port": 1}, {"address": "127.0.0.1", "port": 0}, {"port": 1}):
        with pytest.raises(NodeError):
            snapshot.parse_request({"reach": [row]})


def test_a_peer_that_does_not_answer_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full drops what comes, as a firewall does."""
    monkeypatch.setattr(snapshot, "REACH_S", 0.3)
    with socket.socket() as full, contextlib.ExitStack() as callers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        time.sleep(0.1)
        assert reach(full.getsockname()[1]) == "filtered"


def test_a_port_that_was_opened_after_the_look_at_the_files_has_its_owner() -> None:
    """Between the two looks an engine may have bound its port; it is no stranger's."""
    before = proc.open_files()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        row = next(row for row in processes.read_ports(before) if row["port"] == port)
        assert row["pid"] == os.getpid()
    assert all(row["port"] != port for row in processes.read_ports(before))


# Crontabs and scripts: which lines start an engine, and that no secret is told.


@pytest.fixture
def crontabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc and /var/spool/cron."""
    for name in ("cron.d", "spool"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(units, "SYSTEM", str(tmp_path / "crontab"))
    monkeypatch.setattr(units, "FOLDER", str(tmp_path / "cron.d"))
    monkeypatch.setattr(units, "USERS", str(tmp_path / "spool"))
    return tmp_path


def test_a_host_without_crontabs_has_no_lines(crontabs: Path) -> None:
    assert units.read_cron() == []


def test_lines_that_start_an_engine_are_given(crontabs: Path) -> None:
    start = crontabs / "start.sh"
    start.write_text("#!/bin/sh\n# vllm\ndocker compose -f /srv/llm/c.yaml \\\n  up -d\n")
    (crontabs / "crontab").write_text(
        "SHELL=/bin/sh\n# @reboot root docker start x\n"
        "17 * * * * root cd / && run-parts --report /etc/cron.hourly\n"
        f"@reboot root bash {start}\n"
    )
    (crontabs / "cron.d/llm").write_text("*/5 * * * * milo docker start vllm_ds4 || true\n")
    # cron does not read it
    (crontabs / "cron.d/llm.disabled").write_text("@reboot root docker start vllm_ds4\n")
    (crontabs / "spool/milo").write_text("\n@reboot  nohup vllm serve /m --api-key sk-1 &\n")
    found = [(Path(r["file"]).name, r["line"], r["user"], r["at_boot"]) for r in units.read_cron()]
    assert found == [
        ("crontab", 4, "root", True), ("llm", 1, "milo", False), ("milo", 2, "milo", True),
    ]  # fmt: skip
    compose, start_container, vllm = (set(row["words"]) for row in units.read_cron())
    assert "/srv/llm/c.yaml" in compose and "vllm_ds4" in start_container and "vllm" in vllm


@pytest.mark.parametrize("line", [
    "@reboot root vllm serve /m --api-key sk-made-up",
    "@reboot root HF_TOKEN=hf_made-up docker start a",
    "@reboot root docker run -e HTTPS_PROXY=http://me:made-up@proxy vllm/vllm-openai",
])  # fmt: skip
def test_no_secret_is_told(crontabs: Path, line: str) -> None:
    (crontabs / "crontab").write_text(line + "\n")
    (row,) = units.read_cron()
    assert "made-up" not in str(row) and "***" in row["text"]


def test_a_crontab_that_cannot_be_read_is_not_an_empty_one(
    crontabs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuses)
    with pytest.raises(CannotRead, match=r"crontab: .*[Pp]ermission"):
        units.read_cron()


def test_a_unit_is_found_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec /opt/genesis/venv/bin/vllm serve /m\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\0vllm")
    for name, command in {
        "genesis": f"/bin/bash {tmp_path}/run.sh", "web": f"{tmp_path}/program", "no": "/none.sh",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.service").write_text(f"[Service]\nExecStart={command}\n")
    monkeypatch.setattr(units, "FOLDERS", (str(tmp_path),))
    assert units.others([]) == ["genesis.service"]
    assert units.script_words(units.starting_lines(f"bash {tmp_path}/run.sh")) == [
        "exec", "/opt/genesis/venv/bin/vllm", "serve", "/m",
    ]  # fmt: skip


def test_a_unit_that_an_engine_runs_under_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        1: "/system.slice/genesis.service", 2: "/system.slice/mine.service",
        # a crontab's and somebody's own manager's: no unit of the system's supervises these
        3: "/system.slice/cron.service",
        4: "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
    }  # fmt: skip
    monkeypatch.setattr(units, "FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(proc, "pids", lambda: [*groups, 5])
    monkeypatch.setattr(proc, "argv", lambda pid: ("vllm", "serve") if pid < 5 else ("web",))
    monkeypatch.setattr(proc, "cgroup", lambda pid: groups.get(pid, "/system.slice/web.service"))
    assert units.others(["mine.service"]) == ["genesis.service"]


# Ports of RDMA devices, from trees of sysfs as real machines have them (rdma_trees.yaml).

TREES = yaml.safe_load(Path(__file__).with_name("rdma_trees.yaml").read_text())
TABLE = ("gids", "gid_attrs/types", "gid_attrs/ndevs")


def written(root: Path, tree: dict[str, Any]) -> str:
    """The folder with the tree's files; a row without a type has none that could be read."""
    for device, what in tree.items():
        port = root / device / "ports" / "1"
        for netdev in what["net"]:
            (root / device / "device/net" / netdev).mkdir(parents=True)
        for folder in TABLE:
            (port / folder).mkdir(parents=True)
        for name, text in what["port"].items():
            (port / name).write_text(f"{text}\n")
        for index, row in what["gids"].items():
            for folder, text in zip(TABLE, row, strict=False):
                (port / folder / str(index)).write_text(f"{text}\n")
    return str(root)


@pytest.mark.parametrize("case", TREES)
def test_ports_are_read_as_they_are(tmp_path: Path, case: str) -> None:
    found = [RdmaPort(**row) for row in snapshot.read_rdma(written(tmp_path, TREES[case]["tree"]))]
    told = [
        [p.device, p.port, p.netdev, p.state, p.link, p.rate_gbit,
         [[gid.index, str(gid.ipv4)] for gid in p.gids if gid.ipv4]]
        for p in found
    ]  # fmt: skip
    assert told == TREES[case]["says"]
    assert all(gid.gid.strip("0:") for port in found for gid in port.gids), "an empty row is told"


def test_a_cards_model_and_firmware(tmp_path: Path) -> None:
    """leptonai/gpud's recorded sysfs of an H100 node has both files."""
    (port,) = snapshot.read_rdma(written(tmp_path, {"mlx5_0": {"net": [], "port": {}, "gids": {}}}))
    assert (port["board"], port["firmware"]) == (None, None)
    (tmp_path / "mlx5_0" / "fw_ver").write_text("28.41.1000\n")
    (tmp_path / "mlx5_0" / "board_id").write_text("MT_0000000838\n")
    (port,) = snapshot.read_rdma(str(tmp_path))
    assert (port["board"], port["firmware"]) == ("MT_0000000838", "28.41.1000")


def test_a_host_without_rdma_devices_has_no_port(tmp_path: Path) -> None:
    assert snapshot.read_rdma(str(tmp_path / "absent")) == snapshot.read_rdma(str(tmp_path)) == []
