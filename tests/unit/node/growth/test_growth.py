"""What rigbook keeps has a bound: how many, and never what somebody needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from node import growth
from node.change import journal
from node.docker import api, load
from tests.unit.node.restore.test_restore import several
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step
from tests.unit.node.support.trees import Engine

MIB = 1 << 20


def blob(host: Host, letter: str, size: int = 10) -> str:
    """A kept copy of that size; its name."""
    name = letter * 64
    folder = host.state / "blobs"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("wb") as file:
        file.truncate(size)
    return name


def old(host: Host, number: int, status: str = "COMMITTED", **more: Any) -> str:
    """A change of long ago, as an older version left it in the journal; the higher the later."""
    name = f"old-{number:04}"
    folder = host.state / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    row = {"format": 1, "number": number, "id": name, "deploy": "serve",
           "operator": "tester@here", "waivers": [], "status": status,
           "opened_unix_s": 1000.0 + number, "closed_unix_s": None,
           "boot_id": "b", "reason": None, "blob": None, "steps": [], **more}  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(row, indent=1))
    return name


def step(letter: str) -> dict[str, object]:
    """A step with that pre-image."""
    return {"op": "file", "path": "/x", "state": "done", "pre": {"sha256": letter * 64},
            "post": {}, "temp": ".rigbook-t"}  # fmt: skip


def commit(host: Host, name: str = "change-1") -> dict[str, Any]:
    """A change that is made and blessed."""
    host.call("apply", apply_request(file_step(host.file(), f"{name}\n"), name=name))
    return host.call("close", {"change": name, "status": "COMMITTED"})


def names(host: Host, what: str) -> set[str]:
    """What lies in a folder of the state."""
    return {path.name.removesuffix(".json") for path in (host.state / what).iterdir()}


def test_a_commit_leaves_the_newest_changes(host: Host) -> None:
    for number in range(600):
        old(host, number)
    before = len(journal.read_all()[0])
    answer = commit(host)
    assert before == 600 and answer["ok"]
    assert names(host, "journal") == {"change-1", *(f"old-{n:04}" for n in range(401, 600))}
    (line,) = answer["freed"]
    assert "401 changes" in line and "200 newest" in line


def test_what_is_not_settled_stays_however_old_it_is(host: Host) -> None:
    for number in range(300):
        old(host, number)
    kept = old(host, 3, "INCONSISTENT", steps=[step("a")])
    blob(host, "a")
    commit(host)
    assert kept in names(host, "journal") and "a" * 64 in names(host, "blobs")


def test_nothing_goes_while_the_journal_is_damaged(host: Host) -> None:
    for number in range(300):
        old(host, number)
    blob(host, "c")
    host.call("apply", apply_request(file_step(host.file())))
    (host.state / "journal" / "broken.json").write_text("{")
    answer = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert answer["ok"] and "damaged" in answer["not_freed"][0]
    assert len(names(host, "journal")) == 302 and "c" * 64 in names(host, "blobs")


def test_nothing_goes_unless_a_change_was_blessed(host: Host) -> None:
    for number in range(300):
        old(host, number)
    host.call("apply", apply_request(file_step(host.file())))
    host.call("undo")
    host.call("apply", apply_request(file_step(host.file()), name="change-2"))
    host.call("close", {"change": "change-2", "status": "INCONSISTENT"})
    assert len(names(host, "journal")) == 302


def test_a_blob_goes_with_the_last_change_that_names_it(host: Host, tmp_path: Path) -> None:
    old(host, 0, steps=[step("a"), step("b")])
    for number in range(1, 200):
        old(host, number, steps=[step("b")])
    library = tmp_path / "library.json"
    library.write_text(json.dumps({"ours": "d" * 64}))
    host.env["RIGBOOK_LIBRARY"] = str(library)
    for letter in "abcd":
        blob(host, letter)
    commit(host)
    left = {name[0] for name in names(host, "blobs") if len(set(name)) == 1}
    assert left == {"b", "d"}, (
        "c is nobody's; what the library's guard puts back is named elsewhere"
    )


def test_a_further_name_of_a_replaced_file_goes_with_its_change(host: Host) -> None:
    old(host, 0, steps=[{**step("a"), "linked": {"kept": "a" * 16}}])
    for number in range(1, 200):
        old(host, number, steps=[{**step("b"), "linked": {"kept": "b" * 16}}])
    (host.state / "linked").mkdir()
    for letter in "ab":
        (host.state / "linked" / (letter * 16)).write_text("the former file")
    commit(host)
    assert names(host, "linked") == {"b" * 16}


def test_large_pre_images_bring_the_bound_down(host: Host) -> None:
    """A run of a patch tool keeps its whole tree: 256 MiB. The last blessed one stays."""
    for number, letter in enumerate("abcdef"):
        old(host, number, steps=[step(letter)])
        blob(host, letter, 900 * MIB)
    commit(host)
    assert {n[0] for n in names(host, "blobs") if len(set(n)) == 1} == {"e", "f"}
    assert names(host, "journal") == {"change-1", "old-0004", "old-0005"}
    blob(host, "0", 5000 * MIB)
    path = host.state / "journal" / f"{old(host, 10**10, steps=[step('0')])}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "number": 10**6}))
    host.call("prune", {})
    assert f"old-{10**10}" in names(host, "journal") and "0" * 64 in names(host, "blobs")


@pytest.fixture
def own(host: Host, tmp_path: Path) -> Host:
    """The host with a program folder of its own."""
    library = tmp_path / "lib"
    library.mkdir()
    shutil.copy(host.pyz, library / host.pyz.name)
    return Host(host.root, library / host.pyz.name, env=host.env)


def program(host: Host, number: int, name: str | None = None) -> str:
    """A version of the program, the higher the later; its path."""
    path = host.pyz.parent / (name or f"rignode-{number:012x}.pyz")
    path.write_bytes(b"x" * 1000)
    os.utime(path, (1000 + number, 1000 + number))
    return str(path)


def test_programs_that_nobody_names_go(own: Host) -> None:
    versions = [program(own, number) for number in range(9)]
    cut = program(own, 1, "rignode-00000000000a.pyz.77.tmp")
    old(own, 0, "OPEN", program=versions[0])
    (own.state / "journal" / "old-0000.json").rename(own.state / "journal" / "x")
    assert own.call("prune", {})["code"] == "journal_broken", "who needs what is not known"
    (own.state / "journal" / "x").rename(own.state / "journal" / "old-0000.json")
    answer = own.call("prune", {})
    gone = {row["name"] for row in answer["removed"]}
    assert gone == {cut, *versions[1:7]} and answer["freed_bytes"] == 7000
    left = {str(path) for path in own.pyz.parent.iterdir()}
    assert left == {str(own.pyz), versions[0], *versions[7:]}, "the three newest"


def test_a_program_that_runs_stays(own: Host) -> None:
    versions = [program(own, number) for number in range(5)]
    child = subprocess.Popen(["sh", "-c", "sleep 60; :", versions[0], "watch"])
    try:
        own.call("prune", {})
    finally:
        child.kill()
        child.wait()
    assert Path(versions[0]).exists() and not Path(versions[1]).exists()


def test_backups_beyond_the_newest_of_each_tree_go_by_hand_alone(engine: Engine) -> None:
    made = several(engine, 7, 0)
    commit(engine.host)
    assert {row["id"] for row in engine.ask("list")["backups"]} == set(made)
    answer = engine.host.call("prune", {"what": "backups"})
    assert {row["name"] for row in answer["removed"]} == {made[1]}
    answer = engine.host.call("prune", {"what": "backups", "keep": 1})
    assert {row["name"] for row in answer["removed"]} == set(made[2:6])


def test_backups_beyond_the_newest_go_with_an_upgrade(engine: Engine) -> None:
    """Each upgrade makes one: five of them stay, and the last verified one."""
    made = several(engine, 7, 0)
    request = apply_request(file_step(engine.host.file(), "x\n"), name="up-0001", deploy="upgrade")
    assert engine.host.call("apply", request)["ok"]
    answer = engine.host.call("close", {"change": "up-0001", "status": "COMMITTED"})
    assert any("removed 1 backups beyond the 5 newest" in line for line in answer["freed"]), answer
    left = {row["id"] for row in engine.ask("list")["backups"]}
    assert left == {made[0], *made[2:]}


def test_copies_kept_for_others_have_a_bound(engine: Engine) -> None:
    for backup in several(engine, 5):
        place = engine.host.state / "copies-of-others" / "lab9" / backup
        shutil.copytree(engine.backups / backup, place)
    damaged = place.with_name("20200101T000000Z-venv-0a0a")
    damaged.mkdir()
    shutil.rmtree(engine.backups)
    commit(engine.host)
    left = engine.host.call("tree copies")["others"]
    assert [row["backup"] for row in left[:3]] == [
        row["backup"] for row in left if not row["problem"]
    ]
    assert len(left) == 4 and damaged.is_dir(), "what cannot be read is left to a person"
    grown = {row["what"]: row for row in engine.host.call("growth", {})["rows"]}["copies"]
    assert grown["count"] == 4 and grown["bytes"] > 1000


def displaced(host: Host, number: int, status: str = "COMMITTED", tree: str = "venv") -> Path:
    """The folder in which a restore keeps what it displaced."""
    path = host.root / f".rigbook-{tree}-old-{number:04}"
    (path / "old").mkdir(parents=True)
    (path / "old" / "big").write_bytes(bytes(100_000))
    old(host, number, status, steps=[{"op": "work", "path": str(path), "state": "done"}])
    return path


def test_what_restores_displaced_goes_but_the_last_of_each_tree(host: Host) -> None:
    rows = [displaced(host, 1), displaced(host, 2, "INCONSISTENT"), displaced(host, 3),
            displaced(host, 4, tree="other")]  # fmt: skip
    commit(host)
    assert [path.exists() for path in rows] == [False, True, True, True]
    answer = host.call("prune", {"what": "displaced", "keep": 0, "dry": True})
    assert {row["name"] for row in answer["removed"]} == {str(rows[2]), str(rows[3])}
    assert min(row["bytes"] for row in answer["removed"]) > 100_000 and rows[2].exists()


def test_a_change_stays_as_long_as_what_it_displaced(host: Host) -> None:
    displaced(host, 0)
    for number in range(1, 300):
        old(host, number)
    commit(host)
    assert "old-0000" in names(host, "journal")


def test_the_blessed_change_itself_can_still_be_undone(host: Host) -> None:
    for number in range(300):
        old(host, number)
    commit(host)
    assert (host.root / "file.conf").read_text() == "change-1\n"
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert (host.root / "file.conf").read_text() == OLD != NEW


def test_growth_is_told_with_counts_and_bytes(own: Host) -> None:
    old(own, 1, steps=[step("a")])
    blob(own, "a", 3 * MIB)
    displaced(own, 2)
    rows = {row["what"]: row for row in own.call("growth", {})["rows"]}
    assert list(rows) == [
        "changes", "blobs", "programs", "displaced", "backups", "copies", "images", "evidence",
    ]  # fmt: skip
    assert (rows["blobs"]["count"], rows["blobs"]["bytes"]) == (1, 3 * MIB)
    assert rows["changes"]["count"] == 2 and rows["displaced"]["count"] == 1
    assert rows["programs"]["bytes"] == own.pyz.stat().st_size
    assert rows["backups"] == {"what": "backups", "count": 0, "bytes": 0, "unreadable": None}


@pytest.mark.parametrize("request_", [{"what": "engines"}, {"keep": -1}, {"keep": "all"}])
def test_a_prune_of_something_else_is_refused(host: Host, request_: dict[str, object]) -> None:
    assert host.call("prune", request_)["code"] == "bad_request"


# Images that lost their tag: the kept names of the newest changes stay.

GIB = 1 << 30


def image(number: int) -> str:
    """An image's id."""
    return f"sha256:{str(number) * 64}"


