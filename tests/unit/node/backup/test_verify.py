"""tree verify: what is damaged, cut, edited or hostile is never taken for a backup."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from node.backup import store
from node.backup.create import backup as create_backup
from node.backup.listing import list_all
from node.backup.restore import restore
from node.backup.store import Member
from node.backup.verify import verify
from node.change.kinds import Steps
from node.change.transaction import undo
from node.change.tree_step import TreeKind
from node.core.errors import Json, NodeError
from tests.unit.node.support import strace
from tests.unit.node.support.host import Show, change
from tests.unit.node.support.strace import Faulted
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


# The folder in which a venv lies belongs to the engine's user, and node is root.
#
# A process of that user replaces whatever node makes there by links that lead elsewhere, in a
# loop.
# Nothing may be written through them.

UID = 12345
# as the owner of the folder above the tree: it was entered before, by descriptor
SWAPPER = """
import os, random, sys, time
os.chdir(sys.argv[1]); bait, patience = sys.argv[2], float(sys.argv[3])
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
print("at work", flush=True)
n = 0
while True:
    for name in os.listdir("."):
        if name.startswith(".rigbook-") and not os.path.islink(name):
            n += 1
            time.sleep(random.uniform(0, patience))
            try:
                os.rename(name, "taken-%d" % n)
                os.symlink(bait, name)
            except OSError:
                pass
"""


@pytest.fixture
def bait(engine: Engine, tmp_path: Path) -> Path:
    """Root's own folder, with the name in it under which a restore unpacks."""
    engine.verified()
    (tmp_path / "bait" / "new").mkdir(parents=True)
    (tmp_path / "bait" / "new" / "of-root").write_text("untouched")
    return tmp_path / "bait"


