"""tree verify: what is damaged, cut, edited or hostile is never taken for a backup."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.backup import store
from node.backup.walk import Member
from tests.unit.node.support import strace
from tests.unit.node.support.trees import Engine, picture


def payload(engine: Engine, backup: str) -> Path:
    """A backup's payload."""
    return engine.backups / backup / "payload.tar.zst"


@pytest.fixture
def backup(engine: Engine) -> str:
    """A verified backup of the tree."""
    return engine.verified()


def refused(engine: Engine, backup: str, *words: str) -> None:
    """Neither verify nor restore take it; the tree is as it was and nothing is left of the try."""
    before, names = picture(engine.tree), engine.names()
    (engine.package / "data.bin").write_text("edited, so that there is something to restore")
    edited = picture(engine.tree)
    for answer in (engine.ask("verify", {"backup": backup}), engine.restore(backup=backup)):
        assert answer["code"] == "backup_damaged", answer
        assert any(word in answer["error"] for word in words), answer
    assert picture(engine.tree) == edited != before
    assert set(engine.names()) <= set(names)
    assert engine.host.call("journal")["changes"] == []


def test_a_whole_one_is_verified_and_the_list_says_so(engine: Engine) -> None:
    backup = engine.backup()
    assert engine.ask("list")["backups"][0]["verified_unix_s"] is None
    answer = engine.ask("verify", {})
    assert answer["backup"] == backup and answer["versions"]["vllm"] == "0.27.0"
    row = engine.ask("list")["backups"][0]
    assert row["usable"] is True and row["verified_unix_s"] > 0 and row["age_s"] >= 0
    assert row["versions"]["vllm"] == "0.27.0" and row["bytes"] == answer["bytes"]


@pytest.mark.parametrize("where", [0.01, 0.5, 0.99])
def test_a_flipped_bit(engine: Engine, backup: str, where: float) -> None:
    raw = bytearray(payload(engine, backup).read_bytes())
    raw[int(len(raw) * where)] ^= 0x10
    payload(engine, backup).write_bytes(raw)
    refused(engine, backup, "sha256", "header", "member", "ends", "other bytes")
    row = engine.ask("list")["backups"][0]
    assert row["usable"] is False and row["problem"]


def test_a_payload_that_is_shorter_is_seen_without_reading_it(engine: Engine, backup: str) -> None:
    os.truncate(payload(engine, backup), payload(engine, backup).stat().st_size - 1)
    assert engine.ask("list")["backups"][0]["usable"] is False
    refused(engine, backup, "bytes, not")


