"""weights between two booted hosts: what lacks, resumed after a kill, read again on request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

MB = 1_000_000
FOLDER = "/srv/models/tiny"
MOVE = "Move the weights"
# Files with a whole safetensors header: 8 bytes of length, the header, as many bytes as it says.
MAKE = """
import json, os
folder = "/srv/models/tiny"
os.makedirs(folder, exist_ok=True)
for number in (1, 2):
    data = os.urandom({size})
    header = json.dumps({{"w": {{"dtype": "U8", "shape": [{size}], "data_offsets": [0, {size}]}}}})
    raw = len(header).to_bytes(8, "little") + header.encode() + data
    open(f"{{folder}}/model-0000{{number}}.safetensors", "wb").write(raw)
open(f"{{folder}}/config.json", "w").write("{{}}")
"""


def sums(lab: Lab, host: str) -> str:
    """The sha256 of every visible file of the weights on a host."""
    return lab.ssh(host, f"cd {FOLDER} 2>/dev/null && sha256sum -- * 2>/dev/null || true")


def clear(lab: Lab) -> None:
    """No weights, no half-done transfer, no open change."""
    m.clear(lab)
    for host in lab.hosts:
        lab.ssh(host, f"sudo rm -rf {FOLDER}/* {FOLDER}/.rigbook")


@pytest.fixture
def weights(lab: Lab) -> Iterator[Lab]:
    """test1 has weights, test2 has none."""
    clear(lab)
    lab.ssh("test1", "sudo python3 -", stdin=MAKE.format(size=20 * MB))
    yield lab
    clear(lab)


def test_they_move_and_a_second_run_changes_nothing(weights: Lab) -> None:
    done = weights.pyinfra("weights")
    assert done.rc == 0 and done.counts(MOVE)[1] == "2", done.text
    assert sums(weights, "test2") == sums(weights, "test1") != ""
    assert weights.ssh("test2", f"stat -c '%U %a' {FOLDER}/config.json") == "rig 644"
    assert weights.changes("test2")[0]["status"] == "COMMITTED"
    again = weights.pyinfra("weights")
    assert again.rc == 0 and again.counts("Grand total")[1:] == ("-", "-", "5"), again.text


def test_a_killed_operator_leaves_no_half_file_and_the_next_run_goes_on(weights: Lab) -> None:
    with m.slow_fabric(weights, 40):
        started = m.start("weights")
        m.wait_for(lambda: m.spooled(weights, folder=FOLDER) > 4 * MB)
        m.kill(started)
        m.wait_for(lambda: not m.listens(weights), 20)
        m.wait_for(lambda: not m.at_work(weights, "test2"), 30)
        assert "safetensors" not in sums(weights, "test2")
        assert m.spooled(weights, folder=FOLDER) > 4 * MB
    done = weights.pyinfra("weights")
    assert done.rc == 0 and sums(weights, "test2") == sums(weights, "test1"), done.text
    assert m.megabytes(done.text, "came in an earlier run") > 4
    assert weights.changes("test2")[0]["status"] == "COMMITTED"
    assert len(weights.changes("test2")) == 1 or weights.changes("test2")[1]["status"] != "OPEN"


def test_a_cut_file_is_named_and_mended_from_the_whole_one(weights: Lab) -> None:
    assert weights.pyinfra("weights").rc == 0
    weights.ssh("test1", f"sudo truncate -s -1000 {FOLDER}/model-00001.safetensors")
    doctor = weights.pyinfra("doctor")
    assert "weights-cut" in doctor.text and "model-00001.safetensors" in doctor.text
    assert "deploys/weights.py --data from=test2" in doctor.text
    done = weights.pyinfra("weights")
    assert done.rc == 0 and sums(weights, "test1") == sums(weights, "test2"), done.text


def test_a_flipped_bit_is_found_by_full_hashes_and_named(weights: Lab) -> None:
    assert weights.pyinfra("weights").rc == 0
    flip = f"printf X | sudo dd of={FOLDER}/model-00002.safetensors bs=1 seek=9000000 conv=notrunc"
    weights.ssh("test2", flip)
    assert weights.pyinfra("weights").rc == 0, "the quick look does not read the middle of a file"
    found = weights.pyinfra("weights", "--data", "verify=true")
    assert found.rc == 1 and "model-00002.safetensors" in found.text and "test2" in found.text
    mended = weights.pyinfra("weights", "--data", "from=test1", "--data", "verify=true")
    assert sums(weights, "test1") == sums(weights, "test2"), mended.text
    assert weights.pyinfra("weights", "--data", "verify=true").rc == 0


def test_a_file_too_many_stays_until_prune(weights: Lab) -> None:
    assert weights.pyinfra("weights").rc == 0
    weights.ssh("test2", f"sudo touch {FOLDER}/old.bin")
    kept = weights.pyinfra("weights", "--data", "from=test1")
    assert "old.bin" in sums(weights, "test2") and "prune=true deletes it" in kept.text, kept.text
    assert weights.pyinfra("weights", "--data", "from=test1", "--data", "prune=true").rc == 0
    assert sums(weights, "test2") == sums(weights, "test1")
