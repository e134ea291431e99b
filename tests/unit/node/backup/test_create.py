"""tree backup: everything comes in, whole or not at all, for root's eyes only."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.backup import store, walk
from node.core import proc
from node.core.errors import NodeError
from tests.unit.node.support.transfers import wait_for
from tests.unit.node.support.trees import Engine, picture


def test_a_backup_holds_the_tree_and_says_what_it_is(engine: Engine) -> None:
    before = picture(engine.tree)
    answer = engine.ask("backup", {"tree": str(engine.tree), "documents": {"recipe": "a: 1"}})
    assert answer["stored"] is True and answer["versions"]["vllm"] == "0.27.0"
    manifest = engine.manifest(answer["backup"])
    assert manifest["members"]["count"] == len(before) == answer["members"]
    assert manifest["facts"]["freeze"] == ["vllm @ file://" + str(
        next(engine.wheels.glob("*.whl")))]  # fmt: skip
    assert manifest["facts"]["interpreter"]["inside"] is False
    assert manifest["facts"]["interpreter"]["there"] is True
    assert manifest["documents"]["given"] == {"recipe": "a: 1"}
    host = manifest["facts"]["host"]
    assert host["boot_id"] and host["kernel"] == os.uname().release
    payload = engine.backups / answer["backup"] / "payload.tar.zst"
    done = subprocess.run(["sha256sum", str(payload)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == manifest["payload"]["sha256"] == answer["sha256"]
    assert picture(engine.tree) == before


def test_links_modes_owners_times_and_xattrs_come_back(engine: Engine) -> None:
    odd = engine.package / "odd"
    odd.mkdir(mode=0o2750)
    odd.chmod(0o2750)
    (odd / "hard").write_text("shared")
    os.link(odd / "hard", odd / "hard-too")
    (odd / "dangling").symlink_to("/nowhere/at/all")
    (odd / "new\nline and \udcff byte").write_text("x")
    (odd / ("long" * 50)).write_text("y")
    (odd / "empty").touch()
    os.chown(odd / "empty", 12345, 54321)
    os.utime(odd / "empty", (1, 1_000_000_000))
    os.setxattr(odd / "empty", "user.note", b"kept=%\n\0")
    os.setxattr(odd / "hard", "user.a=b%c", b"")
    before = picture(engine.tree)
    engine.verified()
    subprocess.run(["rm", "-r", str(engine.tree)], check=True)
    assert engine.restore()["changed"] is True
    assert picture(engine.tree) == before
    package = engine.package / "odd"
    assert (package / "hard").stat().st_ino == (package / "hard-too").stat().st_ino


def test_an_equal_tree_is_not_stored_twice(engine: Engine) -> None:
    first = engine.backup()
    # not verified yet: a second one is stored whole
    second = engine.ask("backup", {"tree": str(engine.tree)})
    assert second["stored"] is True and second["backup"] != first
    engine.ask("verify", {"backup": first})
    third = engine.ask("backup", {"tree": str(engine.tree)})
    assert (third["stored"], third["backup"]) == (False, first) and first in third["detail"]
    (engine.package / "__init__.py").touch()
    assert engine.ask("backup", {"tree": str(engine.tree)})["stored"] is True


def test_other_documents_share_the_payload(engine: Engine) -> None:
    first = engine.verified()
    answer = engine.ask("backup", {"tree": str(engine.tree), "documents": {"recipe": "new"}})
    assert answer["stored"] is True and first in answer["detail"]
    both = [engine.backups / backup / "payload.tar.zst" for backup in (first, answer["backup"])]
    assert both[0].stat().st_ino == both[1].stat().st_ino
    assert engine.ask("verify", {"backup": answer["backup"]})["ok"]
    for backup in (first, answer["backup"]):
        engine.host.call("tree prune", {"keep": 1})
        assert (engine.backups / answer["backup"]).exists(), backup
    assert engine.ask("verify", {"backup": answer["backup"]})["ok"]


def test_units_and_their_drop_ins_are_kept_as_they_are(engine: Engine) -> None:
    unit = engine.host.file("engine.service", "[Service]\nExecStart=/x\n")
    drop_ins = engine.host.root / "engine.service.d"
    drop_ins.mkdir()
    (drop_ins / "10-mine.conf").write_text("[Service]\nNice=5\n")
    backup = engine.backup(files=[str(unit), str(drop_ins), "/etc/none-of-this"])
    files = engine.manifest(backup)["files"]
    kept = engine.backups / backup / "files"
    for path in (unit, drop_ins / "10-mine.conf"):
        copy = Path(f"{kept}{path}")
        assert copy.read_bytes() == path.read_bytes()
        assert (copy.stat().st_mode, copy.stat().st_mtime_ns) == (
            path.stat().st_mode, path.stat().st_mtime_ns)  # fmt: skip
        assert files[str(path)] == {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "uid": 0, "gid": 0,
            "bytes": path.stat().st_size, "mode": f"{path.stat().st_mode & 0o7777:04o}",
        }  # fmt: skip
    assert files["/etc/none-of-this"] is None


@pytest.mark.parametrize(("edit", "words"), [
    ("printf x >> {f}", "data.bin was edited"),
    ("cp -p --preserve=all {f} {f}.tmp; printf y | dd of={f} conv=notrunc; touch -r {f}.tmp {f}; "
     "rm {f}.tmp", "was edited"),
    ("rm {f}", "is gone"), ("touch {f}.new", "is new"), ("chmod 600 {f}", "was edited"),
])  # fmt: skip
def test_an_install_that_changes_meanwhile_fails_the_backup(
    engine: Engine, edit: str, words: str
) -> None:
    """As pip would make it, and as one that hides its time."""
    line = edit.format(f=engine.package / "data.bin")
    # a stand-in for tar: the real one, and then the edit
    engine.host.double("tar", f'#!/bin/sh\nexport PATH=/usr/bin:/bin; tar "$@"; rc=$?\n'
                       f'case $1 in --create) {line};; esac >&2\nexit $rc\n')  # fmt: skip
    answer = engine.ask("backup", {"tree": str(engine.tree)})
    assert answer["code"] == "tree_changing" and words in answer["error"], answer
    assert engine.names() == ["venv"]


def test_no_room_is_said_with_numbers_before_anything_is_written(
    engine: Engine, small_disk: Path
) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(3 << 20))
    engine.host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    answer = engine.ask("backup", {"tree": str(engine.tree)})
    assert answer["code"] == "no_room" and "MiB are free" in answer["error"]
    assert list((small_disk / "state" / "backups").iterdir()) == []


def test_a_disk_that_fills_in_the_tar_leaves_nothing(engine: Engine, small_disk: Path) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(1 << 20))
    engine.host.env["RIGBOOK_STATE"] = str(small_disk / "state")
    # a stand-in for another program that fills the disk once the room was looked at
    engine.host.double("zstd", f"#!/bin/sh\nhead -c 2000000 /dev/zero > {small_disk}/full\n"
                       'PATH=/usr/bin:/bin exec zstd "$@"\n')  # fmt: skip
    answer = engine.ask("backup", {"tree": str(engine.tree)})
    assert answer["code"] == "io" and "No space left on device" in answer["error"]
    (small_disk / "full").unlink()
    assert list((small_disk / "state" / "backups").iterdir()) == []
    assert engine.ask("list")["backups"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_backup_and_nothing_is_left(engine: Engine, number: int) -> None:
    # a stand-in for a slow disk: the stream comes in two pieces
    engine.host.double("zstd", "#!/bin/sh\ntouch $0.began; PATH=/usr/bin:/bin zstd \"$@\" | "
                       "(head -c 100; sleep 1; cat)\n")  # fmt: skip
    child = subprocess.Popen(
        engine.host.argv("tree backup", json.dumps({"tree": str(engine.tree)})),
        env=engine.host.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for((engine.host.bin / "zstd.began").exists)
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    answer = json.loads(out)
    assert (child.returncode, answer["code"], err) == (1, "interrupted", "")
    assert engine.names() == ["venv"]


def test_two_backups_at_once_are_one_and_a_clear_word(engine: Engine) -> None:
    with store.Held():
        answer = engine.ask("backup", {"tree": str(engine.tree)})
    assert answer["code"] == "locked"
    assert engine.backup()


def test_what_no_installation_holds_is_refused(engine: Engine) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(engine.package)  # a socket's path has 108 bytes
        server.bind("s")
        os.chdir(here)
    answer = engine.ask("backup", {"tree": str(engine.tree)})
    assert answer["code"] == "tree_mixed" and "socket" in answer["error"]
    (engine.package / "s").unlink()
    os.mkfifo(engine.package / "pipe")
    assert engine.ask("backup", {"tree": str(engine.tree)})["code"] == "tree_mixed"


@pytest.mark.parametrize(
    ("folder", "mounted", "is_taken"),
    [(False, False, True), (False, True, False), (True, False, False)],
)
def test_a_tree_on_an_overlay_is_taken_and_mounts_in_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool, mounted: bool, is_taken: bool
) -> None:
    """A file of an overlay's lower layer tells another device than its folder does."""
    listing = walk.Listing(str(tmp_path))
    place = tmp_path / "x"
    place.mkdir() if folder else place.write_text("x")
    seen = place.stat()
    fields = {name: getattr(seen, name) for name in dir(seen) if name.startswith("st_")}
    info = SimpleNamespace(**{**fields, "st_dev": seen.st_dev + 1})
    text = f"30 1 0:9 / {place} rw - ext4 x rw\n" if mounted else "30 1 0:9 / / rw - overlay x rw\n"
    monkeypatch.setattr(proc, "read_text", lambda _: text)
    if is_taken:
        listing.add("x", info)
        assert list(listing.stamps) == ["x"]
    else:
        with pytest.raises(NodeError, match="another file system"):
            listing.add("x", info)


