"""A candidate that nobody blesses fails its unit; one that is blessed, or over, does not."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.files.host_lock import Lock
from node.kernel import candidate, grub_step
from tests.unit.node.support.host import Host

RUNS = platform.release()


def write(path: Path, **changes: Any) -> None:
    """The candidate's file."""
    facts = {"format": 1, "candidate": RUNS, "pinned": "6.1.0-1", "budget_s": 86400,
             "change": "20261120T000000Z-kernel-abcd", **changes}  # fmt: skip
    path.write_text(json.dumps(facts))


def start(host: Host, path: Path) -> subprocess.Popen[str]:
    """The unit's program."""
    return subprocess.Popen(
        host.argv("candidate"), env={**host.environ(), "RIGBOOK_CANDIDATE": str(path)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_it_waits_for_the_blessing_and_ends_well(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    write(path)
    process = start(host, path)
    time.sleep(1.5)
    assert process.poll() is None
    path.unlink()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and f"{RUNS} is blessed" in said


def test_after_its_budget_it_fails_so_that_systemd_reboots(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    write(path, budget_s=1)
    process = start(host, path)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "was not blessed within 1 s: back to 6.1.0-1" in said


def test_on_another_kernel_it_is_over_and_says_how_to_undo(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    write(path, candidate="6.1.0-2")
    process = start(host, path)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "rignode undo 20261120T000000Z-kernel-abcd" in said


def test_a_blessing_that_is_under_way_goes_first(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "candidate.json"
    write(path, budget_s=1)
    with Lock("the deploy blesses"):
        process = start(host, path)
        time.sleep(1.5)
        assert process.poll() is None
        path.unlink()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "is blessed" in said


@pytest.mark.parametrize("fails", [0, 2], ids=["at once", "the disk is read-only at first"])
def test_it_sees_that_one_boot_stays_one_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    path, asked = tmp_path / "candidate.json", []
    write(path)

    def use_up(kernel: str) -> bool:
        asked.append(kernel)
        if len(asked) <= fails:
            raise OSError(30, "Read-only file system")
        path.unlink()
        return True

    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(path))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(grub_step, "use_up", use_up)
    monkeypatch.setattr(candidate, "POLL_S", 0.01)
    candidate.run()
    assert asked == [RUNS] * (fails + 1)


def test_before_it_falls_back_it_tries_again_to_make_it_one_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def use_up(kernel: str) -> bool:
        asked.append(kernel)
        raise NodeError("no GRUB", "no_grub")

    write(tmp_path / "candidate.json", budget_s=1)
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(tmp_path / "candidate.json"))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(grub_step, "use_up", use_up)
    with pytest.raises(NodeError, match="was not blessed"):
        candidate.run()
    assert asked == [RUNS, RUNS]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_file_fails_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "candidate.json"
    path.write_text(text)
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(path))
    with pytest.raises(NodeError):
        candidate.run()
