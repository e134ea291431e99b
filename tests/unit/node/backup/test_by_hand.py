"""The page for a rescue disk, followed to the letter: tar and zstd, and nothing of ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.unit.node.backup.test_contents import blocks, odd_files
from tests.unit.node.support.trees import Engine, picture

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
