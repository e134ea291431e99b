"""The same zipapp under every Python from 3.10 to 3.13 that this machine has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from facts.rignode import pack
from schema.observed.snapshot import NodeSnapshot
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step
from tests.unit.node.support.trees import Engine, picture

THIS = ".".join(map(str, sys.version_info[:2]))


def version_of(python: str) -> str:
    """The version an interpreter says it has, "" when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def interpreters() -> dict[str, str]:
    """Version to interpreter: this one, pyenv's, and those on PATH."""
    found = {THIS: sys.executable}
    for minor in range(10, 14):
        name = f"python3.{minor}"
        pyenv = Path.home().glob(f".pyenv/versions/3.{minor}*/bin/{name}")
        places = [str(path) for path in sorted(pyenv)]
        places += filter(None, [shutil.which(name)])
        for place in places:
            if f"3.{minor}" not in found and version_of(place) == f"3.{minor}":
                found[f"3.{minor}"] = place
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


FOUND = interpreters()


@pytest.mark.parametrize("version", FOUND)
def test_snapshot_apply_undo(host: Host, version: str) -> None:
    host.python = FOUND[version]
    done = host.run(host.argv("snapshot"), json.dumps({"files": ["/etc/passwd"]}))
    seen = NodeSnapshot.model_validate_json(done.stdout)
    assert seen.identity.python.startswith(version + ".") and done.stderr == ""
    path = host.file()
    steps = apply_request(file_step(path, validate=["sh", "-n", "{tmp}"]))
    assert host.call("apply", steps)["changed"] is True and path.read_text() == NEW
    assert host.call("apply", steps)["changed"] is False
    assert "OPEN change-1" in host.run(host.argv("status")).stdout
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD
    assert host.call("apply", {"x": 1})["code"] == "bad_request"


@pytest.mark.parametrize("version", FOUND)
def test_the_inline_command(host: Host, version: str) -> None:
    (host.bin / "python3").symlink_to(FOUND[version])
    done = host.run(["sh", "-c", pack.inline_command("snapshot", {})])
    seen = NodeSnapshot.model_validate_json(done.stdout)
    assert seen.identity.python.startswith(version + ".") and done.stderr == ""


@pytest.mark.parametrize("version", FOUND)
def test_backup_verify_restore_undo(engine: Engine, version: str) -> None:
    engine.host.python = FOUND[version]
    before = picture(engine.tree)
    backup = engine.verified()
    shutil.rmtree(engine.package)
    assert engine.restore()["backup"] == backup and picture(engine.tree) == before
    assert engine.host.call("undo")["status"] == "ROLLED_BACK" and not engine.package.exists()
    assert engine.ask("prune", {"keep": 1, "displaced": True})["displaced_removed"]
