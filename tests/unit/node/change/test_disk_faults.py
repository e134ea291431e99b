"""Disk errors and a full disk: one clear line, the old file in whole, nothing left over."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from node.change.undo import undo
from tests.unit.node.change.test_killed_anywhere import files
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step, unit_step


def error_line(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The program's error answer: exit status 1, one line, no traceback."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    answer: dict[str, str] = json.loads(done.stdout)
    assert "\n" not in answer["error"] and "Traceback" not in done.stdout + done.stderr
    return answer


@pytest.mark.parametrize(("call", "error", "words"), [
    ("fsync", "EIO", "Input/output error"), ("write", "ENOSPC", "No space left on device"),
    ("rename", "EROFS", "Read-only file system"),
])  # fmt: skip
def test_a_failing_call_leaves_the_old_file(host: Host, call: str, error: str, words: str) -> None:
    steps = files(host)
    points = [point for point in steps.apply().points() if point[0].startswith(call)]
    # the last write is the answer to the caller: all is done by then
    hit = points[: -1 if call == "write" else None]
    assert len(hit) >= 4
    for point, done in steps.apply().each(hit, f"error={error}"):
        answer = error_line(done)
        assert answer["code"] == "io" and words in answer["error"], (point, answer)
        steps.check(steps.old, point)
        assert undo({})["changed"] is False, point


def test_no_room_for_the_new_file(host: Host, small_disk: Path) -> None:
    path = small_disk / "file.conf"
    path.write_text(OLD)
    request = json.dumps(apply_request(file_step(path, "x" * (3 << 20))))
    answer = error_line(host.run(host.argv("apply"), request))
    assert "No space left on device" in answer["error"] and "nothing was changed" in answer["error"]
    assert [p.name for p in small_disk.iterdir()] == ["file.conf"] and path.read_text() == OLD


def test_no_room_for_the_journal(host: Host, small_disk: Path) -> None:
    path = host.file()
    host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    with (small_disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    answer = error_line(host.run(host.argv("apply"), json.dumps(apply_request(file_step(path)))))
    assert "No space left on device" in answer["error"]
    assert path.read_text() == OLD and host.leftovers() == []


def test_no_room_for_the_undo_is_told_and_can_be_repeated(host: Host, small_disk: Path) -> None:
    path = small_disk / "file.conf"
    path.write_text("o" * 900_000)
    host.call("apply", apply_request(file_step(path, NEW)))
    (small_disk / "full").write_bytes(bytes(1_500_000))
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and "No space left" in answer["error"]
    assert path.read_text() == NEW
    (small_disk / "full").unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == "o" * 900_000


def test_a_target_that_went_read_only_is_named_and_the_rest_goes_back(
    host: Host, small_disk: Path
) -> None:
    """The disk of one target met an error and was remounted read-only; the journal is elsewhere."""
    units = host.systemctl()
    paths = [
        host.file("a.conf"),
        small_disk / "b.conf",
        small_disk / "gone.conf",
        host.file("z.conf"),
    ]
    paths[1].write_text(OLD)
    paths[2].write_text(OLD)
    steps = [file_step(path) for path in paths]
    steps[2] = {"op": "absent", "path": str(paths[2])}
    assert host.call("apply", apply_request(*steps, unit_step("start", True)))["ok"] is True
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for _ in range(2):  # as often as somebody tries
        answer = host.call("undo")
        assert answer["code"] == "undo_incomplete", answer
        for path in paths[1:3]:
            assert f"{path.name}: Read-only file system" in answer["error"], answer
        change = host.call("journal", {"change": "change-1"})["change"]
        assert change["status"] == "INCONSISTENT"
        assert [row["state"] for row in change["steps"]] == ["undone", "done", "done", "undone",
                                                             "undone"]  # fmt: skip
        assert paths[0].read_text() == paths[3].read_text() == OLD
        assert (units / "engine.service.active").read_text().strip() == "inactive"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert [path.read_text() for path in paths] == [OLD] * 4 and host.leftovers() == []
