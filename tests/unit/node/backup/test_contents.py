"""What comes back, to the byte, the nanosecond and the hole; and what is called the same."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.node.support import strace, trees
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
