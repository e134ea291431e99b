"""Power cuts in a backup, a restore, an upgrade: a backup is whole or none, a tree old or new."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from node.backup.listing import list_all
from node.backup.verify import verify
from node.venv import versions
from tests.unit.node.crash.cases import Lied, Lost, Run, undone
from tests.unit.node.crash.test_power_cuts import holds
from tests.unit.node.support import trees
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.table_lines import Show
from tests.unit.node.support.trees import Engine, picture

OLD, NEW = "0.27.0", "0.28.0"


def small(engine: Engine) -> None:
    """A tree of a few files: each of them is as good as a thousand."""
    for name in ("include", "lib64", "pyvenv.cfg"):
        path = engine.tree / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(True)
    (engine.package / "data.bin").write_bytes(b"x" * 5000)


def usable() -> list[str]:
    """The backups that the list calls whole. Raises Lied for one that is not."""
    found = [str(row["id"]) for row in list_all({})["backups"] if row["usable"]]
    for one in found:
        try:
            verify({"backup": one})
        except Exception as error:
            raise Lied(f"{one} is listed as usable, but {error}") from error
    return found


def test_a_backup(engine: Engine, show: Show) -> None:
    small(engine)

    def check(answered: bool) -> str:
        found = usable()
        if answered and not found:
            raise Lied("it answered, and there is no backup")
        return "whole" if found else "none"

    def reset() -> None:
        shutil.rmtree(engine.host.state, ignore_errors=True)

    holds(Run(engine.host, "tree backup", {"tree": str(engine.tree)}, reset, check), show)


def edit(engine: Engine, text: str) -> None:
    """A version's text, always of the same time."""
    (engine.tree / "version").write_text(text)
    os.utime(engine.tree / "version", (len(text), len(text)))


def test_a_restore(engine: Engine, show: Show) -> None:
    small(engine)
    edit(engine, "new")
    kept = engine.verified()
    new = picture(engine.tree)

    def reset() -> None:
        for name in ("journal", "blobs"):
            shutil.rmtree(engine.host.state / name, ignore_errors=True)
        for path in engine.tree.parent.iterdir():
            if path != engine.tree:
                shutil.rmtree(path)
        edit(engine, "older")

    reset()
    old = picture(engine.tree)

    def check(answered: bool) -> str:
        now = picture(engine.tree) if engine.tree.exists() else {}
        if now not in (old, new):
            mixed = [(p, now.get(p), new.get(p)) for p in new if now.get(p) != new[p]]
            raise Lost(f"the tree is a mix: {str(mixed[:2])[:300]}")
        if answered and now != new:
            raise Lied("it answered, but the old tree is there")
        usable()
        return undone(old, lambda: picture(engine.tree))

    request = {"change": change("restore-1", deploy="rollback"), "backup": kept}
    holds(Run(engine.host, "tree restore", request, reset, check), show)


def test_an_installed_version(host: Host, venv: Path, show: Show) -> None:
    """What `venv install` calls there runs after the cut; the next install mends the rest."""
    rig = trees.versions(host, venv, OLD)
    (host.root / "wheels").mkdir()
    trees.wheel(host.root / "wheels", NEW)
    folder = rig.tree.with_name("venvs") / NEW
    asked = {"venv": str(rig.tree), "package": "vllm", "version": NEW}
    args = ["--no-index", f"--find-links={host.root / 'wheels'}"]

    def reset() -> None:
        shutil.rmtree(host.state, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

    def says() -> str:
        done = subprocess.run([folder / "bin" / "vllm"], capture_output=True, text=True)
        return done.stdout.strip() or done.stderr[-200:]

    def check(answered: bool) -> str:
        is_there = versions.inspect_versions(asked)["found"] is not None
        if (is_there or answered) and says() != f"stand-in vllm {NEW}":
            raise Lied(f"installed, answered: {is_there}, {answered}, but: {says()}")
        return "there" if is_there else "not there"

    holds(Run(host, "venv install", {**asked, "pip_args": args}, reset, check), show)
