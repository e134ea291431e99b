"""The spool's progress: what a person is told of a transfer, in its middle and at its end."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.transfer import spool
from tests.unit.node.support.host import Host

GB = 10**9


class Clock:
    """A stand-in for time.monotonic that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The progress of a state of its own, at a time that the test sets."""
    found = Clock()
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(spool.time, "monotonic", found)
    return found


def told() -> dict[str, Any]:
    """What the progress file says now."""
    raw = spool.progress("image")
    assert raw is not None
    found: dict[str, Any] = json.loads(raw)
    return found


def row(**changes: Any) -> dict[str, Any]:
    """A progress row: 1 of 4 GB in 10 s."""
    start = {"phase": "wire", "total": 4 * GB, "done": GB, "kept": 0, "rate": GB // 10}
    return {**start, "took_s": 10.0, **changes}


@pytest.mark.parametrize(("changes", "line"), [
    ({}, "1.00 of 4.00 GB, 25 %, 100 MB/s, about 30 s left"),
    ({"done": 3 * GB, "kept": 2 * GB},
     "3.00 of 4.00 GB (2.00 GB of an earlier run), 75 %, 100 MB/s, about 10 s left"),
    ({"rate": 0}, "1.00 of 4.00 GB, 25 %, 0 MB/s"),
    ({"total": 0, "done": 0, "rate": 0}, "0.00 of 0.00 GB, 100 %, 0 MB/s"),
    ({"phase": "sha256"}, "1.00 of 4.00 GB, 25 %, 100 MB/s, about 30 s left"),
    ({"phase": "docker load 1.20 GB", "took_s": 61.4},
     "docker load 1.20 GB: 4.00 GB are here, 61 s so far"),
])  # fmt: skip
def test_a_line_has_bytes_share_rate_and_estimate(changes: dict[str, Any], line: str) -> None:
    assert spool.progress_line(row(**changes)) == line


def test_progress_counts_the_rate_without_what_was_there_before(clock: Clock) -> None:
    progress = spool.Progress("image", 10 * GB, kept=4 * GB)
    assert (told()["done"], told()["kept"], told()["rate"]) == (4 * GB, 4 * GB, 0)
    clock.now += 10
    progress.add(GB)
    seen = told()
    assert (seen["done"], seen["rate"], seen["took_s"]) == (5 * GB, GB // 10, 10.0)
    said = "5.00 of 10.00 GB (4.00 GB of an earlier run), 50 %, 100 MB/s, about 50 s left"
    assert seen["line"] == said


def test_progress_takes_back_what_has_to_come_again_and_ends_with_its_file(clock: Clock) -> None:
    progress = spool.Progress("image", 4 * GB)
    for came in (2 * GB, -GB):
        clock.now += 1
        progress.add(came)
    assert told()["done"] == GB and told()["rate"] == GB // 2
    progress.end()
    progress.end()
    assert spool.progress("image") is None


def test_progress_is_written_twice_a_second_at_most_but_a_phase_at_once(clock: Clock) -> None:
    progress = spool.Progress("image", 4 * GB)
    clock.now += 0.4
    progress.add(GB)
    assert told()["done"] == 0
    progress.at("docker load")
    assert told()["phase"] == "docker load" and told()["done"] == GB
    clock.now += 0.6
    progress.add(GB)
    assert told()["done"] == 2 * GB


def held(host: Host) -> str:
    """What `rignode progress` says."""
    done = host.run(host.argv("progress"))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_console_says_that_no_transfer_runs(host: Host) -> None:
    assert held(host) == "no transfer runs\n" and not host.state.exists()
    done = host.run(host.argv("progress", "--nosuch"))
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_console_says_how_far_a_transfer_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs, after a kill, and of each kind by itself."""
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    with spool.TransferLock("weights"):
        assert held(host).startswith(f"weights: nothing came yet (pid {os.getpid()}, since ")
        progress = spool.Progress("weights", 4 * GB)
        progress.done = GB
        progress.at("wire")
        image = spool.Progress("image", 2 * GB)
        first, second = held(host).splitlines()
        assert first.startswith("image: was cut off at 0.00 of 2.00 GB, 0 %")
        assert second.startswith("weights: 1.00 of 4.00 GB, 25 %")
        assert f"(pid {os.getpid()}, since " in second
        image.end()
    assert held(host).startswith("weights: was cut off at 1.00 of 4.00 GB")
    (host.state / "spool" / "weights.progress").write_text("{")
    assert "damaged" in held(host)


def test_a_look_at_the_progress_refuses_no_transfer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock shared for an instant; a second transfer is still refused."""
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    lock = Path(spool.ensure()) / "image.lock"
    lock.touch()
    looking = lock.open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.02, looking.close).start()
    with spool.TransferLock("image"), pytest.raises(NodeError, match="another transfer"):
        spool.TransferLock("image").__enter__()


def test_the_remedy_fits_the_filesystem_that_lacks_room(tmp_path: Path) -> None:
    """Pruning images gives no room for weights, nor for a spool on another filesystem."""
    needs = [(str(tmp_path / "there" / "not"), 1 << 60)]
    cases = {None: False, str(tmp_path / "docker"): True, "/proc": False}
    for docker, prunes in cases.items():
        with pytest.raises(NodeError, match="the transfer needs") as caught:
            spool.require_room(needs, docker)
        assert caught.value.code == "no_room" and f"df -h {tmp_path};" in caught.value.remedy
        assert ("docker image prune" in caught.value.remedy) == prunes
