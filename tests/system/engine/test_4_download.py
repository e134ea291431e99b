"""The first download with the hub's real client, in the engine's real image; the hub is a double on
loopback of the node that downloads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.system.rehearsal import ROOT, Lab
from tests.unit.node.support import hub_double

PORT, TOKEN = 18090, "T0K-9a8b7c"
MODEL = "/srv/fetched/models--org--tiny"
SNAPSHOT = f"{MODEL}/snapshots/{hub_double.COMMIT}"
# A shard with a whole safetensors header, and files that are not in LFS.
DRIVER = f"""
import os, time
data = os.urandom(30_000_000)
head = json.dumps({{"w": {{"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}}})
shard = len(head).to_bytes(8, "little") + head.encode() + data
files = {{"model-00001-of-00001.safetensors": shard, "config.json": b"{{}}", "sub/a.json": b"[]",
         "pytorch_model.bin": b"x" * 1000}}
open("/tmp/hub.pid", "w").write(str(os.getpid()))
with hub(files, {TOKEN!r}, {PORT}):
    time.sleep(900)
"""


@pytest.fixture
def chosen(lab: Lab, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A recipe whose hub is the double on test1, as --data; the double is ended afterwards."""
    made = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    made["weights"].update(path=MODEL, source="org/tiny")
    made["env"]["HF_ENDPOINT"] = f"http://127.0.0.1:{PORT}"
    made["secrets"] = {"HF_TOKEN": {"file": str(tmp_path / "token")}}
    (tmp_path / "fetched.yaml").write_text(yaml.safe_dump(made))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    source = Path(str(hub_double.__file__)).read_text() + DRIVER
    lab.ssh("test1", "cat > /tmp/hub_double.py", stdin=source)
    start = "setsid -f python3 /tmp/hub_double.py </dev/null >/tmp/hub.log 2>&1"
    lab.ssh("test1", start)
    for _ in range(50):
        if lab.ssh("test1", "cat /tmp/hub.pid 2>/dev/null || true"):
            break
        time.sleep(0.1)
    yield ("--data", "recipe=fetched", "--data", f"recipes_dir={tmp_path}")
    lab.ssh("test1", "kill $(cat /tmp/hub.pid); rm -f /tmp/hub.pid")
    for host in lab.hosts:
        lab.ssh(host, "sudo rm -rf /srv/fetched")


def test_a_model_comes_from_the_hub_onto_one_node_and_to_the_other(
    lab: Lab, chosen: tuple[str, ...]
) -> None:
    wanted = ("--data", "download=org/tiny@main")
    done = lab.pyinfra("weights", *chosen, *wanted)
    assert done.rc == 0, done.text
    assert f"is commit {hub_double.COMMIT}: 3 files" in done.text and "1 others" in done.text
    assert "each as the hub says" in done.text and TOKEN not in done.text
    print(f"REPLAY a download of 30 MB and its move took {done.seconds:.0f} s")
    listed = {h: lab.ssh(h, f"cd {SNAPSHOT} && sha256sum -- *.* sub/*") for h in lab.hosts}
    assert listed["test1"] == listed["test2"] and listed["test1"].count("\n") == 2
    for host in lab.hosts:
        assert lab.ssh(host, f"cat {MODEL}/refs/main") == hub_double.COMMIT
        assert lab.ssh(host, f"stat -c %U {SNAPSHOT}/config.json") == "rig"
        assert lab.changes(host)[0]["status"] == "COMMITTED"
    assert not lab.ssh("test1", "sudo docker ps -aq --filter name=rigbook-download")
    again = lab.pyinfra("weights", *chosen, *wanted)
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text
    assert not lab.ssh("test1", f"sudo grep -rl {TOKEN} /var/lib/rigbook || true")
