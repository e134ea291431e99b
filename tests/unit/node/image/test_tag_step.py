"""A tag of an image as a step: what it named before, what undo leaves, what a kill leaves."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from node.change import kinds
from node.change.kinds import Steps
from node.docker import load

NAME = "rigbook/small:1"
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64
THIRD = "sha256:" + "3" * 64
TAG = load.TagKind("tag")


class Store:
    """Stand-in for docker's images: names, and images that go with their last name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, str] = {}
        self.images = {OLD, NEW}
        monkeypatch.setattr(load, "inspect", self._inspect)
        monkeypatch.setattr(load.api, "call_said", self._call)

    def _inspect(self, reference: str) -> dict[str, Any] | None:
        found = self.names.get(reference, reference)
        return {"Id": found} if found in self.images else None

    def _call(self, method: str, path: str, timeout_s: float) -> tuple[int, str]:
        url = urlsplit(path)
        reference = unquote(url.path.removeprefix("/images/").removesuffix("/tag"))
        if method == "POST":
            asked = parse_qs(url.query)
            self.names[f"{asked['repo'][0]}:{asked['tag'][0]}"] = reference
            return 201, ""
        image = self.names.pop(reference, None)
        if image is None:
            return 404, "no such image"
        if image not in self.names.values():
            self.images.discard(image)
        return 200, ""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with an old and a new image, neither with a name."""
    return Store(monkeypatch)


def done(store: Store) -> list[dict[str, Any]]:
    """The steps after NEW got the name."""
    records: list[dict[str, Any]] = []
    assert TAG.do({"image": NAME, "id": NEW}, Steps({"steps": records}, lambda: None))[0]
    return records


def test_an_image_that_loses_its_only_name_is_kept_under_another(store: Store) -> None:
    """docker would remove it and its layers: gigabytes that would have to come again."""
    (step,) = done(store)
    assert "stays as rigbook-kept:222222222222" in TAG.revert(step, overwrite=False)
    assert NAME not in store.names and NEW in store.images


def test_what_the_tag_named_before_comes_back(store: Store) -> None:
    store.names = {NAME: OLD}
    (step,) = done(store)
    assert store.names == {NAME: NEW, "rigbook-kept:111111111111": OLD}
    assert TAG.revert(step, overwrite=False) == "restored" and store.names == {NAME: OLD}


@pytest.mark.parametrize(("now", "state", "names"), [
    (NEW, "done", {NAME: NEW, "rigbook-kept:111111111111": OLD}), (OLD, "undone", {NAME: OLD}),
    (THIRD, "unknown", {NAME: THIRD, "rigbook-kept:111111111111": OLD}),
])  # fmt: skip
def test_a_tag_that_a_kill_left_announced_is_looked_up(
    store: Store, now: str, state: str, names: dict[str, str]
) -> None:
    """Before, such a change could be neither taken up nor closed."""
    store.names = {NAME: OLD}
    (step,) = done(store)
    store.images.add(THIRD)
    step["state"], store.names[NAME] = "intent", now
    assert kinds.recover([step]) and step["state"] == state and store.names == names
