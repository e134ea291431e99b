"""weights between two booted hosts, broken in the middle; a giver whose own files are broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lab import test_weights as w
from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

BREAK = """
import json
folder = "/srv/models/tiny"
part = lambda number: f"{folder}/model-0000{number}.safetensors"
open(part(1), "wb").write(b"version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 9\\n")
whole = open(part(2), "rb").read()
open(part(2), "wb").write(whole[:-4096])
open(part(3), "wb").write(b"GGUF" + bytes(100))
index = {"weight_map": {"a": "model-00002.safetensors", "b": "model-00004.safetensors"}}
open(f"{folder}/model.safetensors.index.json", "w").write(json.dumps(index))
"""


@pytest.fixture
def weights(lab: Lab) -> Iterator[Lab]:
    """test1 has weights, test2 has none."""
    w.clear(lab)
    lab.ssh("test1", "sudo python3 -", stdin=w.MAKE.format(size=20 * w.MB))
    yield lab
    w.clear(lab)


def test_broken_downloads_are_named_by_file_and_given_to_nobody(weights: Lab) -> None:
    """A git-lfs pointer, a cut file, another format, and a shard that the index names in vain."""
    weights.ssh("test1", "sudo python3 -", stdin=BREAK)
    before = weights.snapshots()
    done = weights.pyinfra("weights", "--data", "from=test1")
    assert done.rc == 1 and "Traceback" not in done.text and "nothing was changed" in done.text
    for named in (
        "block weights-magic [test1]",
        "model-00001.safetensors is a git-lfs pointer, not the file itself",
        "model-00003.safetensors is gguf",
        "block weights-cut [test1]",
        "model-00002.safetensors: 19995",
        "block weights-shards-missing [test1]",
        "named by the index and not there: model-00004.safetensors",
        "hf download",
    ):
        assert named in done.text, done.text
    assert weights.snapshots() == before and w.sums(weights, "test2") == ""


def test_a_fabric_that_is_away_is_refused_and_not_gone_around(weights: Lab) -> None:
    assert weights.verb("fabric", "down").rc == 0
    try:
        done = weights.pyinfra("weights")
        assert done.rc == 1 and "fabric-" in done.text and "nothing was changed" in done.text
        assert w.sums(weights, "test2") == ""
    finally:
        assert weights.verb("fabric", "up").rc == 0


def test_a_link_that_goes_and_comes_back_is_waited_for(weights: Lab) -> None:
    with m.slow_fabric(weights, 40):
        started = m.start("weights")
        m.wait_for(lambda: m.spooled(weights, folder=w.FOLDER) > 2 * w.MB)
        weights.ssh("test2", "sudo ip link set bond0 down; sleep 3; sudo ip link set bond0 up")
        out, _ = started.communicate(timeout=240)
    assert started.returncode == 0, out
    assert w.sums(weights, "test2") == w.sums(weights, "test1") != ""


def test_a_taker_that_reboots_in_the_middle_has_no_half_file_and_goes_on(weights: Lab) -> None:
    with m.slow_fabric(weights, 40):
        started = m.start("weights")
        m.wait_for(lambda: m.spooled(weights, folder=w.FOLDER) > 4 * w.MB)
        assert weights.verb("reboot", "test2").rc == 0
        m.kill(started)
        assert "safetensors" not in w.sums(weights, "test2")
        m.wait_for(lambda: not m.listens(weights), 30)
    assert m.spooled(weights, folder=w.FOLDER) > 4 * w.MB
    done = weights.pyinfra("weights")
    assert done.rc == 0 and w.sums(weights, "test2") == w.sums(weights, "test1"), done.text
    assert m.megabytes(done.text, "came in an earlier run") > 4
    assert weights.changes("test2")[0]["status"] == "COMMITTED"
