"""Backups that 0.2.0 left on a host: a whole one is used as any other; an increment or single paths
are named for what they are, never counted as whole, and come back with tar.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.backup import store
from tests.unit.node.backup.test_backup import commands
from tests.unit.node.support.trees import Engine, picture

KIND = {"base": "is an incremental one", "roots": "holds single paths"}


def rewritten(engine: Engine, backup: str, **more: Any) -> None:
    """A backup with the manifest of 0.2.0, which has more keys."""
    path = engine.backups / backup / "manifest.json"
    manifest = {**engine.manifest(backup), "roots": ["."], "instant_copy": None, "shares": None,
                "stamps": {"sha256": "0" * 64, "bytes": 4, "count": 1}, **more}  # fmt: skip
    manifest["payload"] = {**manifest["payload"], "level": 1}
    manifest["facts"] = {**manifest["facts"], "entry_points": ["vllm"]}
    manifest["seal"] = store.seal(manifest)
    path.write_text(json.dumps(manifest))


def increment(engine: Engine) -> str:
    """What 0.2.0 stored after an edit: its folder has the full one's payload as base."""
    backup = engine.verified()
    folder = engine.backups / backup
    (engine.package / "__init__.py").write_text("upgraded")
    (engine.package / "data.bin").unlink()
    site = engine.package.relative_to(engine.tree)
    (folder / "payload.tar.zst").rename(folder / "base.tar.zst")
    line = (f"tar -cf - --format=posix --no-recursion -C {engine.tree} . {site} {site}/__init__.py"
            f" | zstd -q -o {folder}/payload.tar.zst")  # fmt: skip
    subprocess.run(["bash", "-o", "pipefail", "-ec", line], check=True)
    (folder / "removed").write_bytes(os.fsencode(f"{site}/data.bin") + b"\0")
    rewritten(engine, backup, format=store.INCREMENTAL, base={"backup": "x"})
    return backup


def test_a_whole_one_is_listed_read_back_and_restored(engine: Engine) -> None:
    backup, before = engine.verified(), picture(engine.tree)
    rewritten(engine, backup)
    (engine.backups / backup / "stamps").write_bytes(b"1 2\n")
    assert engine.ask("verify", {"backup": backup})["ok"]
    assert engine.ask("list")["backups"][0]["usable"] is True
    again = engine.ask("backup", {"tree": str(engine.tree)})
    assert (again["stored"], again["backup"]) == (False, backup), again
    shutil.rmtree(engine.tree)
    assert engine.restore()["changed"] is True and picture(engine.tree) == before


@pytest.mark.parametrize("key", KIND)
def test_another_one_is_named_and_never_counts_as_whole(engine: Engine, key: str) -> None:
    if key == "base":
        backup = increment(engine)
    else:
        rewritten(engine, backup := engine.verified(), roots=["bin"])
    said = f"{KIND[key]}, which only 0.2.0's rignode, or tar, brings back"
    (row,) = engine.ask("list")["backups"]
    assert row["usable"] is False and said in row["problem"] and not row["verified_unix_s"]
    for verb, asked in (("verify", {"backup": backup}), ("restore", {"backup": backup}),
                        ("copy", {"backup": backup, "to": str(engine.host.root)})):  # fmt: skip
        answer = engine.ask(verb, asked)
        assert answer["code"] == "unknown_format" and said in answer["error"], answer
    assert engine.restore()["code"] == "no_backup"
    assert engine.ask("prune", {"keep": 1})["removed"] == []
    assert engine.ask("backup", {"tree": str(engine.tree)})["stored"] is True


def test_an_increment_comes_back_with_tar(engine: Engine, tmp_path: Path) -> None:
    backup = increment(engine)
    before = picture(engine.tree)
    disk = tmp_path / "disk"
    stored = disk / "var/lib/rigbook/backups"
    stored.parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(engine.backups), str(stored)], check=True)
    (venv := Path(f"{disk}{engine.tree}")).mkdir(parents=True)
    text = commands(DISK=disk, ID=backup, VENV=engine.tree)
    done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", text], capture_output=True,
                          text=True, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, (done.stderr, text)
    assert picture(venv) == before
