"""Copies of backups on another disk (a tmpfs stands in for it): D18, the engine's disk dies."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.backup import copies, create, listing, store
from node.backup.copies import copy
from node.core.errors import NodeError
from tests.unit.node.support import transfers
from tests.unit.node.support.host import Host
from tests.unit.node.support.strace import Faulted
from tests.unit.node.support.trees import Engine, picture


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Another disk."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def copied(engine: Engine, disk: Path, **more: object) -> dict[str, Any]:
    """A copy that worked."""
    answer = engine.ask("copy", {"to": str(disk), **more})
    assert answer["ok"], answer
    return answer


def unit(engine: Engine) -> list[str]:
    """A file of the host, with a mode and an owner of its own."""
    path = engine.host.file("engine.service", "[Service]\nExecStart=/x\n", 0o640)
    os.chown(path, 0, 12345)
    return [str(path)]


def test_the_disk_dies_and_the_venv_comes_back_from_the_copy(engine: Engine, disk: Path) -> None:
    before = picture(engine.tree)
    backup = engine.verified(files=unit(engine))
    answer = copied(engine, disk)
    there = disk / "rigbook" / socket.gethostname() / backup
    assert (answer["backup"], answer["place"], answer["made"]) == (backup, str(there), True)
    assert oct(there.stat().st_mode) == "0o40700"
    assert {path.name for path in there.iterdir()} == {
        path.name for path in (engine.backups / backup).iterdir()} - {"verified.json"}  # fmt: skip
    (row,) = engine.ask("list")["backups"]
    assert row["copies"][0]["place"] == str(there) and row["copies"][0]["unix_s"] > 0
    # once more: nothing is written, all of it is read back
    again = copied(engine, disk, backup=backup)
    assert again["made"] is False
    assert engine.ask("list")["backups"][0]["copies"][0]["unix_s"] > row["copies"][0]["unix_s"]

    shutil.rmtree(engine.host.state)
    shutil.rmtree(engine.tree)
    assert engine.ask("restore", {"backup": backup})["code"] == "no_backup"
    assert engine.ask("take", {"backup": backup})["code"] == "no_backup", "nobody noted where"
    taken = engine.ask("take", {"backup": backup, "from": str(disk)})
    assert taken["ok"] and taken["place"] == str(there), taken
    assert engine.ask("list")["backups"][0]["verified_unix_s"] > 0
    assert engine.restore()["changed"] is True
    assert picture(engine.tree) == before


@pytest.mark.parametrize("forged", [False, True])
def test_what_another_program_kept_is_verified_before_it_is_restored(
    engine: Engine, forged: bool
) -> None:
    """docs/runbooks/backup.md, outside the rig: the folder goes and comes back as a tar."""
    before = picture(engine.tree)
    backup = engine.verified(files=unit(engine))
    kept = subprocess.run(
        ["tar", "-C", engine.backups, "-cf", "-", backup], stdout=subprocess.PIPE, check=True
    )
    shutil.rmtree(engine.host.state)
    shutil.rmtree(engine.tree)
    subprocess.run(["install", "-d", "-m", "0700", engine.host.state, engine.backups], check=True)
    subprocess.run(
        ["tar", "-C", engine.backups, "-xpf", "-", "--numeric-owner"], input=kept.stdout, check=True
    )
    if forged:
        with (engine.backups / backup / "payload.tar.zst").open("r+b") as payload:
            payload.seek(99)
            payload.write(b"rot")
        assert engine.ask("verify", {"backup": backup})["code"] == "backup_damaged"
        return
    assert engine.ask("verify", {"backup": backup})["ok"]
    assert engine.restore(backup=backup)["changed"] is True
    assert picture(engine.tree) == before


def test_equal_ones_share_a_payload_there_too(engine: Engine, disk: Path) -> None:
    (engine.package / "kernel.so").write_bytes(os.urandom(4 << 20))
    first = engine.verified()
    copied(engine, disk)
    before = picture(engine.tree)
    second = engine.verified(documents={"recipe": "new"})
    there = Path(copied(engine, disk)["place"])
    full = there.with_name(first) / "payload.tar.zst"
    assert (there / "payload.tar.zst").stat().st_ino == full.stat().st_ino
    shutil.rmtree(engine.backups)
    noted = {row["backup"]: row for row in engine.ask("copies")["noted"]}
    assert noted[second]["is_here"] and noted[second]["tree"] == str(engine.tree)
    (there / "manifest.json").rename(there / "away")
    assert {row["is_here"] for row in engine.ask("copies")["noted"] if row["backup"] == second} == {
        False}  # fmt: skip
    (there / "away").rename(there / "manifest.json")
    assert engine.ask("take", {"backup": second})["ok"], "where it lies is noted"
    shutil.rmtree(engine.tree)
    assert engine.restore()["changed"] is True and picture(engine.tree) == before


def test_a_killed_copy_goes_on(engine: Engine, disk: Path) -> None:
    """Killed at each changing call; the next one is whole, and what is half is never taken."""
    (engine.package / "large.bin").write_bytes(os.urandom(3 << 20))
    backup = engine.verified(files=unit(engine))

    def reset() -> None:
        shutil.rmtree(disk / "rigbook", ignore_errors=True)

    faulted = Faulted(engine.host, "tree copy", {"to": str(disk)}, reset)
    points = faulted.points("fsync", "rename", "mkdir", "unlink")
    points += [("write", n) for n in range(1, 6)]
    killed = 0
    for point, done in faulted.each(points):
        killed += done.returncode != 0
        mine = disk / "rigbook" / socket.gethostname()
        half = mine / f"{backup}.partial" / "payload.tar.zst"
        size = half.stat().st_size if half.exists() else 0
        answer = copy({"to": str(disk)})
        assert answer["backup"] == backup, point
        assert [path.name for path in mine.iterdir()] == [backup], (point, size)
    assert killed > 8


@pytest.mark.parametrize("there", [b"x" * 1000, b"", None])
def test_what_was_left_is_gone_on_with_and_not_believed(
    engine: Engine, disk: Path, there: bytes | None
) -> None:
    backup = engine.verified()
    partial = disk / "rigbook" / socket.gethostname() / f"{backup}.partial"
    partial.mkdir(parents=True, mode=0o700)
    raw = (engine.backups / backup / "payload.tar.zst").read_bytes()
    half = partial / "payload.tar.zst"
    half.write_bytes(raw[: len(raw) // 2] if there is None else there)
    inode = half.stat().st_ino
    answer = copied(engine, disk)
    whole = Path(answer["place"]) / "payload.tar.zst"
    assert whole.read_bytes() == raw
    assert (whole.stat().st_ino == inode) is (there != b"x" * 1000)


@pytest.mark.parametrize("name", ["payload.tar.zst", "members.jsonl", "files"])
def test_a_copy_that_rots_is_named_and_not_taken(engine: Engine, disk: Path, name: str) -> None:
    backup = engine.verified(files=unit(engine))
    there = Path(copied(engine, disk)["place"])
    path = (
        there / name if name != "files" else Path(f"{there}/files{engine.host.root}/engine.service")
    )
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    noted = engine.ask("list")["backups"][0]["copies"]
    again = engine.ask("copy", {"to": str(disk)})
    assert again["code"] in ("copy_damaged", "backup_damaged"), again
    assert engine.ask("list")["backups"][0]["copies"] == noted, "an older time stays what it was"
    shutil.rmtree(engine.backups)
    assert engine.ask("take", {"backup": backup})["code"] in ("copy_damaged", "backup_damaged")
    assert engine.ask("list")["backups"] == []


def test_the_backups_own_disk_is_no_place(engine: Engine, tmp_path: Path) -> None:
    engine.verified()
    here = tmp_path / "here"
    here.mkdir()
    answer = engine.ask("copy", {"to": str(here)})
    assert answer["code"] == "same_disk", answer
    assert list(here.iterdir()) == []


def test_what_is_not_verified_is_not_copied(engine: Engine, disk: Path) -> None:
    engine.backup()
    assert engine.ask("copy", {"to": str(disk)})["code"] == "no_backup"


def test_a_disk_without_room_says_so_before_anything_is_written(
    engine: Engine, small_disk: Path
) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(3 << 20))
    engine.verified()
    answer = engine.ask("copy", {"to": str(small_disk)})
    assert answer["code"] == "no_room" and "MiB are free" in answer["error"]


def test_a_copy_that_others_may_write_is_not_taken(engine: Engine, disk: Path) -> None:
    backup = engine.verified()
    there = Path(copied(engine, disk)["place"])
    shutil.rmtree(engine.backups)
    there.chmod(0o777)
    assert engine.ask("take", {"backup": backup})["code"] == "unsafe_folder"


def test_a_path_in_a_foreign_manifest_leads_nowhere(engine: Engine, disk: Path) -> None:
    backup = engine.verified(files=unit(engine))
    there = Path(copied(engine, disk)["place"])
    manifest = json.loads((there / "manifest.json").read_text())
    manifest["files"] = {"/../../../outside": next(iter(manifest["files"].values()))}
    manifest["seal"] = store.seal(manifest)
    (there / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(engine.backups)
    assert engine.ask("take", {"backup": backup})["code"] == "bad_request"


@pytest.mark.parametrize("request_", [
    {}, {"to": "relative"}, {"to": "/none/of/this"}, {"to": "DISK", "backup": "../x"},
    {"to": "DISK", "x": 1},
])  # fmt: skip
def test_bad_requests(engine: Engine, disk: Path, request_: dict[str, object]) -> None:
    engine.verified()
    asked = {key: str(disk) if value == "DISK" else value for key, value in request_.items()}
    assert engine.ask("copy", asked)["ok"] is False
    assert list(disk.iterdir()) == []


def test_whole_disks_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions of one disk are one; LVM on two disks is both. A stand-in for /sys."""
    sys = tmp_path / "sys"
    for name in ("nvme0n1", "nvme0n1/nvme0n1p1", "nvme0n1/nvme0n1p2", "sdb", "dm-0/slaves"):
        (sys / name).mkdir(parents=True, exist_ok=True)
    for name in ("p1", "p2"):
        (sys / f"nvme0n1/nvme0n1{name}" / "partition").write_text("1")
    (sys / "dm-0/slaves/nvme0n1p2").symlink_to(sys / "nvme0n1/nvme0n1p2")
    (sys / "dm-0/slaves/sdb").symlink_to(sys / "sdb")
    block = tmp_path / "block"
    block.mkdir()
    for number, target in {"1:1": "nvme0n1/nvme0n1p1", "1:2": "nvme0n1/nvme0n1p2", "2:0": "sdb",
                           "3:0": "dm-0"}.items():  # fmt: skip
        (block / number).symlink_to(sys / target)
    monkeypatch.setattr(listing, "_BLOCK", str(block))
    devices = {"/a": os.makedev(1, 1), "/b": os.makedev(1, 2), "/c": os.makedev(2, 0),
               "/lvm": os.makedev(3, 0)}  # fmt: skip

    class Info:
        def __init__(self, device: int) -> None:
            self.st_dev = device

    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: Info(devices[path])
                        if path in devices else real(path, **more))  # fmt: skip
    found = {path: listing.disks(path) for path in devices}
    monkeypatch.undo()
    assert found == {"/a": {"nvme0n1"}, "/b": {"nvme0n1"}, "/c": {"sdb"},
                     "/lvm": {"nvme0n1", "sdb"}}  # fmt: skip


