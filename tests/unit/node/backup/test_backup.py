"""What comes back, to the byte, the nanosecond and the hole; and what is called the same."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.backup import store
from node.core import proc
from node.core.errors import NodeError
from tests.unit.node.support import strace, trees
from tests.unit.node.support.transfers import wait_for
from tests.unit.node.support.trees import Engine, picture

NS = 10**9
# user, group, others, a mask, and a named user: no mode says this
ENTRIES = ((1, 6, -1), (2, 4, 1234), (4, 4, -1), (0x10, 4, -1), (0x20, 0, -1))
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in ENTRIES)
# cap_net_bind_service=ep
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")


def flipped(path: Path) -> None:
    """Bit rot: another byte, and nothing else that can be seen."""
    info = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def same_second(path: Path) -> None:
    """An edit of the same length, in the second in which the file was made."""
    info = path.stat()
    path.write_bytes(path.read_bytes().swapcase())
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns // NS * NS + 5))


def touched(path: Path) -> None:
    """The same bytes with another time in the same second."""
    info = path.stat()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns // NS * NS + 5))


def acl_added(path: Path) -> None:
    """Somebody else may read it now; its mode is as it was."""
    os.setxattr(path, "user.note", b"x")


@pytest.mark.parametrize("edit", [flipped, same_second, touched, acl_added])
def test_what_hides_behind_size_and_second_is_brought_back(
    engine: Engine, edit: trees.Edit
) -> None:
    """`rollback.py --data backup=last` asks with `dry` first, and does nothing for "the same"."""
    before = picture(engine.tree)
    engine.verified()
    edit(engine.package / "data.bin")
    assert picture(engine.tree) != before
    dry = engine.restore(dry=True)
    assert dry["changed"] and "vllm/data.bin" in dry["detail"], dry
    assert engine.restore()["changed"] is True
    assert picture(engine.tree) == before
    engine.close()
    again = engine.restore("restore-2")
    assert (again["changed"], again["detail"]) == (False, "the tree is as the backup")


def odd_files(folder: Path) -> None:
    """What a copy by hand loses: times, holes, links, ACLs, attributes, capabilities."""
    folder.mkdir()
    for name, time_ns in {"fine": 1_700_000_000_123_456_789, "whole": 1_700_000_000 * NS,
                          "before": -1_500_000_001, "just-before": -5 * NS // 10,
                          "long-before": -100 * NS, "zero": 0}.items():  # fmt: skip
        (folder / name).write_text(name)
        os.utime(folder / name, ns=(0, time_ns))
    (folder / "first").write_text("shared")
    os.link(folder / "first", folder / "second")
    (folder / "link").symlink_to("nowhere")
    os.utime(folder / "link", ns=(0, 1_600_000_000_000_000_001), follow_symlinks=False)
    os.setxattr(folder / "fine", "system.posix_acl_access", ACL)
    os.setxattr(folder / "whole", "security.capability", CAPABILITY)
    os.setxattr(folder / "zero", "user.a=b%c", b"\0=%\n")
    sparse = {"sparse": [(1 << 20, b"x" * 5000), (40 << 20, b"y")], "hole": [],
              "n" * 120: [(0, b"at the front")]}  # fmt: skip
    for name, parts in sparse.items():
        with (folder / name).open("wb") as file:
            file.truncate(64 << 20)
            for where, raw in parts:
                file.seek(where)
                file.write(raw)
    os.utime(folder, ns=(0, 1_650_000_000_000_000_123))


def blocks(folder: Path) -> dict[str, int]:
    """The blocks of 512 bytes that each file takes."""
    return {path.name: path.lstat().st_blocks for path in folder.iterdir()}


def test_times_holes_links_and_attributes_come_back(engine: Engine) -> None:
    odd = engine.package / "odd"
    odd_files(odd)
    os.sync()  # blocks are counted once they are given
    before, taken = picture(engine.tree), blocks(odd)
    assert sum(taken.values()) < 1000
    engine.verified()
    subprocess.run(["rm", "-r", str(engine.tree)], check=True)
    assert engine.restore()["changed"] is True
    os.sync()
    assert picture(engine.tree) == before
    assert (odd / "first").stat().st_ino == (odd / "second").stat().st_ino
    assert {name: n for name, n in blocks(odd).items() if n > taken[name] + 64} == {}
    # a folder's time changes with byte code: it comes back, and is not compared
    assert odd.stat().st_mtime_ns == 1_650_000_000_000_000_123
    engine.close()
    assert engine.restore("restore-2")["changed"] is False


@pytest.fixture
def medium(engine: Engine) -> Iterator[Path]:
    """The image of a disk, mounted where the host's folders are."""
    image, host = engine.host.root.with_name("disk"), engine.host.root
    with image.open("wb") as file:
        file.truncate(160 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    spare = host.with_name("spare")
    host.rename(spare)
    host.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(host)], check=True)
    subprocess.run(["cp", "-a", f"{spare}/.", str(host)], check=True)
    yield image
    subprocess.run(["umount", str(host)], check=True)


