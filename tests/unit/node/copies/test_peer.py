"""Copies of backups on a peer: two hosts made of folders, a real transfer on loopback. D18."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.backup import kept_files
from node.copies import host_pack
from node.core.errors import NodeError
from tests.unit.node.support import transfers as t
from tests.unit.node.support.host import Host
from tests.unit.node.support.trees import Engine, picture

MIB = 1 << 20
ME = "lab1"


@pytest.fixture
def peer(tmp_path: Path, pyz: Path) -> Host:
    """Another host of the rig."""
    (tmp_path / "peer" / "bin").mkdir(parents=True)
    return Host(tmp_path / "peer", pyz)


class Way(t.Ends):
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
            t.answer(offer)
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


def test_equal_ones_share_a_payload_there_too(engine: Engine, peer: Host) -> None:
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
    with way.meddled(t.slow), way.offering():
        taker = way.start(way.taker, "tree receive", way.receive())
        t.kill_when(taker, lambda: half.exists() and half.stat().st_size > 4 * MIB, 9)
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
def test_a_copy_that_rots_is_named_and_not_taken(engine: Engine, peer: Host, name: str) -> None:
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
            assert t.answer(offer)["code"] == "backup_damaged"
            return
        got = engine.host.call("tree receive", way.receive())
    assert got["code"] == "not_the_same", got
    assert not (engine.backups / backup).exists()


@pytest.mark.parametrize("edit", [
    {"host": "../x"}, {"host": "/etc"}, {"backup": "../x"}, {"host": 1}, {"more": 1},
])  # fmt: skip
def test_bad_requests(engine: Engine, peer: Host, edit: dict[str, object]) -> None:
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
    found: kept_files.Found = {"/../../../outside": kept_files.Kept(b"x", 0o644, 0, 0)}
    manifest = {"id": "x", "files": kept_files.rows(found)}
    with pytest.raises(NodeError, match="not an absolute"):
        host_pack.load(host_pack.dump(found), manifest)


def test_the_tar_is_the_same_for_the_same_files_and_takes_nothing_else() -> None:
    found: kept_files.Found = {
        "/etc/b": kept_files.Kept(b"b", 0o600, 5, 6, 1_000_000_007), "/etc/none": None,
        "/etc/a": kept_files.Kept(b"a", 0o755, 0, 0, 7)}  # fmt: skip
    raw = host_pack.dump(found)
    assert raw == host_pack.dump(dict(reversed(found.items())))
    manifest: dict[str, Any] = {"id": "x", "files": kept_files.rows(found)}
    assert host_pack.load(raw, manifest) == found
    del manifest["files"]["/etc/a"]
    with pytest.raises(NodeError, match="etc/a"):
        host_pack.load(raw, manifest)