# Copies of backups on a peer: two hosts made of folders, a real transfer on loopback. D18.

MIB = 1 << 20
ME = "lab1"


@pytest.fixture
def peer(tmp_path: Path, pyz: Path) -> Host:
    """Another host of the rig."""
    (tmp_path / "peer" / "bin").mkdir(parents=True)
    return Host(tmp_path / "peer", pyz)


class Way(transfers.Ends):
    """From the host that gives to the one that takes."""

    def __init__(self, giver: Host, taker: Host, backup: str, gives: str | None, takes: str | None):
        super().__init__(giver, taker, giver.root, taker.root)
        self.backup, self.gives, self.takes = backup, gives, takes

    @contextmanager
    def offering(self, **more: object) -> Iterator[subprocess.Popen[str]]:
        request = {**self.offer(backup=self.backup, host=self.gives), **more}
        del request["path"]
        started = self.start(self.giver, "tree offer", request)
        try:
            yield started
        finally:
            started.kill()
            started.communicate()

    def receive(self, **more: object) -> dict[str, Any]:
        return {"backup": self.backup, "host": self.takes, "from": self.place(),
                "key": self.key, **more}  # fmt: skip

    def go(self) -> dict[str, Any]:
        """All of it; what the taker answers."""
        with self.offering() as offer:
            got = self.taker.call("tree receive", self.receive())
            transfers.answer(offer)
        return got


