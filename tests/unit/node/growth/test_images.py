"""Images that lost their tag: the kept names of the newest changes stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from node.docker import api
from node.growth import prune
from node.growth.images import containers
from node.image import tag_step
from tests.unit.node.growth.test_rule import old
from tests.unit.node.support.host import Host

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
        monkeypatch.setattr(containers, "call", self._call)

    def keep(self, number: int, *more: str) -> str:
        """An image under its kept name, and others."""
        name = tag_step.kept_name(image(number))
        for one in (name, *more):
            self.names[one] = number
        return name

    def _list(self, path: str) -> list[dict[str, Any]]:
        assert "reference" in unquote(path) and tag_step.KEPT in unquote(path)
        rows = sorted({n for name, n in self.names.items() if name.startswith(tag_step.KEPT)})
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
    gone = {tag_step.kept_name(image(number)) for number in (2, 7)}
    answer = prune.prune({"what": "images"})
    assert removed(answer) == gone and answer["freed_bytes"] == 9 * GIB
    assert set(store.names.values()) == {1, 3, 4}


def test_an_image_with_another_name_frees_nothing(host: Host, store: Store) -> None:
    store.keep(7, "mine:1")
    answer = prune.prune({"what": "images", "keep": 3})
    assert removed(answer) == {tag_step.kept_name(image(n)) for n in (1, 7)}
    assert answer["freed_bytes"] == GIB and store.names["mine:1"] == 7


def test_an_image_that_is_used_is_told(host: Host, store: Store) -> None:
    store.in_use.add(tag_step.kept_name(image(2)))
    answer = prune.prune({"what": "images"})
    assert "being used" in answer["not_freed"][0]
    assert removed(answer) == {tag_step.kept_name(image(n)) for n in (1, 7)}


def test_docker_is_asked_only_after_a_change_of_a_tag(
    host: Host, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(api, "get", lambda path, **_: asked.append(path) or [])
    for name, steps in (("file", []), ("tag", [{"op": "tag", "state": "undone", "image": "x:1"}])):
        old(host, 99, "OPEN", steps=steps)
        prune.close({"change": "old-0099", "status": "COMMITTED"})
        assert bool(asked) == (name == "tag")


def test_without_docker_there_is_nothing(host: Host, store: Store) -> None:
    Path(api.SOCKET).unlink()
    assert prune.prune({"what": "images", "keep": 0})["removed"] == []