class Store:
    """Stand-in for docker's list of images and its removal by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, socket: Path) -> None:
        self.names: dict[str, int] = {}
        self.in_use: set[str] = set()
        socket.touch()
        monkeypatch.setattr(api, "SOCKET", str(socket))
        monkeypatch.setattr(api, "get", self._list)
        monkeypatch.setattr(api, "call_said", self._call)

    def keep(self, number: int, *more: str) -> str:
        """An image under its kept name, and others."""
        name = load.kept_name(image(number))
        for one in (name, *more):
            self.names[one] = number
        return name

    def _list(self, path: str) -> list[dict[str, Any]]:
        assert "reference" in unquote(path) and load.KEPT_TAG in unquote(path)
        rows = sorted({n for name, n in self.names.items() if name.startswith(load.KEPT_TAG)})
        return [{"Id": image(n), "Size": n * GIB,
                 "RepoTags": [name for name, own in self.names.items() if own == n]}
                for n in rows]  # fmt: skip

    def _call(self, method: str, path: str, timeout_s: float) -> tuple[int, str]:
        name = unquote(path.removeprefix("/images/"))
        assert method == "DELETE" and "?" not in path
        if name in self.in_use:
            return 409, "image is being used by running container"
        self.names.pop(name)
        return 200, ""


@pytest.fixture
def store(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """Docker with four kept images, each displaced by a change; and one of no change."""
    made = Store(monkeypatch, tmp_path / "docker.sock")
    for number in range(1, 5):
        made.keep(number)
        row = {"op": "tag", "image": "x:1", "pre": image(number), "post": image(9), "state": "done"}
        old(host, number, steps=[row])
    made.keep(7)
    yield made


def removed(answer: dict[str, Any]) -> set[str]:
    return {row["name"] for row in answer["removed"]}


def test_those_of_the_newest_changes_stay(host: Host, store: Store) -> None:
    old(host, 1, "INCONSISTENT", steps=[{"op": "tag", "pre": image(1), "state": "unknown"}])
    gone = {load.kept_name(image(number)) for number in (2, 7)}
    answer = growth.prune({"what": "images"})
    assert removed(answer) == gone and answer["freed_bytes"] == 9 * GIB
    assert set(store.names.values()) == {1, 3, 4}


def test_an_image_with_another_name_frees_nothing(host: Host, store: Store) -> None:
    store.keep(7, "mine:1")
    answer = growth.prune({"what": "images", "keep": 3})
    assert removed(answer) == {load.kept_name(image(n)) for n in (1, 7)}
    assert answer["freed_bytes"] == GIB and store.names["mine:1"] == 7


def test_an_image_that_is_used_is_told(host: Host, store: Store) -> None:
    store.in_use.add(load.kept_name(image(2)))
    answer = growth.prune({"what": "images"})
    assert "being used" in answer["not_freed"][0]
    assert removed(answer) == {load.kept_name(image(n)) for n in (1, 7)}


def test_docker_is_asked_only_after_a_change_of_a_tag(
    host: Host, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(api, "get", lambda path, **_: asked.append(path) or [])
    for name, steps in (("file", []), ("tag", [{"op": "tag", "state": "undone", "image": "x:1"}])):
        old(host, 99, "OPEN", steps=steps)
        growth.close_prune({"change": "old-0099", "status": "COMMITTED"})
        assert bool(asked) == (name == "tag")


def test_without_docker_there_is_nothing(host: Host, store: Store) -> None:
    Path(api.SOCKET).unlink()
    assert growth.prune({"what": "images", "keep": 0})["removed"] == []