def there(engine: Engine, peer: Host, backup: str) -> Way:
    """The way of a copy to the peer."""
    return Way(engine.host, peer, backup, None, ME)


def back(engine: Engine, peer: Host, backup: str) -> Way:
    """The way of a copy back to the host that it is of."""
    return Way(peer, engine.host, backup, ME, None)


def of_host(engine: Engine) -> list[str]:
    """A file of the host, with a mode and an owner of its own."""
    path = engine.host.file("engine.service", "[Service]\nExecStart=/x\n", 0o640)
    os.chown(path, 0, 12345)
    return [str(path)]


def kept(peer: Host, backup: str) -> Path:
    """Where the peer keeps it."""
    return peer.state / "copies-of-others" / ME / backup


def test_the_disk_dies_and_the_venv_comes_back_from_the_peer(engine: Engine, peer: Host) -> None:
    before = picture(engine.tree)
    backup = engine.verified(files=of_host(engine))
    got = there(engine, peer, backup).go()
    assert (got["ok"], got["made"], got["place"]) == (True, True, str(kept(peer, backup))), got
    mine = {p.name for p in (engine.backups / backup).iterdir()} - {"verified.json"}
    assert {p.name for p in kept(peer, backup).iterdir()} == mine
    for path in (kept(peer, backup), kept(peer, backup).parent, kept(peer, backup).parent.parent):
        assert oct(path.stat().st_mode) == "0o40700"
    for path in kept(peer, backup).glob("*.*"):
        assert oct(path.stat().st_mode) == "0o100600", path
    (row,) = peer.call("tree copies")["others"]
    assert (row["host"], row["backup"], row["tree"], row["problem"]) == (
        ME, backup, str(engine.tree), None)  # fmt: skip
    assert row["created_unix_s"] == engine.manifest(backup)["created_unix_s"]
    # once more: nothing is written, all of it is read back
    assert there(engine, peer, backup).go()["made"] is False

    noted = engine.host.call("tree note", {"backup": backup, "place": "lab2:/there"})
    assert noted["copies"][0]["place"] == "lab2:/there"
    shutil.rmtree(engine.host.state)
    shutil.rmtree(engine.tree)
    got = back(engine, peer, backup).go()
    assert got["ok"] and got["members"] > 0, got
    assert engine.ask("list")["backups"][0]["verified_unix_s"] > 0
    assert engine.restore()["changed"] is True and picture(engine.tree) == before


