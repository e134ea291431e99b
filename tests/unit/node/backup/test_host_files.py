"""A restore brings the unit, its drop-ins and launch files back as the backup recorded them."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.support.trees import Engine

UNIT = "engine.service"


@pytest.fixture
def recorded(engine: Engine) -> Engine:
    """A backup with a unit, a drop-in and a launch script; then all of them are changed."""
    folder = engine.host.root / "etc"
    (folder / f"{UNIT}.d").mkdir(parents=True)
    for name, text in OLD.items():
        (folder / name).write_text(text)
    (folder / "serve.sh").chmod(0o755)
    engine.verified(files=[str(folder / name) for name in (*OLD, "absent")])
    (folder / UNIT).write_text("[Service]\nExecStart=/new\n")
    (folder / f"{UNIT}.d" / "10-old.conf").unlink()
    (folder / f"{UNIT}.d" / "20-new.conf").write_text("[Service]\nNice=9\n")
    (folder / "serve.sh").write_text("exec new --flag\n")
    return engine


def etc(engine: Engine) -> dict[str, str]:
    """All files of the host's folder, by name."""
    folder = engine.host.root / "etc"
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


OLD = {UNIT: "[Service]\nExecStart=/old\n", f"{UNIT}.d/10-old.conf": "[Service]\nNice=5\n",
       "serve.sh": "exec old\n"}  # fmt: skip


def test_the_unit_its_drop_ins_and_its_launch_come_back_as_recorded(recorded: Engine) -> None:
    changed = etc(recorded)
    dry = recorded.restore(dry=True)
    assert dry["changed"] and not dry["unpacks"] and etc(recorded) == changed
    assert f"remove {recorded.host.root}/etc/{UNIT}.d/20-new.conf" in dry["files"]
    answer = recorded.restore()
    assert answer["ok"] and answer["changed"] and answer["displaced"] == [], answer
    assert etc(recorded) == OLD
    assert (recorded.host.root / "etc" / "serve.sh").stat().st_mode & 0o777 == 0o755
    again = recorded.restore(dry=True)
    assert not again["changed"] and again["files"] == []


def test_undo_gives_back_what_lay_there(recorded: Engine) -> None:
    changed = etc(recorded)
    (recorded.tree / "bin" / "vllm").unlink()
    answer = recorded.restore()
    assert answer["ok"] and answer["displaced"] and etc(recorded) == OLD
    assert recorded.run().startswith("stand-in vllm")
    assert recorded.host.call("undo", {})["status"] == "ROLLED_BACK"
    assert etc(recorded) == changed and not (recorded.tree / "bin" / "vllm").exists()


def test_a_file_that_cannot_be_written_takes_all_of_it_back(recorded: Engine) -> None:
    script = recorded.host.root / "etc" / "serve.sh"
    script.unlink()
    script.mkdir()
    before = etc(recorded)
    (recorded.tree / "bin" / "vllm").unlink()
    answer = recorded.restore()
    assert not answer["ok"] and "nothing was changed" in answer["error"], answer
    assert etc(recorded) == before and not (recorded.tree / "bin" / "vllm").exists()
    assert recorded.host.call("journal", {})["changes"] == []


def test_another_path_leaves_the_units_alone(recorded: Engine, tmp_path: Path) -> None:
    changed = etc(recorded)
    other = recorded.tree.parent / "elsewhere"
    backup = recorded.ask("list")["backups"][0]["id"]
    answer = recorded.restore(backup=backup, tree=str(other), allow=["path"])
    assert answer["ok"], answer
    assert etc(recorded) == changed and (other / "bin" / "vllm").exists()


def test_mode_owner_and_bytes_that_are_no_text_come_back(engine: Engine) -> None:
    env = engine.host.file("engine.env", None)
    env.write_bytes(b"A=\xff\xfe\n")
    env.chmod(0o600)
    os.chown(env, pwd.getpwnam("daemon").pw_uid, grp.getgrnam("daemon").gr_gid)
    before = env.stat()
    engine.verified(files=[str(env)])
    assert engine.restore(dry=True)["changed"] is False
    edits: list[Callable[[], object]] = [
        lambda: env.chmod(0o644), lambda: os.chown(env, 0, 0), lambda: env.write_bytes(b"A=?\n"),
        env.unlink,
    ]  # fmt: skip
    for n, edit in enumerate(edits):
        edit()
        answer = engine.restore(f"restore-{n}")
        assert answer["ok"] and answer["files"] == [f"write {env}"], (n, answer)
        engine.close(f"restore-{n}")
        now = env.stat()
        assert env.read_bytes() == b"A=\xff\xfe\n"
        assert (now.st_mode, now.st_uid, now.st_gid) == (
            before.st_mode, before.st_uid, before.st_gid)  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), [
    (lambda path: path.write_text("[Service]\nExecStart=/evil\n"), "is not as it was recorded"),
    (lambda path: path.chmod(0o777), "is not as it was recorded"),
    (lambda path: os.chown(path, 12345, 0), "is not as it was recorded"),
    (lambda path: path.unlink(), "cannot be read"),
    (lambda path: path.with_name("more.service").touch(), "is not in its manifest"),
])  # fmt: skip
def test_a_kept_file_that_was_edited_is_never_brought_back(
    recorded: Engine, damage: Callable[[Path], object], words: str
) -> None:
    changed = etc(recorded)
    backup = recorded.ask("list")["backups"][0]["id"]
    damage(Path(f"{recorded.backups}/{backup}/files{recorded.host.root}/etc/{UNIT}"))
    for answer in (recorded.restore(), recorded.ask("verify", {"backup": backup})):
        assert answer["code"] == "backup_damaged" and words in answer["error"], answer
    assert etc(recorded) == changed
    assert recorded.ask("list")["backups"][0]["usable"] is False
