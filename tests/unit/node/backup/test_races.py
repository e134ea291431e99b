"""The folder in which a venv lies belongs to the engine's user, and node is root.

A process of that user replaces whatever node makes there by links that lead elsewhere, in a loop.
Nothing may be written through them.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from node.change.tree_step import TreeKind
from node.core.errors import Json, NodeError
from node.core.step_kind import Steps
from node.restore.restore import restore
from tests.unit.node.support.host import change
from tests.unit.node.support.trees import Engine, picture

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