def test_the_hosts_files_come_as_they_were(engine: Engine, peer: Host) -> None:
    (path,) = of_host(engine)
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    backup = engine.verified(files=[path, str(engine.host.root / "none")])
    there(engine, peer, backup).go()
    info = Path(f"{kept(peer, backup)}/files{path}").stat()
    assert (oct(info.st_mode), info.st_uid, info.st_gid) == ("0o100640", 0, 12345)
    assert info.st_mtime_ns == 1_700_000_000_123_456_789


def test_where_a_copy_was_is_told_when_the_backup_is_gone(engine: Engine) -> None:
    backup = engine.verified()
    assert engine.ask("note", {"backup": backup, "place": "lab2:/there"})["ok"]
    shutil.rmtree(engine.backups)
    (row,) = engine.ask("copies")["noted"]
    assert (row["backup"], row["place"]) == (backup, "lab2:/there")


def test_equal_ones_share_a_payload_there_too_peer(engine: Engine, peer: Host) -> None:
    (engine.package / "kernel.so").write_bytes(os.urandom(4 << 20))
    first = engine.verified()
    there(engine, peer, first).go()
    second = engine.verified(documents={"recipe": "new"})
    there(engine, peer, second).go()
    payloads = [kept(peer, one) / "payload.tar.zst" for one in (first, second)]
    assert payloads[0].stat().st_ino == payloads[1].stat().st_ino


