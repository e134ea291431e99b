"""A twin of four Spark behind a switch, by an inventory made here: none of ours has four."""

from __future__ import annotations

import pprint
from pathlib import Path

from facts.endpoint import ask
from lab import rehearsal
from tests.system.rehearse.conftest import Twins
from tests.unit.builders.rigs import NAMES, host, recipe_over


def test_four_serve_as_one(twin_of: Twins, tmp_path: Path) -> None:
    chosen = recipe_over(tmp_path, "deepseek-v4-flash")
    hosts = [
        (name, host(number, rank=number - 1, **chosen)) for number, name in enumerate(NAMES, 1)
    ]
    inventory = tmp_path / "four.py"
    inventory.write_text(f"spark = {pprint.pformat(hosts)}\n")
    with twin_of(str(inventory)) as (lab, twin):
        assert twin.names == NAMES
        answer = ask(rehearsal.endpoint(twin), 60)
        assert answer.ok and answer.text.strip(), answer.detail
        for name in NAMES:
            assert lab.ssh(name, "pgrep -fc '^VLLM::Worker'") == "1"
        found = rehearsal.doctor(twin)
        assert [row for row in found if row["severity"] == "block"] == []
