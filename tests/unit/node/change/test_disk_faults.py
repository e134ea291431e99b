"""Disk errors and a full disk: one clear line, the old file in whole, nothing left over."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from collections.abc import Iterator
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


REFUSED = {
    "EPERM": ("Operation not permitted", "lsattr -d {folder} {path}"),
    "EPERM of the folder": ("Operation not permitted", "lsattr -d {folder} {path}"),
    "EROFS": ("Read-only file system", "findmnt -T {folder}"),
    "EBUSY": ("Device or resource busy", "findmnt -T {path}"),
    "ENOSPC": ("No space left on device", "df -h {folder}; df -i {folder}"),
}


@contextlib.contextmanager
def refusing(how: str, disk: Path, path: Path) -> Iterator[None]:
    """While a path cannot be written, for real."""
    on: list[str]
    if how == "EROFS":
        on, off = ["mount", "-o", "remount,ro", str(disk)], ["mount", "-o", "remount,rw", str(disk)]
    elif how == "EBUSY":
        on, off = ["mount", "--bind", str(path), str(path)], ["umount", str(path)]
    elif how == "ENOSPC":
        on, off = ["sh", "-c", f"! cat /dev/zero > {disk}/full 2>&1"], ["rm", f"{disk}/full"]
    else:
        at = str(path.parent if "folder" in how else path)
        on, off = ["chattr", "+i", at], ["chattr", "-i", at]
    subprocess.run(on, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(off, check=True)


@pytest.mark.parametrize(("how", "op"), [
    *(("EPERM", op) for op in ("file", "absent", "directory")),
    *(("EPERM of the folder", op) for op in ("file", "absent", "link")),
    *(("EROFS", op) for op in ("file", "absent", "directory", "link")),
    ("EBUSY", "file"), ("EBUSY", "absent"), ("ENOSPC", "file"),
])  # fmt: skip
def test_what_the_kernel_refuses_is_told_with_path_step_and_command(
    host: Host, small_disk: Path, how: str, op: str
) -> None:
    """It said `.rigbook-457bd083cd91-x.conf: Operation not permitted`, and no remedy."""
    # a tmpfs has no immutable files before Linux 6.6
    place = host.root / "place" if "EPERM" in how else small_disk / "the place"
    place.mkdir()
    path, other, size = place / "x.conf", host.file("other"), 100_000
    step: dict[str, object] = {"op": op, "path": str(path)}
    if op == "directory":
        path.mkdir(mode=0o711)
        step["mode"] = "0755"
    elif op == "link":
        path.symlink_to("old")
        step["target"] = "new"
    else:
        path.write_text("o" * size)
        step = step if op == "absent" else file_step(path, "n" * size)
    before = path.lstat()[:6]
    asked = apply_request(file_step(other), step)
    words, look = REFUSED[how]
    look = look.format(folder=shlex.quote(str(place)), path=shlex.quote(str(path)))
    with refusing(how, small_disk, path):
        answer = error_line(host.run(host.argv("apply"), json.dumps(asked)))
        assert answer["error"] == f"{op} {path}: {words}; nothing was changed", answer
        assert answer["code"] == "io" and answer["remedy"] == look
        assert other.read_text() == OLD and [one.name for one in place.iterdir()] == ["x.conf"]
        assert host.call("journal")["changes"] == []
    assert path.lstat()[:6] == before
    host.call("apply", asked)
    if op == "absent" and how in ("EPERM", "EBUSY"):
        path.touch()  # nothing is left there that would be immutable or mounted over
        asked = {"overwrite": [str(path)]}
    else:
        asked = {}
    with refusing(how, small_disk, path):
        answer = host.call("undo", asked)
        assert answer["code"] == "undo_incomplete"
        assert f"{op} {path}: {words}" in answer["error"], answer
        assert answer["remedy"].startswith(f"{look}; mend it, then run again: rignode undo")
        assert other.read_text() == OLD
    assert host.call("undo", asked)["status"] == "ROLLED_BACK" and host.leftovers() == []


def test_an_undo_that_finds_no_room_for_its_journal_says_what_to_type(
    host: Host, small_disk: Path
) -> None:
    """`No space left on device`, and no remedy: the file was back, and the change OPEN."""
    path, full = host.file(), small_disk / "full"
    host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    host.call("apply", apply_request(file_step(path)))
    with full.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    answer = host.call("undo")
    at = small_disk / "state" / "journal"
    assert f"{at}/change-1.json: No space left on device" in answer["error"], answer
    assert answer["remedy"] == (f"df -h {at}; df -i {at}; "
                                "mend it, then run again: rignode undo change-1")  # fmt: skip
    full.unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


@pytest.mark.parametrize("op", ["file", "absent", "directory", "link", "tree"])
@pytest.mark.parametrize("size", [255, 256])
def test_a_name_of_the_most_bytes_works_or_is_refused_first(host: Host, op: str, size: int) -> None:
    """The change stayed OPEN, and its undo was INCONSISTENT for ever."""
    path, other = host.root / ("n" * size), host.file("other")
    step: dict[str, object] = {"op": op, "path": str(path)}
    if op == "directory":
        step["mode"] = "0755"
    elif op == "link":
        step["target"] = "new"
    elif op == "file":
        step = file_step(path)
    elif op == "absent" and size < 256:
        path.write_text(OLD)
    elif op == "tree":
        (host.root / "fresh").mkdir()
        step.update(source=str(host.root / "fresh"), displaced=str(host.root / "displaced"))
    answer = host.call("apply", apply_request(file_step(other), step))
    if size < 256:
        assert answer["ok"] and host.call("undo")["status"] == "ROLLED_BACK"
    else:
        assert "File name too long" in answer["error"], answer
        assert host.call("journal")["changes"] == []
    assert other.read_text() == OLD and host.leftovers() == []