def rot(medium: Path, mark: bytes) -> None:
    """Flip a bit of each of these bytes on the medium; the file system above has the right ones."""
    with medium.open("r+b") as file:
        raw = file.read()
        assert raw.count(mark) == 1, raw.count(mark)
        file.seek(raw.index(mark))
        file.write(bytes(byte ^ 1 for byte in mark))
        os.fsync(file.fileno())


def test_verify_reads_the_medium_and_not_the_memory(engine: Engine, medium: Path) -> None:
    backup = engine.verified()
    os.sync()
    payload = engine.backups / backup / "payload.tar.zst"
    right = payload.read_bytes()
    rot(medium, right[-3000:-2900])
    assert payload.read_bytes() == right, "the memory still has the right ones"
    answer = engine.ask("verify", {"backup": backup})
    assert answer["code"] == "backup_damaged", answer


def test_the_same_is_said_of_the_medium_and_not_of_the_memory(engine: Engine, medium: Path) -> None:
    noise = engine.package / "noise"
    right = os.urandom(8192).hex().encode()  # not a byte of it lies in the payload as it is
    noise.write_bytes(right)
    engine.verified()
    os.sync()
    assert engine.restore(dry=True)["changed"] is False
    assert noise.read_bytes() == right
    rot(medium, right[5000:5100])
    assert noise.read_bytes() == right, "the memory still has the right ones"
    assert "noise" in engine.restore(dry=True)["detail"]
    assert engine.restore()["changed"] is True and noise.read_bytes() == right