def repack(engine: Engine, backup: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the payload's tar by another one, with a manifest that knows its hash and size."""
    raw = subprocess.run(["zstd", "-dc", payload(engine, backup)], capture_output=True,
                         check=True).stdout  # fmt: skip
    done = subprocess.run(["zstd", "-qc"], input=change(raw), capture_output=True, check=True)
    payload(engine, backup).write_bytes(done.stdout)
    manifest = engine.manifest(backup)
    digest = hashlib.sha256(done.stdout).hexdigest()
    manifest["payload"].update(sha256=digest, bytes=len(done.stdout))
    save(engine, backup, manifest)


def relist(engine: Engine, backup: str, lines: bytes, count: int) -> None:
    """Replace the list of members by another one, with a manifest that knows it."""
    (engine.backups / backup / "members.jsonl").write_bytes(lines)
    manifest = engine.manifest(backup)
    digest = hashlib.sha256(lines).hexdigest()
    manifest["members"] = {"sha256": digest, "bytes": len(lines), "count": count}
    save(engine, backup, manifest)


def save(engine: Engine, backup: str, manifest: dict[str, Any]) -> None:
    """Write a manifest that is sealed as ours are."""
    manifest["seal"] = store.seal(manifest)
    (engine.backups / backup / "manifest.json").write_text(json.dumps(manifest))


def boundaries(raw: bytes) -> list[int]:
    """Where members of a tar begin."""
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return [row.offset for row in archive.getmembers()]


@pytest.mark.parametrize("with_end", [True, False])
def test_cut_at_a_member_boundary(engine: Engine, backup: str, with_end: bool) -> None:
    """tar itself says nothing: it lists what is left, and its exit status is 0."""
    end = bytes(1024) if with_end else b""
    repack(engine, backup, lambda raw: raw[: boundaries(raw)[len(boundaries(raw)) // 2]] + end)
    done = subprocess.run(f"zstd -dc {payload(engine, backup)} | tar -t", shell=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0 and done.stdout.count(b"\n") > 2
    refused(engine, backup, "more were recorded")


def test_something_behind_the_end(engine: Engine, backup: str) -> None:
    repack(engine, backup, lambda raw: raw + raw[:1024])
    refused(engine, backup, "behind its end")


def test_a_missing_manifest(engine: Engine, backup: str) -> None:
    (engine.backups / backup / "manifest.json").unlink()
    refused(engine, backup, "manifest is missing")
    assert engine.ask("list")["backups"][0]["usable"] is False


@pytest.mark.parametrize(("name", "old", "new", "words"), [
    ("manifest.json", '"0.27.0"', '"0.28.0"', "was edited"),
    ("manifest.json", '{\n "', '{ ', "cannot be read"),
    ("manifest.json", '"format": 2', '"format": 9', "another format"),
    ("manifest.json", '"real"', '"role"', "not whole"),
    ("manifest.json", '"format": 2', '"format": 4', "zstd -dc payload.tar.zst | docker load"),
    ("members.jsonl", "data.bin", "date.bin", "list of members was edited"),
])  # fmt: skip
def test_an_edited_text(
    engine: Engine, backup: str, name: str, old: str, new: str, words: str
) -> None:
    path = engine.backups / backup / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(engine, backup, words)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **more: Any) -> tarfile.TarInfo:
    """A member."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, size, 0o755
    for key, value in more.items():
        setattr(info, key, value)
    return info


DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
HOSTILE: dict[str, list[tarfile.TarInfo]] = {
    "dot-dot": [header("./", DIR), header("../evil", size=4)],
    "dot-dot inside": [header("./", DIR), header("a", DIR), header("a/../../evil", size=4)],
    "absolute": [header("./", DIR), header("/TMP/evil", size=4)],
    "link then file": [header("./", DIR), header("x", SYM, linkname="/TMP"),
                       header("x/evil", size=4)],
    "link over folder": [header("./", DIR), header("x", DIR), header("x", SYM, linkname="/TMP"),
                         header("x/evil", size=4)],
    "hard link out": [header("./", DIR), header("x", LNK, linkname="/etc/passwd")],
    "hard link up": [header("./", DIR), header("x", LNK, linkname="../../../etc/passwd")],
    "hard link through a link": [header("./", DIR), header("y", SYM, linkname="/etc"),
                                 header("x", LNK, linkname="y/passwd")],
    "device": [header("./", DIR), header("x", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [header("./", DIR), header("x", tarfile.BLKTYPE, devmajor=7)],
    "pipe": [header("./", DIR), header("x", tarfile.FIFOTYPE)],
    "no root first": [header("evil", size=4)],
    "a file twice": [header("./", DIR), header("x", size=4), header("x", size=4)],
    "a folder that was not announced": [header("./", DIR), header("a/b/evil", size=4)],
    "a body where none may be": [header("./", DIR), header("x", SYM, size=512, linkname="y")],
}  # fmt: skip


EVIL = hashlib.sha256(b"evil").hexdigest()


def build(rows: list[tarfile.TarInfo], target: Path, fmt: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of these members; /TMP in them is a folder outside."""
    buffer = io.BytesIO()
    for row in rows:
        row.name = row.name.replace("/TMP", str(target))
        row.linkname = row.linkname.replace("/TMP", str(target))
        buffer.write(row.tobuf(fmt))
        if row.size:
            buffer.write(b"evil".ljust(512, b"\0"))
    return buffer.getvalue() + bytes(10240)


def plant(engine: Engine, backup: str, rows: list[tarfile.TarInfo], raw: bytes) -> None:
    """A payload of these members, with a manifest and a list of members that agree with it."""
    kinds = {DIR: "5", SYM: "2", LNK: "1", tarfile.REGTYPE: "0"}
    lines = b"".join(
        Member("." if row.name == "./" else row.name, kinds.get(row.type, row.type.decode()),
               row.mode, row.uid, row.gid, row.size, int(row.mtime), row.linkname, {}, EVIL).line()
        for row in rows
    )  # fmt: skip
    relist(engine, backup, lines, len(rows))
    repack(engine, backup, lambda _: raw)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar_whose_manifest_agrees_with_it(
    engine: Engine, backup: str, tmp_path: Path, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    plant(engine, backup, HOSTILE[kind], build(HOSTILE[kind], outside))
    refused(engine, backup, "the payload is not what the manifest says")
    assert list(outside.iterdir()) == [] and not (engine.tree.parent / "evil").exists()


@pytest.mark.parametrize("name", ["a" * 150, "short"])
def test_another_form_of_tar_is_not_guessed_at(engine: Engine, backup: str, name: str) -> None:
    rows = [header("./", DIR), header(name, size=4)]
    plant(engine, backup, rows, build(rows, Path("/none"), tarfile.GNU_FORMAT))
    refused(engine, backup, "not a header of our form")


@pytest.mark.parametrize("record", ["GNU.sparse.size=4", "path=../evil", "size=99999", "comment=x"])
def test_a_pax_header_that_says_otherwise(engine: Engine, backup: str, record: str) -> None:
    rows = [header("./", DIR), header("x", size=4)]
    key, _, value = record.partition("=")
    rows[1].pax_headers = {key: value}
    plant(engine, backup, [header("./", DIR), header("x", size=4)], build(rows, Path("/none")))
    refused(engine, backup, "the payload is not what the manifest says")


SPARSE = {"size": "4", "numblocks": "1", "name": "x", "map": "0,4"}


@pytest.mark.parametrize(("records", "words"), [
    ({}, ""), ({"name": "../evil"}, "leads out"), ({"map": "0,3"}, "not its size"),
    ({"map": "2,4"}, "not its size"), ({"map": "0,2,1,2", "numblocks": "2"}, "map is none"),
    ({"map": "0,4,9"}, "another length"), ({"map": "-1,4"}, "a number is none"),
    ({"map": "0,4_0"}, "a number is none"),
    ({"numblocks": "2"}, "another length"), ({"major": "1"}, "another form"),
    ({"size": "99999"}, "as it was recorded"),
])  # fmt: skip
def test_a_map_of_holes_that_says_otherwise(
    engine: Engine, backup: str, records: dict[str, str], words: str
) -> None:
    rows = [header("./", DIR), header("x", size=4)]
    rows[1].pax_headers = {f"GNU.sparse.{key}": text for key, text in {**SPARSE, **records}.items()}
    plant(engine, backup, [header("./", DIR), header("x", size=4)], build(rows, Path("/none")))
    if records:
        refused(engine, backup, words)
    else:
        assert engine.ask("verify", {"backup": backup})["ok"]


def test_a_refusal_while_much_is_still_to_come(engine: Engine) -> None:
    """The programs are blocked in their pipes then; nothing may hang."""
    (engine.package / "large.bin").write_bytes(os.urandom(30 << 20))
    backup = engine.verified()
    path = engine.backups / backup / "members.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    relist(engine, backup, b"".join([lines[0], *lines[2:], lines[1]]), len(lines))
    refused(engine, backup, "as it was recorded")


def test_setuid_is_refused_unless_the_source_had_it(engine: Engine, backup: str) -> None:
    rows = [header("./", DIR), header("x", size=4, mode=0o4755)]
    listed = [header("./", DIR), header("x", size=4, mode=0o755)]
    plant(engine, backup, listed, build(rows, Path("/none")))
    refused(engine, backup, "as it was recorded")


def test_setuid_of_the_source_is_kept_and_told(engine: Engine) -> None:
    tool = engine.tree / "bin" / "helper"
    tool.write_text("x")
    tool.chmod(0o4755)
    assert engine.ask("backup", {"tree": str(engine.tree)})["setuid"] == ["bin/helper"]
    assert engine.ask("verify", {})["setuid"] == ["bin/helper"]
    tool.unlink()
    assert engine.restore()["setuid"] == ["bin/helper"]
    assert oct(tool.stat().st_mode) == "0o104755"


def test_a_broken_disk_is_told(engine: Engine, backup: str, tmp_path: Path) -> None:
    path, asked = str(payload(engine, backup)), json.dumps({"backup": backup})
    broken = ["-P", path, "-e", "trace=read", "-e", "inject=read:error=EIO:when=1"]
    done = strace.traced(engine.host, "tree verify", asked, broken, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert answer["code"] == "backup_damaged" and "Input/output error" in answer["error"]
    assert engine.ask("list")["backups"][0]["problem"]
