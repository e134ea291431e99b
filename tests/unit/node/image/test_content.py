"""An image read out of containerd's content store, and what is refused there."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.image.content import Content
from node.rules.oci_layout import digest_of
from node.transfer.block import BLOCK
from tests.unit.node.support.content_store import Store

LAYERS = [b"compressed lower", bytes(range(256)) * (BLOCK // 128)]
DIFF_IDS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path)


def given(store: Store, name: str, layers: list[str] | None = None) -> Content:
    """The image of this digest, as a giver reads it."""
    return Content(str(store.root), {"id": name, "layers": layers or DIFF_IDS})


def listed(found: Content) -> list[str]:
    """The digests of the documents that it lists."""
    return [digest_of(base64.b64decode(row)) for row in found.listing()["documents"]]


def test_documents_and_layers_are_given_as_they_lie_there(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    found = given(store, name)
    assert listed(found)[0] == name and len(listed(found)) == 2
    assert found.listing()["blobs"] == [[digest_of(raw), len(raw)] for raw in LAYERS]
    for offset in (0, 5, BLOCK, len(LAYERS[1])):
        blocks = list(found.blocks(1, offset))
        assert b"".join(blocks) == LAYERS[1][offset:] and all(len(b) <= BLOCK for b in blocks)
    assert found.size(0) == len(LAYERS[0])
    assert found.sha256(0, lambda: None) == digest_of(LAYERS[0])[7:]


def test_of_an_index_the_image_of_these_layers_is_given(store: Store) -> None:
    """Of the images for other processors, and of attestations, a pull leaves the content out."""
    name = store.manifest(DIFF_IDS, LAYERS)
    other = store.manifest(["sha256:" + "3" * 64], [b"another processor's"])
    inner = store.document(manifests=[{"digest": "sha256:" + "9" * 64}, {"digest": name}])
    index = store.document(manifests=[{"digest": other}, {"digest": inner}])
    assert listed(given(store, index))[:3] == [index, inner, name]


def test_a_layer_that_is_there_twice_is_one_blob(store: Store) -> None:
    name = store.manifest([*DIFF_IDS, DIFF_IDS[0]], [*LAYERS, LAYERS[0]])
    found = given(store, name, [*DIFF_IDS, DIFF_IDS[0]])
    assert len(found.listing()["blobs"]) == 2


def test_an_index_that_names_itself_ends(store: Store) -> None:
    """No document can have its own digest in it; one that is damaged is refused before that."""
    deep = store.manifest(DIFF_IDS, LAYERS)
    for _ in range(6):
        deep = store.document(manifests=[{"digest": deep}])
    with pytest.raises(NodeError, match="no image"):
        given(store, deep)


@pytest.mark.parametrize(("name", "words"), [
    ("sha256:" + "0" * 64, "no image"), ("sha256:../../../../etc/passwd", "is not a digest"),
])  # fmt: skip
def test_a_name_that_is_no_image_is_refused(store: Store, name: str, words: str) -> None:
    with pytest.raises(NodeError, match=words):
        given(store, name)


def test_what_a_manifest_names_must_be_a_digest(store: Store) -> None:
    """A document may come from any registry: none of its names becomes a path as it is."""
    (store.root / "secret").write_text("secret")
    name = store.document(manifests=[{"digest": "sha256:../../../../secret"}])
    with pytest.raises(NodeError, match="is not a digest"):
        given(store, name)


@pytest.mark.parametrize("damage", ["cut", "gone", "link"])
def test_a_layer_that_is_not_whole_is_told_before_anything_is_given(
    store: Store, damage: str, tmp_path: Path
) -> None:
    """containerd leaves out what another image had unpacked already."""
    name = store.manifest(DIFF_IDS, LAYERS)
    path = store.path(digest_of(LAYERS[1]))
    path.unlink()
    if damage == "cut":
        path.write_bytes(LAYERS[1][:-1])
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(LAYERS[1])
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match="is not whole in") as caught:
        given(store, name)
    assert "from=NODE" in caught.value.remedy


def test_a_document_that_is_damaged_is_refused(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    store.path(name).write_bytes(store.path(name).read_bytes() + b" ")
    with pytest.raises(NodeError, match="is damaged"):
        given(store, name)


def test_an_image_of_other_layers_is_not_given(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    with pytest.raises(NodeError, match="no image"):
        given(store, name, list(reversed(DIFF_IDS)))
