"""library guard: drift is told once, mended where that may be, and nothing new is overwritten."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.change.journal import read_all
from node.core.errors import Json
from node.engine.config import LibraryState
from node.kube import watched
from tests.unit.node.support.host import Host, apply_request, change, file_step
from tests.unit.node.support.libs import folder, library, sha
from tests.unit.node.support.transfers import Server, serving

SECRET = "T0P-S3CRET"


class Guarded:
    """A host whose library was swapped: ours is in place, the plugin's own is at `original`."""

    def __init__(self, host: Host, vgpu: Path, hook: Server) -> None:
        self.host, self.target, self.hook = host, vgpu / "libvgpu.so", hook
        self.original, self.ours = vgpu / "plugins-own", vgpu / "ours"
        shutil.copy(self.original, self.target)
        host.env["RIGBOOK_LIBRARY"] = str(host.root / "library.json")
        step = {"op": "file", "path": str(self.target), "mode": "0755", "keep": True,
                "content_base64": base64.b64encode(self.ours.read_bytes()).decode()}  # fmt: skip
        host.call("apply", apply_request(step, name="swap-1"))
        host.call("close", {"change": "swap-1", "status": "COMMITTED"})
        self.logged = ""

    def configure(self, **changes: object) -> None:
        """Write library.json as deploys/libvgpu.py does."""
        body = {
            "format": 1, "rig": "olares", "node": "one", "target": str(self.target),
            "original": sha(self.original), "ours": sha(self.ours), "guard": True,
            "reapply": False, "webhook": f"{self.hook.url}/{SECRET}", "webhook_file": None,
            **changes,
        }  # fmt: skip
        path = self.host.root / "library.json"
        path.write_text(json.dumps(body))
        path.chmod(0o600)

    def look(self) -> int:
        """One run of the verb, as systemd starts it; gives the exit status."""
        done = self.host.run(self.host.argv("library guard"))
        self.logged += done.stdout + done.stderr
        return done.returncode

    def meddle(self, by: Path) -> list[str]:
        """Somebody copies a library over ours, and the guard looks; gives what was told so far."""
        shutil.copy(by, self.target)
        self.look()
        return self.told

    @property
    def told(self) -> list[str]:
        """The statuses that the webhook got."""
        return [notice["status"] for notice in self.hook.got]


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """The plugin's own library and ours."""
    with folder() as path:
        library(path / "plugins-own", 9000, 1)
        library(path / "ours", 6000, 2)
        yield path


