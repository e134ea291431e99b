"""The switch of a set and its undo, killed before every call that changes something: what lies
there is the former set, the new one, or a mix that is marked as one; the next run or an undo ends
it."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import journal, transaction, undo
from node.core.errors import NodeError
from node.weights import beside, manifest, set_step
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.transfers import content

CALLS = ("link", "rename", "unlink", "mkdir", "rmdir", "fsync", "fchown", "fchmod")
KILLED = 77
NEW = {"a.bin": b"new a", "b.bin": b"new b", "sub/c.bin": b"new c"}
GOOD = {"a.bin": b"good a", "b.bin": b"good b", "old.bin": b"good old"}


@pytest.fixture
def folder(host: Host, tmp_path: Path) -> Path:
    """A taker's weights, and beside them a set that has come whole."""
    return tmp_path / "weights"


def reset(host: Host, folder: Path) -> None:
    for path in (folder, host.state):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir()
    for name, raw in GOOD.items():
        (folder / name).write_bytes(raw)
    with manifest.Folder(str(folder)).own():
        pass
    for name, raw in NEW.items():
        (folder / ".rigbook" / part(name)).write_bytes(raw)


def part(name: str) -> str:
    return name.replace("/", "-") + ".whole"


def switch(folder: Path) -> None:
    wanted: list[dict[str, Any]] = [{"name": name, "part": part(name)} for name in NEW]
    with transaction.opened(journal.parse_change(change()), "test") as log:
        entry = log.begin(set_step.OP, stage=set_step.FETCH, change="change-1", path=str(folder),
                          owner=[0, 0], count=3, bytes=15)  # fmt: skip
        set_step.switch(log, entry, wanted, ["old.bin"])


def recover() -> None:
    with transaction.opened(journal.parse_change(change()), "test"):
        pass


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Runs the work in a child that is killed before its changing call of that number; False when
    it has fewer."""
    pid = os.fork()
    if not pid:
        left = [number]

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
                return real(*args, **more)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, KILLED), "the work failed, its traceback is in stderr"
    return ended == KILLED


def require_told(folder: Path) -> None:
    """A mix is never there without its mark, which keeps an engine from its start."""
    found = content(folder)
    if found not in (GOOD, NEW):
        assert beside.incomplete(str(folder)) == "change-1", found


def each_kill(
    host: Host,
    folder: Path,
    work: Callable[[], object],
    finish: Callable[[Path], None],
    before: Callable[[], object] = lambda: None,
) -> int:
    """Kills `work` before each of its calls in turn and finishes it; gives how many those were."""
    for number in range(1000):
        reset(host, folder)
        before()
        if not killed_before(number, work):
            return number
        require_told(folder)
        finish(folder)
    raise AssertionError("it does not end")


def undone(folder: Path) -> None:
    if journal.find("change-1") is not None:
        assert undo.undo({})["status"] in ("ROLLED_BACK", None)
    assert content(folder) == GOOD and beside.incomplete(str(folder)) is None
    assert beside.displaced(str(folder)) == []


def gone_on_with(folder: Path) -> None:
    recover()
    steps = (journal.find("change-1") or {"steps": []})["steps"]
    if steps and steps[0]["state"] == "done":
        assert content(folder) == NEW and beside.incomplete(str(folder)) is None
        undone(folder)
    else:
        assert content(folder) == GOOD


@pytest.mark.parametrize("finish", [undone, gone_on_with])
def test_a_switch_that_is_killed_anywhere_is_finished_or_undone(
    host: Host, folder: Path, finish: Callable[[Path], None]
) -> None:
    assert each_kill(host, folder, lambda: switch(folder), finish) > 20
    assert content(folder) == NEW and beside.incomplete(str(folder)) is None


def test_an_undo_that_is_killed_anywhere_is_finished_by_the_next(host: Host, folder: Path) -> None:
    points = each_kill(host, folder, lambda: undo.undo({}), undone, lambda: switch(folder))
    assert points > 15 and content(folder) == GOOD


def test_a_filesystem_without_hard_links_keeps_the_former_files_too(
    host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert each_kill(host, folder, lambda: switch(folder), undone) > 20
    assert each_kill(host, folder, lambda: switch(folder), gone_on_with) > 20


def test_what_was_half_a_set_before_is_told_as_one_after_the_undo(host: Host, folder: Path) -> None:
    reset(host, folder)
    with manifest.Folder(str(folder)).own() as own:
        beside.mark(own, "an-older-change")
    switch(folder)
    assert beside.incomplete(str(folder)) is None
    assert undo.undo({})["status"] == "ROLLED_BACK"
    assert beside.incomplete(str(folder)) == "an-older-change"


def test_what_is_verified_is_looked_at(host: Host, folder: Path) -> None:
    reset(host, folder)
    switch(folder)
    (entry,) = journal.get("change-1")["steps"]
    kind = set_step.SetKind(set_step.OP)
    assert kind.verify(entry, "post") == []
    assert len(kind.verify(entry, "pre")) == 4
    (folder / "a.bin").write_bytes(b"edited")
    (line,) = kind.verify(entry, "post")
    assert line.startswith(f"{folder}/a.bin is the file of inode") and "(6 bytes)" in line
    assert kind.describe(entry).endswith(f"kept in {folder}/.rigbook/displaced-change-1")


def test_a_part_that_is_gone_stays_unknown_and_can_be_undone(host: Host, folder: Path) -> None:
    for number in range(100):
        reset(host, folder)
        assert killed_before(number, lambda: switch(folder))
        if content(folder) not in (GOOD, NEW):
            break
    for path in (folder / ".rigbook").glob("*.whole"):
        path.unlink()
    recover()
    (entry,) = journal.get("change-1")["steps"]
    assert entry["state"] == "unknown" and entry["why"]
    undone(folder)


def test_a_name_that_became_a_folder_meanwhile_is_refused_and_nothing_is_lost(
    host: Host, folder: Path
) -> None:
    reset(host, folder)
    (folder / "a.bin").unlink()
    (folder / "a.bin").mkdir()
    with pytest.raises(NodeError, match=r"a\.bin is not a file"):
        switch(folder)
    assert (folder / "b.bin").read_bytes() == GOOD["b.bin"]
    assert undo.undo({})["status"] == "ROLLED_BACK"
