"""A rig of four renders as one: each node with its rank, its peers and its own cable."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.builders.four_nodes import NAMES, four_plan

HEAD, *WORKERS = NAMES


def test_each_node_has_its_rank_and_all_meet_at_the_head(tmp_path: Path) -> None:
    made = four_plan(tmp_path, spark3={"fabric_device": "enp1s0f1np1", "hcas": "rocep1s0f1"})
    for rank, name in enumerate(NAMES):
        argv, environ = made.specs[name].argv, made.specs[name].environ
        assert argv[argv.index("--nnodes") + 1] == "4"
        assert argv[argv.index("--node-rank") + 1] == str(rank)
        assert argv[argv.index("--master-addr") + 1] == "10.0.0.1"
        assert ("--headless" in argv) is (name != HEAD)
        device = "enp1s0f1np1" if name == "spark3" else "bond0"
        assert environ["NCCL_SOCKET_IFNAME"] == environ["GLOO_SOCKET_IFNAME"] == device
        assert (environ["NCCL_IB_HCA"] == "=rocep1s0f1") is (name == "spark3")
        others = [f"10.0.0.{n}" for n in range(1, 5) if n != rank + 1]
        (text,) = [d.content for d in made.documents[name] if d.path.endswith("node.json")]
        written = json.loads(text)
        assert (written["rank"], written["peers"]) == (rank, others)
        assert written["memory"]["gpus"] == 1
        assert list(made.requests[name].peers) == others
        assert len(made.requests[name].connections) == 6