def test_a_large_compare_and_verify_leave_the_page_cache_alone(engine: Engine) -> None:
    large = engine.package / "large"
    large.write_bytes(os.urandom(24 << 20))
    backup = engine.verified()
    os.sync()
    assert engine.restore(dry=True)["changed"] is False
    for path in (large, engine.backups / backup / "payload.tar.zst"):
        done = subprocess.run(["fincore", "-n", "-b", "-o", "RES", str(path)],
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert int(done.stdout) < 2 << 20, path


def test_a_tar_that_writes_other_bytes_is_seen_before_the_trade(engine: Engine) -> None:
    engine.verified()
    (engine.package / "data.bin").write_text("edited")
    seen = picture(engine.tree)
    # a stand-in for a tar, or a disk, that loses a byte and says nothing
    engine.host.double("tar", """#!/bin/sh
export PATH=/usr/bin:/bin; tar "$@" || exit
[ "$1" = --extract ] || exit 0
for a; do case $a in --directory=*) cd "${a#*=}";; esac; done
for f in $(find . -name data.bin); do
  touch -r $f /tmp/rigbook-time.$$; printf X | dd of=$f conv=notrunc status=none
  touch -r /tmp/rigbook-time.$$ $f; rm /tmp/rigbook-time.$$
done
""")  # fmt: skip
    answer = engine.restore()
    assert answer["code"] == "tree_failed" and "data.bin" in answer["error"], answer
    assert answer["error"].endswith("nothing was changed")
    assert picture(engine.tree) == seen and engine.names()[0] == "venv"


def test_a_restore_says_so_only_after_a_last_look(engine: Engine, tmp_path: Path) -> None:
    """Somebody writes into the tree right behind the trade: what lies there is not the backup."""
    engine.verified()
    data = engine.package / "data.bin"
    data.write_text("edited")
    seen = picture(engine.tree)
    orphan = subprocess.Popen(  # a stand-in for an engine that nobody found, at work in its venv
        ["sh", "-c", 'i=$(stat -c %i "$1"); while [ "$(stat -c %i "$1")" = "$i" ]; do :; done; '
         'touch -r "$2" "$3"; printf X | dd of="$2" conv=notrunc status=none; touch -r "$3" "$2"',
         "-", str(engine.tree), str(data), str(tmp_path / "time")])  # fmt: skip
    asked = json.dumps({"change": {"id": "restore-1", "deploy": "x", "operator": "x"}})
    slow = ["-e", "trace=renameat2", "-e", "inject=renameat2:delay_exit=3000000:when=1"]
    done = strace.traced(engine.host, "tree restore", asked, slow, tmp_path / "log")
    assert orphan.wait(20) == 0
    answer = json.loads(done.stdout)
    assert not answer["ok"] and "data.bin" in answer["error"], answer
    assert picture(engine.tree) == seen


# The page for a rescue disk, followed to the letter: tar and zstd, and nothing of ours.

PAGE = Path(__file__).parents[4] / "docs" / "runbooks" / "restore.md"


def commands(**words: object) -> str:
    """The page's commands, with this reader's own words in its first lines."""
    found = re.search(r"### From a rescue disk.*?```\n(.*?)```", PAGE.read_text(), re.S)
    assert found
    text = found[1]
    for name, word in words.items():
        text, count = re.subn(rf"^{name}=.*", f"{name}='{word}'", text, flags=re.M)
        assert count == 1, name
    return text


def test_a_person_with_tar_and_zstd_brings_it_all_back(engine: Engine, tmp_path: Path) -> None:
    odd = engine.package / "odd"
    odd_files(odd)
    etc = engine.host.root / "etc"
    (etc / "engine.service.d").mkdir(parents=True)
    kept = {"engine.service": 0o644, "engine.service.d/10.conf": 0o644, "engine.env": 0o600,
            "serve.sh": 0o755}  # fmt: skip
    for name, mode in kept.items():
        (etc / name).write_bytes(name.encode() + b"\n\xff")
        (etc / name).chmod(mode)
    backup = engine.verified(files=[str(etc / name) for name in kept])
    before, hosts, taken = picture(engine.tree), picture(etc), blocks(odd)

    # the dead host's disk, seen from the rescue disk; its unit and its venv are damaged
    disk = tmp_path / "disk"
    stored = disk / "var/lib/rigbook/backups"
    stored.parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(engine.backups), str(stored)], check=True)
    venv, there = Path(f"{disk}{engine.tree}"), Path(f"{disk}{etc}")
    venv.mkdir(parents=True)
    (venv / "broken").touch()
    there.mkdir(mode=0o751)
    (there / "engine.service").write_text("damaged")

    text = commands(DISK=disk, ID=backup, VENV=engine.tree)
    done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", "umask 022\n" + text],
                          capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"},
                          cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, (done.stderr, text)
    assert engine.manifest(backup)["payload"]["sha256"] in done.stdout
    assert picture(venv) == before and (venv.with_name("venv.damaged") / "broken").exists()
    odd = Path(f"{disk}{odd}")
    assert (odd / "first").stat().st_ino == (odd / "second").stat().st_ino
    assert {name: n for name, n in blocks(odd).items() if n > taken[name] + 64} == {}
    found = picture(there)
    assert {name: found[name] for name in kept} == {name: hosts[name] for name in kept}
    assert oct(there.stat().st_mode) == "0o40751", "a folder of the host is as it was"


# tree backup: everything comes in, whole or not at all, for root's eyes only.


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
    listing = store.Listing(str(tmp_path))
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