@pytest.fixture(params=[0.0, 0.05], ids=["at once", "a while later"])
def swapped(engine: Engine, bait: Path, request: pytest.FixtureRequest) -> Iterator[float]:
    """A swapper of another uid, to whom the folder above the tree belongs."""
    for path in (engine.tree.parent, *engine.tree.parent.rglob("*")):
        os.lchown(path, UID, UID)
    child = subprocess.Popen(
        [sys.executable, "-c", SWAPPER.format(uid=UID), str(engine.tree.parent), str(bait),
         str(request.param)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout and child.stdout.readline() == "at work\n"
    yield float(request.param)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def test_nothing_is_written_through_a_link_that_is_put_in_its_way(
    engine: Engine, bait: Path, swapped: float
) -> None:
    before, roots_own = picture(engine.tree), picture(bait)
    ends = []
    for n in range(12):
        answer = engine.restore(f"restore-{n}", force=True)
        ends.append(answer.get("code", "restored"))
        assert picture(bait) == roots_own, ends
        if answer["ok"]:
            engine.close(f"restore-{n}")
        else:
            undone = engine.host.call("undo")
            if not undone["ok"]:  # the swapper took the former tree, and that is said
                assert undone["code"] == "tree_gone", (undone, answer)
                break
        assert picture(engine.tree).keys() == before.keys(), ends
    # a delayed one comes in time only where the machine is busy
    assert swapped or "unsafe_folder" in ends, ends


def test_the_trade_follows_no_link_that_is_put_in_its_way(
    engine: Engine, bait: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put there at the last moment: behind every other look."""
    (engine.package / "data.bin").write_text("edited")
    seen, roots_own = picture(engine.tree), picture(bait)
    trade = TreeKind.do

    def swapped(kind: TreeKind, step: Json, steps: Steps, **more: Any) -> tuple[bool, str]:
        work = Path(step["source"]).parent
        work.rename(work.with_name("taken"))
        work.symlink_to(bait)
        return trade(kind, step, steps, **more)

    monkeypatch.setattr(TreeKind, "do", swapped)
    with pytest.raises(NodeError, match="is a link"):
        restore({"change": change("restore-1")})
    assert picture(bait) == roots_own and picture(engine.tree) == seen


def planted(engine: Engine, what: str, to: Path) -> Path:
    """A link in the place of a folder that node makes or writes to."""
    if what == "the tree":
        engine.tree.rename(to / "venv")
        to = to / "venv"
    path = {
        "the tree": engine.tree,
        "its folder of backups": engine.backups,
        "its folder of work": engine.tree.parent / ".rigbook-venv-restore-1",
    }[what]
    if path == engine.backups:
        path.rename(to.with_name("kept-backups"))
    path.symlink_to(to)
    return path


@pytest.mark.parametrize(("what", "code"), [
    ("the tree", "not_a_link"), ("its folder of backups", "unsafe_state"),
    ("its folder of work", None),
])  # fmt: skip
def test_a_link_that_lies_there_before_is_not_written_through(
    engine: Engine, tmp_path: Path, what: str, code: str | None
) -> None:
    engine.verified()
    (engine.package / "data.bin").write_text("edited")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = planted(engine, what, elsewhere)
    before = picture(elsewhere)
    answer = engine.restore()
    assert answer.get("code") == code, answer
    assert picture(elsewhere) == before and link.is_symlink()


def test_nobody_else_reads_a_backup_whatever_the_umask(engine: Engine) -> None:
    """Not the files of the host either, which lie there with the modes that they have on it."""
    unit = engine.host.file("engine.env", "TOKEN=secret\n", 0o644)
    asked = json.dumps({"tree": str(engine.tree), "files": [str(unit)]})
    argv = ["sh", "-c", 'umask 0; exec "$@"', "-", *engine.host.argv("tree backup")]
    backup = json.loads(engine.host.run(argv, asked).stdout)["backup"]
    engine.ask("verify", {"backup": backup})
    folder = engine.backups / backup
    kept = Path(f"{folder}/files{unit}")
    assert kept.read_text() == "TOKEN=secret\n" and stat.S_IMODE(kept.stat().st_mode) == 0o644
    for path in [engine.backups, folder, *folder.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o644 if path == kept else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    # every folder above may be entered; only the backup's own modes are left
    for above in engine.backups.parents:
        if str(above).startswith(str(Path(gettempdir()))) or above == engine.host.state:
            above.chmod(above.stat().st_mode | 0o055)
    for path in (kept, folder / "payload.tar.zst", folder / "manifest.json"):
        done = subprocess.run(["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
                               "cat", str(path)], capture_output=True, text=True)  # fmt: skip
        assert done.returncode != 0 and "Permission denied" in done.stderr, path


# Killed with -9 at any changing call of a backup or a restore.
#
# A backup is whole or is none; a tree is the old one or the new one; the journal knows which.

# pip leaves more than the engine in a venv; tar's calls for each of them are alike
EACH, MOST = 4, 40


def a_backup(engine: Engine, **more: object) -> Faulted:
    """A backup where there is none yet."""
    asked = {"tree": str(engine.tree), **more}
    engine.backup()
    return Faulted(engine.host, "tree backup", asked, lambda: shutil.rmtree(engine.backups))


def test_a_backup_killed_at_every_changing_call(engine: Engine, show: Show) -> None:
    shutil.rmtree(engine.tree / "include", ignore_errors=True)
    unit = engine.host.file("engine.service", "[Service]\nExecStart=/x\n")
    faulted = a_backup(engine, documents={"recipe": "x"}, files=[str(unit)])
    found = [point for point in faulted.points(*strace.TREES) if point[1] <= MOST]
    found += [("write", n) for n in range(1, 7)]
    assert {"fsync", "mkdir"} <= {call for call, _ in found} and len(found) > 15
    killed = 0
    for point, done in faulted.each(found):
        killed += done.returncode != 0
        for row in list_all({})["backups"]:
            assert row["usable"], (point, row)
            verify({"backup": row["id"]})
        # the next one sweeps, and is whole
        assert verify({"backup": create_backup(faulted.request)["backup"]}), point
        assert list_all({})["partial"] == []
    show(f"TABLE backup: {len(found)} points, {killed} killed, 0 lost")
    assert killed >= len(found) - 5


@pytest.mark.parametrize(("call", "error", "words"), [
    ("fsync", "EIO", "Input/output error"), ("fdatasync", "EIO", "Input/output error"),
    ("mkdir", "ENOSPC", "No space left"), ("rename", "EROFS", "Read-only"),
])  # fmt: skip
def test_a_backup_with_a_failing_disk(engine: Engine, call: str, error: str, words: str) -> None:
    if call == "fdatasync":  # only a payload of many MiB is flushed on the way
        (engine.package / "large.bin").write_bytes(os.urandom(80 << 20))
    faulted = a_backup(engine)
    found = [point for point in faulted.points(call) if point[1] <= MOST]
    assert found
    # the first ones are for folders that are there already
    hit = found[-1:] if call == "mkdir" else found
    for point, done in faulted.each(hit, f"error={error}"):
        answer = json.loads(done.stdout)
        assert answer["ok"] is False and words in answer["error"], (point, answer)
        assert [row for row in list_all({})["backups"] if not row["usable"]] == []


def version(engine: Engine) -> str:
    """Which tree lies at the path: "old", "new", "none"."""
    path = engine.tree / "version"
    return path.read_text() if path.exists() else "none"


def test_a_restore_killed_at_every_changing_call(engine: Engine, show: Show) -> None:
    (engine.tree / "version").write_text("new")
    kept = engine.verified()

    def reset() -> None:
        for name in ("journal", "blobs"):
            shutil.rmtree(engine.host.state / name, ignore_errors=True)
        for path in engine.tree.parent.iterdir():
            shutil.rmtree(path)
        engine.tree.mkdir()
        (engine.tree / "version").write_text("old")

    asked = {"change": change("restore-1", deploy="rollback"), "backup": kept}
    faulted = Faulted(engine.host, "tree restore", asked, reset)
    found = [
        (call, n)
        for call, n in faulted.points(*strace.TREES)
        if n <= EACH or (call in ("fsync", "renameat2", "rename", "renameat") and n <= 16)
    ]
    assert "renameat2" in {call for call, _ in found} and len(found) > 20
    cells: Counter[str] = Counter()
    for point, done in faulted.each(found):
        now = version(engine)
        assert now in ("old", "new"), (point, now)
        cells[f"{now}, {'killed' if done.returncode else 'tar or zstd killed'}"] += 1
        undone = undo({})
        assert undone["status"] in (None, "ROLLED_BACK"), (point, undone)
        assert version(engine) == "old", point
        # what was never in use is gone; what was is named by the journal
        beside = {path.name for path in engine.tree.parent.iterdir()} - {"venv"}
        known = {Path(row["path"]).name for row in list_all({})["displaced"]}
        assert beside == known, (point, beside, known)
        again = restore({**asked, "change": change("restore-2", deploy="rollback")})
        assert again["changed"] is True and version(engine) == "new", point
    show(f"TABLE restore: {len(found)} points, {dict(cells)}, 0 lost")


def test_the_same_restore_again_after_a_kill_gets_through(engine: Engine) -> None:
    (engine.tree / "version").write_text("new")
    engine.verified()

    def reset() -> None:
        shutil.rmtree(engine.host.state / "journal", ignore_errors=True)
        (engine.tree / "version").write_text("edited")

    asked = {"change": {"id": "restore-1", "deploy": "x", "operator": "x"}}
    faulted = Faulted(engine.host, "tree restore", asked, reset)
    points = (("mkdir", 2), ("fsync", 6), ("renameat2", 1), ("renameat2", 2))
    for point, _ in faulted.each(points):
        done = engine.host.run(engine.host.argv("tree restore"), faulted.text)
        assert json.loads(done.stdout)["ok"], (point, done.stdout)
        assert version(engine) == "new"
        engine.close()
        engine.ask("prune", {"displaced": True})
        assert engine.names()[0] == "venv" and len(list(engine.tree.parent.iterdir())) == 1