@pytest.fixture
def guarded(host: Host, built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """A guarded library and a real HTTP receiver."""
    with folder() as vgpu, serving(lambda _: (200, {})) as hook:
        for name in ("plugins-own", "ours"):
            shutil.copy(built / name, vgpu / name)
        found = Guarded(host, vgpu, hook)
        found.configure()
        yield found


def test_ours_in_place_says_nothing(guarded: Guarded) -> None:
    assert guarded.look() == 0 and guarded.told == [] and guarded.logged == ""


def test_the_plugins_own_is_told_once_and_left(guarded: Guarded) -> None:
    """Fault 32, without reapply: two looks, one notice."""
    guarded.meddle(guarded.original)
    assert guarded.look() == 0
    assert guarded.told == ["library-original"]
    assert "put its own library back" in guarded.hook.got[0]["text"]
    assert sha(guarded.target) == sha(guarded.original)
    assert SECRET not in guarded.logged
    assert guarded.meddle(guarded.ours) == ["library-original", "library-ours"]


def test_with_reapply_ours_is_put_back_as_a_change_of_its_own(guarded: Guarded) -> None:
    """Fault 32: and it can be undone, byte for byte."""
    guarded.configure(reapply=True)
    shutil.copy(guarded.original, guarded.target)
    guarded.target.chmod(0o644)
    guarded.look()
    assert sha(guarded.target) == sha(guarded.ours)
    assert guarded.target.stat().st_mode & 0o777 == 0o644
    assert guarded.told == ["library-mended"]
    changes, broken = read_all()
    assert broken == [] and [row["status"] for row in changes] == ["COMMITTED", "COMMITTED"]
    guarded.host.call("undo", {"change": changes[0]["id"]})
    assert sha(guarded.target) == sha(guarded.original)


def test_a_plugin_that_overwrites_in_a_loop_is_not_fought_for_ever(guarded: Guarded) -> None:
    guarded.configure(reapply=True)
    for _ in range(watched.MOST + 3):
        guarded.meddle(guarded.original)
    assert guarded.told == ["library-mended"] * watched.MOST + ["library-original"]
    assert sha(guarded.target) == sha(guarded.original)


def test_another_library_is_never_overwritten(
    guarded: Guarded,
) -> None:
    """It may be a new plugin's own, fixed one."""
    guarded.configure(reapply=True)
    guarded.target.write_bytes(b"a new version")
    guarded.look()
    assert guarded.target.read_bytes() == b"a new version"
    assert guarded.told == ["library-other"]
    assert "neither ours nor the original" in guarded.hook.got[0]["text"]
    guarded.target.unlink()
    guarded.look()
    assert guarded.told == ["library-other", "library-absent"]


def test_while_a_change_is_open_the_guard_waits(guarded: Guarded) -> None:
    """It is the operator's run that moves the file."""
    guarded.configure(reapply=True)
    other = guarded.host.file("other.conf")
    guarded.host.call("apply", {"change": change("open-1"), "steps": [file_step(other)]})
    guarded.meddle(guarded.original)
    assert sha(guarded.target) == sha(guarded.original) and guarded.told == []
    guarded.host.call("close", {"change": "open-1", "status": "COMMITTED"})
    guarded.look()
    assert sha(guarded.target) == sha(guarded.ours)


def test_a_library_that_is_overwritten_again_at_once_leaves_no_change_open(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard waits while one is open: its own would keep it, and every run, out for good."""
    guarded.configure(reapply=True)
    for name in ("RIGBOOK_LIBRARY", "RIGBOOK_STATE"):
        monkeypatch.setenv(name, guarded.host.environ()[name])
    apply = watched.apply.apply

    def overwritten(request: Json) -> Json:
        answer = apply(request)
        shutil.copy(guarded.original, guarded.target)
        return answer

    monkeypatch.setattr(watched.apply, "apply", overwritten)
    shutil.copy(guarded.original, guarded.target)
    watched.run_library_guard()
    newest = read_all()[0][0]
    assert newest["status"] == "COMMITTED" and "it is not as change" in newest["reason"]
    assert guarded.told == ["library-original"]
    guarded.look()
    assert sha(guarded.target) == sha(guarded.ours)


def test_a_webhook_that_is_down_gets_its_notice_later(guarded: Guarded) -> None:
    guarded.hook.reply = lambda _: (503, {})
    guarded.meddle(guarded.original)
    guarded.hook.got.clear()
    guarded.hook.reply = lambda _: (200, {})
    guarded.look()
    guarded.look()
    assert guarded.told == ["library-original"]


@pytest.mark.parametrize("changes", [{"guard": False}, {"target": "relative"}, {"more": 1},
                                     {"ours": "none"}, {"webhook": f"ftp://{SECRET}"}])  # fmt: skip
def test_a_bad_file_is_one_line_and_an_unguarded_one_is_left(
    guarded: Guarded, changes: dict[str, object]
) -> None:
    guarded.configure(**changes)
    shutil.copy(guarded.original, guarded.target)
    code = guarded.look()
    assert guarded.told == [] and SECRET not in guarded.logged
    assert code == (0 if changes == {"guard": False} else 1)
    assert len(guarded.logged.splitlines()) == code


def state(reapply: bool = True) -> LibraryState:
    """A swapped library."""
    return LibraryState("r", "n", "/l.so", "a" * 64, "b" * 64, True, reapply, None, None)


def test_mends_of_long_ago_do_not_count() -> None:
    memory = {"status": "ours", "mended": [1.0] * 9, "pending": []}
    assert watched.judge_library(state(), "original", memory, 10_000.0) == "mend"
    assert watched.judge_library(state(), "original", memory, 100.0) == "tell"
    assert watched.judge_library(state(False), "original", memory, 10_000.0) == "tell"
    assert watched.judge_library(state(), "other", {**memory, "status": "other"}, 10_000.0) is None
