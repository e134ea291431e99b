"""A candidate that nobody blesses fails its unit; one that is blessed, or over, does not."""

from __future__ import annotations

import contextlib
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.files.host_lock import Lock
from node.kernel import candidate
from tests.unit.node.support.host import Host

RUNS = platform.release()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program looks for the file of the candidate, also in this process."""
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(tmp_path / "candidate.json"))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "host" / "state"))
    monkeypatch.setattr(candidate, "POLL_S", 0.01)
    return tmp_path / "candidate.json"


def write(path: Path, **changes: Any) -> None:
    """The candidate's file."""
    facts = {"format": 1, "candidate": RUNS, "pinned": "6.1.0-1", "budget_s": 86400,
             "change": "20261120T000000Z-kernel-abcd", **changes}  # fmt: skip
    path.write_text(json.dumps(facts))


def start(host: Host, path: Path, **changes: Any) -> subprocess.Popen[str]:
    """The unit's program with such a file."""
    write(path, **changes)
    return subprocess.Popen(
        host.argv("candidate"), env=host.environ(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("budget_s", "under_way"), [(86400, False), (1, True)])
def test_it_waits_for_the_blessing_also_past_its_budget_for_one_that_is_under_way(
    host: Host, path: Path, budget_s: int, under_way: bool
) -> None:
    with Lock("the deploy blesses") if under_way else contextlib.nullcontext():
        process = start(host, path, budget_s=budget_s)
        time.sleep(1.5)
        assert process.poll() is None
        path.unlink()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and f"{RUNS} is blessed" in said


@pytest.mark.parametrize(("changes", "code", "words"), [
    ({"budget_s": 1}, 1, "was not blessed within 1 s: back to 6.1.0-1"),
    ({"candidate": "6.1.0-2"}, 0, "rignode undo 20261120T000000Z-kernel-abcd"),
])  # fmt: skip
def test_after_its_budget_it_fails_and_on_another_kernel_it_is_over(
    host: Host, path: Path, changes: dict[str, Any], code: int, words: str
) -> None:
    """A failure makes systemd reboot."""
    process = start(host, path, **changes)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code and words in said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_file_fails_the_unit(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(NodeError):
        candidate.run()