@pytest.mark.parametrize("to_peer", [True, False])
def test_a_taker_that_was_killed_goes_on(engine: Engine, peer: Host, to_peer: bool) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(12 * MIB))
    backup = engine.verified(files=of_host(engine))
    way = there(engine, peer, backup)
    if not to_peer:
        way.go()
        shutil.rmtree(engine.backups)
        way = back(engine, peer, backup)
    folder = kept(peer, backup) if to_peer else engine.backups / backup
    half = folder.with_name(f"{backup}.partial") / "payload.tar.zst"
    with way.meddled(transfers.slow), way.offering():
        taker = way.start(way.taker, "tree receive", way.receive())
        transfers.kill_when(taker, lambda: half.exists() and half.stat().st_size > 4 * MIB, 9)
        taker.communicate()
    assert not folder.exists()
    inode = half.stat().st_ino
    got = way.go()
    assert got["ok"] and got["resumed_bytes"] > 4 * MIB, got
    assert (folder / "payload.tar.zst").stat().st_ino == inode
    assert sorted(p.name for p in folder.parent.iterdir()) == [backup]


def test_what_was_left_is_not_believed(engine: Engine, peer: Host) -> None:
    backup = engine.verified()
    partial = kept(peer, backup).with_name(f"{backup}.partial")
    partial.mkdir(parents=True, mode=0o700)
    size = (engine.backups / backup / "payload.tar.zst").stat().st_size
    (partial / "payload.tar.zst").write_bytes(b"x" * size)
    assert there(engine, peer, backup).go()["code"] == "not_the_same"
    assert there(engine, peer, backup).go()["made"] is True


@pytest.mark.parametrize("name", ["payload.tar.zst", "members.jsonl", "files", "manifest.json"])
def test_a_copy_that_rots_is_named_and_not_taken_peer(
    engine: Engine, peer: Host, name: str
) -> None:
    backup = engine.verified(files=of_host(engine))
    there(engine, peer, backup).go()
    path = kept(peer, backup) / name
    path = path if name != "files" else Path(f"{path}{engine.host.root}/engine.service")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert there(engine, peer, backup).go()["code"] in ("copy_damaged", "backup_damaged")
    shutil.rmtree(engine.backups)
    way = back(engine, peer, backup)
    with way.offering() as offer:
        if name in ("files", "manifest.json"):  # the giver sees it before it listens
            assert transfers.answer(offer)["code"] == "backup_damaged"
            return
        got = engine.host.call("tree receive", way.receive())
    assert got["code"] == "not_the_same", got
    assert not (engine.backups / backup).exists()


@pytest.mark.parametrize("edit", [
    {"host": "../x"}, {"host": "/etc"}, {"backup": "../x"}, {"host": 1}, {"more": 1},
])  # fmt: skip
def test_bad_requests_peer(engine: Engine, peer: Host, edit: dict[str, object]) -> None:
    backup = engine.verified()
    way = there(engine, peer, backup)
    assert peer.call("tree receive", {**way.receive(), **edit})["code"] == "bad_request"
    offer = way.offer(backup=backup, host=None)
    del offer["path"]
    assert engine.host.call("tree offer", {**offer, **edit})["code"] == "bad_request"
    assert not (peer.state / "copies-of-others").exists()


def test_what_is_not_verified_is_not_given(engine: Engine, peer: Host) -> None:
    backup = engine.backup()
    offer = there(engine, peer, backup).offer(backup=backup, host=None)
    del offer["path"]
    assert engine.host.call("tree offer", offer)["code"] == "no_backup"
    assert engine.host.call("tree offer", {**offer, "host": "lab9"})["code"] == "no_backup"


def test_a_path_that_leads_out_is_refused() -> None:
    found: create.Found = {"/../../../outside": create.Kept(b"x", 0o644, 0, 0, 0)}
    manifest = {"id": "x", "files": create.kept_rows(found)}
    with pytest.raises(NodeError, match="not an absolute"):
        copies.load_host_pack(copies.dump_host_pack(found), manifest)


def test_the_tar_is_the_same_for_the_same_files_and_takes_nothing_else() -> None:
    found: create.Found = {
        "/etc/b": create.Kept(b"b", 0o600, 5, 6, 1_000_000_007), "/etc/none": None,
        "/etc/a": create.Kept(b"a", 0o755, 0, 0, 7)}  # fmt: skip
    raw = copies.dump_host_pack(found)
    assert raw == copies.dump_host_pack(dict(reversed(found.items())))
    manifest: dict[str, Any] = {"id": "x", "files": create.kept_rows(found)}
    assert copies.load_host_pack(raw, manifest) == found
    del manifest["files"]["/etc/a"]
    with pytest.raises(NodeError, match="etc/a"):
        copies.load_host_pack(raw, manifest)