@pytest.mark.parametrize(("request_", "words"), [
    ({}, "missing"), ({"tree": "relative"}, "absolute"), ({"tree": "/usr"}, "folder of the system"),
    ({"tree": "/opt/none/here"}, "does not exist"), ({"tree": "/opt/x\ny"}, "newline"),
    ({"tree": "TREE", "x": 1}, "unknown key"),
    ({"tree": "STATE"}, "hold each other"), ({"tree": "TREE", "documents": []}, "documents"),
    ({"tree": "TREE", "documents": {"a": "x" * (1 << 20)}}, "larger"),
    ({"tree": "TREE", "files": ["etc"]}, "files[0]"),
])  # fmt: skip
def test_bad_requests_are_refused(engine: Engine, request_: dict[str, object], words: str) -> None:
    engine.ask("list")
    engine.host.call("tree prune", {})
    asked = dict(request_)
    if asked.get("tree") in ("TREE", "STATE"):
        asked["tree"] = str(engine.tree if asked["tree"] == "TREE" else engine.backups)
    answer = engine.ask("backup", asked)
    assert answer["ok"] is False and words in answer["error"], answer
    assert engine.names() == ["venv"]


def test_a_tool_that_is_missing_is_named(engine: Engine) -> None:
    argv = engine.host.argv("tree backup", json.dumps({"tree": str(engine.tree)}))
    done = subprocess.run(argv, env={**engine.host.environ(), "PATH": str(engine.host.bin)},
                          capture_output=True, text=True)  # fmt: skip
    assert json.loads(done.stdout)["code"] == "no_program"


def test_two_of_one_second_never_share_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 random bits are not enough: the second one failed as "Directory not empty"."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(store.time, "strftime", lambda *_: "20260101T000000Z")
    drawn = iter(("0a0a", "0a0a", "0b0b"))
    monkeypatch.setattr(store.secrets, "token_hex", lambda _: next(drawn))
    (tmp_path / "backups" / store.new_id("/opt/venv")).mkdir(parents=True)
    assert store.new_id("/opt/venv") == "20260101T000000Z-venv-0b0b"
