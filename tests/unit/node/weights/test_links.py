"""Links in weights: followed inside their folder and a Hugging Face cache, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.weights import hub_cache, manifest
from tests.unit.node.support.time_limit import at_most
from tests.unit.node.support.transfers import Ends, content, files

MIB = 1 << 20


def cache(root: Path) -> tuple[Path, dict[str, bytes]]:
    """A model as `hf download` lays it out: a snapshot of links into ../../blobs."""
    blobs = root / "models--org--tiny" / "blobs"
    made = files(blobs, aaaa=3 * MIB, bbbb=40)
    snapshot = root / "models--org--tiny" / "snapshots" / "0123abcd"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/aaaa")
    (snapshot / "config.json").symlink_to("../../blobs/bbbb")
    (snapshot / "sub" / "tokenizer.json").symlink_to("../../../blobs/bbbb")
    return snapshot, {"model.safetensors": made["aaaa"], "config.json": made["bbbb"],
                      "sub/tokenizer.json": made["bbbb"]}  # fmt: skip


def test_a_hugging_face_cache_is_given_as_plain_files(ends: Ends, tmp_path: Path) -> None:
    """Before: `cp -rL` first, another 149 GB."""
    snapshot, wanted = cache(tmp_path / "hub")
    (snapshot / "out.bin").symlink_to("../../../../secret")
    (tmp_path / "secret").write_text("secret")
    with ends.offering(path=str(snapshot)):
        got = ends.taker.call("weights receive", ends.receive())
    assert got["ok"] and got["outside"] == ["out.bin"] and content(ends.target) == wanted
    assert not any(path.is_symlink() for path in ends.target.rglob("*"))
    with ends.offering(path=str(snapshot)):
        assert not ends.taker.call("weights receive", ends.receive())["changed"]


# where each link of the folder leads, seen from the folder; True: it is followed
LINKS = {
    "real.bin": True,
    "sub/../real.bin": True,
    "./real.bin": True,
    "{folder}/real.bin": True,
    "chain": True,
    "/etc/hostname": False,
    "../secret": False,
    "sub/../../secret": False,
    "../folder/real.bin": False,
    "loop": False,
    "nowhere": False,
    "out/secret": False,
    "fifo": False,
    "/proc/self/root/etc/hostname": False,
    ".hidden": True,
}


@pytest.mark.parametrize("to", LINKS)
def test_each_link_is_followed_or_named(tmp_path: Path, to: str) -> None:
    where = tmp_path / "folder"
    files(where, real_bin=10)
    (where / "sub").mkdir()
    (where / ".hidden").write_text("hidden")
    (tmp_path / "secret").write_text("secret")
    (where / "chain").symlink_to("real.bin")
    (where / "loop").symlink_to("loop")
    (where / "out").symlink_to("..")
    os.mkfifo(where / "fifo")
    (where / "link.bin").symlink_to(to.format(folder=where))
    folder = manifest.Folder(str(where))
    with at_most(5):
        assert ("link.bin" in folder.names()) == LINKS[to]
        if LINKS[to]:
            with folder.opened("link.bin") as file:
                assert file.read(4)
        else:
            assert "link.bin" in folder.outside()
            said = pytest.raises(NodeError, match=r"link\.bin is no file of this folder")
            with said, folder.opened("link.bin"):
                pass


@pytest.mark.parametrize("verb", ["weights offer", "weights hash"])
def test_weights_of_one_file_that_lead_out_are_not_read(
    ends: Ends, tmp_path: Path, verb: str
) -> None:
    """Read as root, sent, and written for everybody to read: /etc/shadow, say."""
    secret = tmp_path / "shadow"
    secret.write_text("secret")
    secret.chmod(0o600)
    ends.source.mkdir()
    link = ends.source / "model.gguf"
    link.symlink_to(secret)
    more = ends.offer(path=str(link), deadline_s=2) if "offer" in verb else {"path": str(link)}
    said = ends.giver.call(verb, more)
    assert not said["ok"] and "model.gguf leads out of its folder" in said["error"], said
    assert f"readlink -f {link}" in said["remedy"]


def test_one_file_of_a_cache_is_given(ends: Ends, tmp_path: Path) -> None:
    snapshot, wanted = cache(tmp_path / "hub")
    (snapshot / "model.gguf").symlink_to("../../blobs/aaaa")
    target = ends.target / "model.gguf"
    with ends.offering(path=str(snapshot / "model.gguf")):
        got = ends.taker.call("weights receive", ends.receive(path=str(target)))
    assert got["ok"] and target.read_bytes() == wanted["model.safetensors"]


@pytest.mark.parametrize("refs", ["../../../../..", "gone", "", "a/b", "\xff", None])
def test_a_cache_that_names_no_snapshot_of_its_own_is_not_followed(
    tmp_path: Path, refs: str | None
) -> None:
    snapshot, _ = cache(tmp_path / "hub")
    model = snapshot.parents[1]
    if refs is not None:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_bytes(refs.encode("latin-1"))
    (snapshot.parent / "4567ef01").mkdir()
    assert hub_cache.snapshot_of(str(model)) == str(model)


@pytest.mark.parametrize("what", ["/dev/zero", "fifo", "large", "of a user"])
def test_a_manifest_that_is_not_roots_own_file_says_nothing(tmp_path: Path, what: str) -> None:
    """It was opened before its owner was asked: a link to /dev/zero took all memory."""
    where = tmp_path / "w"
    files(where, a_bin=10)
    folder = manifest.Folder(str(where))
    with folder.opened("a.bin") as file:
        right = manifest.hash_of(file, "a.bin")
    folder.save({"a.bin": right})
    assert folder.list()[0]["sha256"] == right.sha256
    path = where / ".rigbook" / "manifest.json"
    if what == "of a user":
        os.chown(path, 12, 34)
    elif what == "large":
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "more": "x" * (80 << 20)}))
    else:
        path.unlink()
        os.mkfifo(path) if what == "fifo" else path.symlink_to(what)
    with at_most(5):
        assert folder.list()[0]["sha256"] is None


def test_a_manifest_in_another_users_folder_says_nothing(tmp_path: Path) -> None:
    where = tmp_path / "w"
    files(where, a_bin=10)
    folder = manifest.Folder(str(where))
    with folder.opened("a.bin") as file:
        folder.save({"a.bin": manifest.hash_of(file, "a.bin")})
    os.chown(where / ".rigbook", 12, 34)
    assert folder.list()[0]["sha256"] is None
