"""A disk that is full when somebody wants to go back: the incident to undo (docker fills /var)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from facts.rignode import pack
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, change, file_step

BALLAST = 4 << 20
BIG = "o" * 900_000
OTHER = "0123456789ab"


@pytest.fixture
def disk(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host whose state, program and files are on one disk of 32 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=500", "tmpfs", str(path)],
                   check=True)  # fmt: skip
    for name, value in (("STATE", path / "state"), ("BALLAST", BALLAST)):
        host.env[f"RIGBOOK_{name}"] = str(value)
        monkeypatch.setenv(f"RIGBOOK_{name}", str(value))
    (host.bin / "python3").symlink_to(sys.executable)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(disk: Path) -> None:
    """Write until there is not a byte left."""
    with (disk / "full").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0


def fill_inodes(disk: Path) -> None:
    """Make files until no more can be made."""
    (disk / "many").mkdir()
    with contextlib.suppress(OSError):
        for n in range(10_000):
            (disk / "many" / str(n)).touch()
    assert os.statvfs(disk).f_favail == 0


def send(
    host: Host, disk: Path, verb: str, request: dict[str, object], version: str | None = None
) -> dict[str, object]:
    """A verb as rollback sends it: the program is installed first, on that disk.

    `version`: as from a checkout of that version, which the host has not.
    """
    line, stdin = pack.install_call(verb, request, str(disk / "lib"), str(disk / "rignode"))
    if version:
        word, _, program = stdin.partition(":")
        header = json.loads(zlib.decompress(base64.b64decode(word)))
        header[4] = f"rignode-{version}.pyz"
        stdin = f"{pack._word(header)}:{program}"
    done = host.run(["sh", "-c", line], stdin)
    assert done.stderr == "", done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_lock_is_taken_on_a_full_disk(host: Host, disk: Path) -> None:
    assert host.call("undo")["detail"] == "nothing to undo"
    host.call("apply", apply_request(file_step(host.file())))
    assert host.call("undo")["status"] == "ROLLED_BACK"
    fill(disk)
    assert host.call("undo")["detail"] == "nothing to undo"
    assert len(list((disk / "state" / "ballast").iterdir())) == 8, "it goes at need"


@pytest.mark.parametrize("filled", [fill, fill_inodes])
def test_an_undo_on_a_full_disk(host: Host, disk: Path, filled: Callable[[Path], None]) -> None:
    path, gone = disk / "file.conf", disk / "gone.conf"
    path.write_text(BIG)
    gone.write_text(OLD)
    absent: dict[str, object] = {"op": "absent", "path": str(gone)}
    host.call("apply", apply_request(file_step(path), absent))
    ballast = disk / "state" / "ballast"
    assert sum(one.stat().st_blocks * 512 for one in ballast.iterdir()) == BALLAST
    filled(disk)
    answer = host.call("undo")
    assert answer["ok"] and answer["status"] == "ROLLED_BACK", answer
    assert (path.read_text(), gone.read_text()) == (BIG, OLD)


def test_the_ballast_is_made_anew_when_there_is_room(host: Host, disk: Path) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    fill(disk)
    assert host.call("undo")["status"] == "ROLLED_BACK"
    ballast = disk / "state" / "ballast"
    assert list(ballast.iterdir()) == []
    # a failing call may take it again; one that works where there is room makes it anew
    (disk / "full").unlink()
    host.call("apply", apply_request(file_step(path), name="change-2"))
    assert sum(one.stat().st_blocks * 512 for one in ballast.iterdir()) == BALLAST


def test_a_failing_apply_goes_back_on_a_full_disk(host: Host, disk: Path) -> None:
    path = disk / "file.conf"
    path.write_text(OLD)
    host.call("undo")  # the state folder
    host.call("apply", apply_request(file_step(host.file())))
    host.call("undo")
    script = (
        f"while dd if=/dev/zero bs=4k count=100 >> {disk}/full; do :; done 2> /dev/null; exit 1"
    )
    fails = file_step(host.file("other"), validate=["sh", "-c", script, "{tmp}"])
    answer = host.call("apply", apply_request(file_step(path), fails, name="change-2"))
    assert not answer["ok"] and "nothing was changed" in str(answer["error"]), answer
    assert path.read_text() == OLD and host.call("journal", {"change": "change-2"})["ok"] is False


def test_a_change_is_closed_on_a_full_disk(host: Host, disk: Path) -> None:
    host.call("apply", apply_request(file_step(host.file())))
    fill(disk)
    request = {"change": "change-1", "status": "INCONSISTENT", "reason": "r" * 2000}
    assert host.call("close", request)["ok"] is True


def test_rollback_from_another_checkout_on_a_full_disk(host: Host, disk: Path) -> None:
    """As rollback.py does it: `claim`, `journal`, `undo`, each sent with a program that finds no
    room.
    """
    path = disk / "file.conf"
    path.write_text(BIG)
    assert send(host, disk, "apply", apply_request(file_step(path)))["ok"] is True
    fill(disk)
    installed = sorted(one.name for one in (disk / "lib").iterdir())
    asked = {"change": "change-1", "run": "b2", "former": None, "operator": "anna@desk",
             "deploy": "rollback"}  # fmt: skip
    claimed = send(host, disk, "claim", asked, OTHER)
    assert claimed.get("claimed") is True, claimed
    assert len(list((disk / "state" / "ballast").iterdir())) == 8, "the undo still comes"
    assert send(host, disk, "journal", {"change": "change-1"}, OTHER)["ok"] is True
    answer = send(host, disk, "undo", {"change": "change-1", "run": "b2"}, OTHER)
    assert answer["ok"] and answer["status"] == "ROLLED_BACK", answer
    assert path.read_text() == BIG
    # what changes the host needs its program there: a change without one has no way back
    fill(disk)
    refused = send(host, disk, "apply", {"change": change("change-2"), "steps": []}, OTHER)
    assert refused["code"] == "install" and "No space left" in str(refused["error"]), refused
    assert "df -h" in str(refused["remedy"])
    assert sorted(one.name for one in (disk / "lib").iterdir()) == installed
    assert NEW not in path.read_text()


def test_a_dead_run_is_taken_back_on_a_full_disk(host: Host, disk: Path) -> None:
    path = disk / "file.conf"
    path.write_text(BIG)
    host.call("apply", apply_request(file_step(path)))
    fill(disk)
    asked = {"change": "change-1", "run": "b2", "former": None, "operator": "anna@desk",
             "deploy": "serve", "take_back": True}  # fmt: skip
    answer = host.call("claim", asked)
    assert answer.get("claimed") is True and path.read_text() == BIG, answer


def test_rollback_where_the_program_cannot_be_written(host: Host, disk: Path) -> None:
    """/usr went read-only, the state is elsewhere."""
    usr = disk / "usr"
    usr.mkdir()
    path = host.file()
    assert send(host, usr, "apply", apply_request(file_step(path)))["ok"] is True
    subprocess.run(["mount", "--bind", str(usr), str(usr)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(usr)], check=True)
    try:
        answer = send(host, usr, "undo", {}, OTHER)
    finally:
        subprocess.run(["umount", str(usr)], check=True)
    assert answer["ok"] and answer["status"] == "ROLLED_BACK" and path.read_text() == OLD
