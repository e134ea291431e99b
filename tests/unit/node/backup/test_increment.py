"""An incremental backup: small, whole by itself, and the same tree when it comes back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from node.backup import store
from tests.unit.node.backup.test_by_hand import commands
from tests.unit.node.backup.test_contents import ACL
from tests.unit.node.backup.test_verify import payload
from tests.unit.node.support.trees import Engine, picture


@pytest.fixture
def first(engine: Engine) -> str:
    """A verified full backup of a tree of which most never changes."""
    for number in range(8):
        (engine.package / f"kernel-{number}.so").write_bytes(os.urandom(1 << 20))
    for name in ("sub", "gone", "turned"):
        (engine.package / name).mkdir()
        for number in range(3):
            (engine.package / name / f"f{number}").write_text(f"{name} {number}")
    (engine.package / "a-file").write_text("a folder later")
    (engine.package / "a-link").symlink_to("kernel-0.so")
    shared = engine.package / "shared"
    shared.mkdir()
    for name in ("one", "two", "three"):
        (shared / name).write_text(name) if name == "one" else os.link(
            shared / "one", shared / name
        )
    odd = engine.package / "odd"
    odd.mkdir()
    with (odd / "sparse").open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    (odd / "marked").write_text("x")
    os.setxattr(odd / "marked", "user.a=b%c", b"\0=%\n")
    os.setxattr(odd, "user.folder", b"stays")
    engine.host.file("engine.service", "[Service]\nExecStart=/x\n")
    return engine.verified()


def upgrade(package: Path) -> None:
    """As pip upgrades one package, and what else may happen to a tree."""
    (package / "__init__.py").write_text("upgraded")
    (package / "sub" / "f0").write_text("in place, which its folder's time does not show")
    (package / "sub" / "new\nline, and \udcff").write_text("new")
    shutil.rmtree(package / "gone")
    shutil.rmtree(package / "turned")
    (package / "turned").write_text("a file now")
    (package / "a-file").unlink()
    (package / "a-file").mkdir()
    (package / "a-file" / "-rf").write_text("x")
    (package / "a-link").unlink()
    (package / "a-link").symlink_to("/nowhere")
    (package / "kernel-1.so").chmod(0o600)
    os.utime(package / "kernel-2.so", ns=(5, 5))


def touch(name: str) -> Callable[[Path], object]:
    """An edit of one file."""
    return lambda package: (package / name).write_text("edited")


def renamed_link(package: Path) -> None:
    (package / "shared" / "two").rename(package / "shared" / "four")


def unshared(package: Path) -> None:
    (package / "shared" / "one").unlink()
    (package / "shared" / "one").write_text("one by itself")


def fewer(package: Path) -> None:
    (package / "shared" / "one").unlink()


def lost_attribute_of_a_file(package: Path) -> None:
    os.removexattr(package / "odd" / "marked", "user.a=b%c")


EDITS: dict[str, Callable[[Path], object]] = {
    "upgrade": upgrade, "one file": touch("__init__.py"), "renamed link": renamed_link,
    "unshared": unshared, "fewer names": fewer, "shared bytes": touch("shared/two"),
    "new folder": lambda package: (package / "empty").mkdir(),
    "folder's mode": lambda package: (package / "sub").chmod(0o2750),
    "hole": touch("odd/sparse"), "attribute": lost_attribute_of_a_file,
}  # fmt: skip


def shared_inodes(tree: Path) -> set[frozenset[str]]:
    """The names that are one file, as groups."""
    found: dict[int, set[str]] = {}
    for path in tree.rglob("*"):
        info = path.lstat()
        if info.st_nlink > 1 and not path.is_dir():
            found.setdefault(info.st_ino, set()).add(str(path.relative_to(tree)))
    return {frozenset(names) for names in found.values()}


@pytest.mark.parametrize("name", EDITS)
def test_the_tree_comes_back_by_the_program_and_by_hand(
    engine: Engine, first: str, tmp_path: Path, name: str
) -> None:
    EDITS[name](engine.package)
    before, groups = picture(engine.tree), shared_inodes(engine.tree)
    second = engine.verified(files=[str(engine.host.root / "engine.service")])
    manifest = engine.manifest(second)
    assert (manifest["format"], manifest["base"]["backup"]) == (store.INCREMENTAL, first)
    lines = (engine.backups / second / "members.jsonl").read_text().splitlines()
    assert {json.loads(line)[0] for line in lines} == set(before)
    assert payload(engine, second).stat().st_size < payload(engine, first).stat().st_size

    # the base's own backup is pruned, and then all of the tree is lost
    engine.host.call("tree prune", {"keep": 1})
    assert engine.names() == ["venv", second]
    disk = tmp_path / "disk"
    stored = disk / "var/lib/rigbook/backups"
    stored.parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(engine.backups), str(stored)], check=True)
    venv = Path(f"{disk}{engine.tree}")
    venv.mkdir(parents=True)
    text = commands(DISK=disk, ID=second, VENV=engine.tree)
    done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", text], capture_output=True,
                          text=True, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, (done.stderr, text)
    assert picture(venv) == before and shared_inodes(venv) == groups

    shutil.rmtree(engine.tree)
    assert engine.restore()["changed"] is True
    assert picture(engine.tree) == before and shared_inodes(engine.tree) == groups
    engine.close()
    assert engine.restore("restore-2")["changed"] is False


def test_every_one_stands_on_the_full_one(engine: Engine, first: str) -> None:
    """A dry run says the same; equal ones share; a base that is pruned is found in the others."""
    touch("__init__.py")(engine.package)
    second = engine.verified()
    assert engine.ask("backup", {"tree": str(engine.tree)})["stored"] is False
    twin = engine.ask("backup", {"tree": str(engine.tree), "documents": {"recipe": "new"}})
    assert twin["stored"] is True and second in twin["detail"]
    assert engine.ask("verify", {"backup": twin["backup"]})["ok"]
    engine.ask("prune", {"keep": 1})
    assert not (engine.backups / first).exists()
    touch("sub/f1")(engine.package)
    dry = engine.ask("backup", {"tree": str(engine.tree), "dry": True})
    assert dry["base"] == first and 0 < dry["changed_bytes"] < 1000
    third = engine.verified()
    manifest = engine.manifest(third)
    assert manifest["base"]["backup"] == first
    assert manifest["changed"]["count"] < 20
    rows = engine.ask("list")["backups"]
    assert {row["id"]: row["base"] for row in rows}[third] == first
    # the base's bytes are freed by the last backup that has them
    freed = [row["bytes"] for row in engine.ask("prune", {"keep": 1, "dry": True})["removed"]]
    assert max(freed) < 1 << 20


def much(engine: Engine, _: str) -> None:
    for number in range(4):
        (engine.package / f"kernel-{number}.so").write_bytes(os.urandom(1 << 20))


def default_acl(engine: Engine, first: str) -> None:
    os.setxattr(engine.package / "sub", "system.posix_acl_default", ACL)
    shutil.rmtree(engine.backups / first)
    assert engine.manifest(engine.verified())["format"] == store.FORMAT
    touch("sub/f0")(engine.package)


def lost_attribute(engine: Engine, first: str) -> None:
    os.setxattr(engine.package / "sub", "user.x", b"1")
    shutil.rmtree(engine.backups / first)
    engine.verified()
    os.removexattr(engine.package / "sub", "user.x")


def not_verified(engine: Engine, first: str) -> None:
    (engine.backups / first / "verified.json").unlink()
    touch("__init__.py")(engine.package)


def former(engine: Engine, first: str) -> None:
    """A full backup of before there were stamps."""
    manifest = engine.manifest(first)
    del manifest["stamps"]
    manifest["seal"] = store.seal(manifest)
    (engine.backups / first / "manifest.json").write_text(json.dumps(manifest))
    (engine.backups / first / "stamps").unlink()
    assert engine.ask("verify", {"backup": first})["ok"]
    touch("__init__.py")(engine.package)


@pytest.mark.parametrize("edit", [much, default_acl, lost_attribute, not_verified, former])
def test_where_a_whole_one_is_made(
    engine: Engine, first: str, edit: Callable[[Engine, str], None]
) -> None:
    edit(engine, first)
    before = picture(engine.tree)
    assert engine.manifest(engine.verified())["format"] == store.FORMAT
    shutil.rmtree(engine.tree)
    assert engine.restore()["changed"] is True and picture(engine.tree) == before


@pytest.mark.parametrize("name", ["payload.tar.zst", "base.tar.zst", "base.jsonl", "changed.jsonl",
                                  "removed", "members.jsonl"])  # fmt: skip
def test_each_of_its_files_is_looked_at(engine: Engine, first: str, name: str) -> None:
    upgrade(engine.package)
    second = engine.verified()
    path = engine.backups / second / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    answer = engine.ask("verify", {"backup": second})
    assert answer["code"] == "backup_damaged", answer
    shutil.rmtree(engine.tree)
    assert engine.restore(backup=second)["code"] == "backup_damaged"
    assert not engine.tree.exists()
    if name == "base.tar.zst":  # it is the full one's payload as well
        assert [row["usable"] for row in engine.ask("list")["backups"]] == [False, False]


def test_the_lists_have_to_give_the_tree(engine: Engine, first: str) -> None:
    """A manifest that fits lists that do not fit each other: verify says so before a restore."""
    upgrade(engine.package)
    second = engine.verified()
    names = (engine.backups / second / "removed").read_bytes().split(b"\0")
    names = [name for name in names if not name.endswith(b"gone/f1")]
    (engine.backups / second / "removed").write_bytes(b"\0".join(names))
    manifest = engine.manifest(second)
    raw = b"\0".join(names)
    manifest["removed"].update(sha256=hashlib.sha256(raw).hexdigest(), bytes=len(raw))
    manifest["seal"] = store.seal(manifest)
    (engine.backups / second / "manifest.json").write_text(json.dumps(manifest))
    answer = engine.ask("verify", {"backup": second, "own": True})
    assert answer["code"] == "backup_damaged" and "do not give" in answer["error"]


def test_the_time_that_is_told_is_that_of_what_was_read_first(engine: Engine, first: str) -> None:
    def told(backup: str) -> float:
        rows = engine.ask("list")["backups"]
        return float(next(row["verified_unix_s"] for row in rows if row["id"] == backup))

    touch("__init__.py")(engine.package)
    second = engine.backup()
    assert engine.ask("verify", {"backup": second, "own": True})["ok"]
    assert told(second) == told(first)
    assert engine.ask("verify", {"backup": second})["ok"]
    assert told(second) > told(first)
