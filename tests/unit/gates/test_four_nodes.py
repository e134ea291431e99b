"""A rig of four is gated as one: whole it is silent, and what is wrong is named where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gates.doctor.examine import examine
from gates.gate_sets import RESTARTING, check
from tests.unit.builders import snapshots as f
from tests.unit.builders.four_nodes import NAMES, four_plan
from tests.unit.builders.host_parts import link, rdma_port

USUAL = {"hca-two-ports", "image-latest", "privileged"}


def found(folder: Path, state: Any, *changes: tuple[str, str, Any], doctor: bool = False) -> Any:
    """The findings beyond the recipe's own warnings, as code@node."""
    made = four_plan(folder)
    seen = dict(state(made))
    for node, path, value in changes:
        seen[node] = f.put(seen[node], path, value)
    rows = examine(made, seen, None) if doctor else [
        *check(made, seen), *check(made, seen, RESTARTING)]  # fmt: skip
    return {f"{v.code}@{v.node}" for v in rows if v.code not in USUAL}


@pytest.mark.parametrize("doctor", [False, True])
def test_a_whole_rig_is_silent(tmp_path: Path, doctor: bool) -> None:
    assert found(tmp_path, f.serving, doctor=doctor) == set()


def test_a_rig_that_is_ready_is_silent(tmp_path: Path) -> None:
    assert found(tmp_path, f.healthy) == set()


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ([("spark3", "docker.images", ())], {"image-missing@spark3"}),
        ([("spark4", "weights.0.files.3.size", 7)], {"weights-differ@spark4"}),
        ([("spark2", "network.peers.2.full_size_ping", False)], {"fabric-ping@spark2"}),
        ([("spark4", "network.rdma", ())], {"rdma-missing@spark4"}),
        # a port of the third is in a network of its own
        ([("spark3", "network.rdma.2", rdma_port("rocep1s0f0", "10.7.0.3")),
          ("spark3", "network.links.+", link("enp1s0f0np1", addresses=("10.7.0.3/24",)))],
         {"rdma-address@spark3"}),
        # two of four are cabled with each other: NCCL may use that, other rails are for all
        ([(name, "network.rdma.3", rdma_port("rocep1s0f1", f"10.7.0.{n}"))
          for n, name in ((3, "spark3"), (4, "spark4"))]
         + [(name, "network.links.+", link("x", addresses=(f"10.7.0.{n}/24",)))
            for n, name in ((3, "spark3"), (4, "spark4"))], set()),
        ([("spark3", "network.rdma.2.rate_gbit", 100.0)], {"rdma-rate@spark3"}),
    ],
)  # fmt: skip
def test_what_is_wrong_on_one_is_named_there(
    tmp_path: Path, changes: list[tuple[str, str, Any]], wanted: set[str]
) -> None:
    assert found(tmp_path, f.healthy, *changes) == wanted


@pytest.mark.parametrize("lost", NAMES[1:])
def test_one_lost_worker_of_three_breaks_the_rig(tmp_path: Path, lost: str) -> None:
    """The rig's own peers tell it: the head's connections with that worker alone are gone."""
    number = NAMES.index(lost)
    made = four_plan(tmp_path)
    head: Any = f.serving(made)["spark1"].connections
    left = tuple(c for c in head if c.peer_address != f"10.0.0.{number + 1}")
    assert len(left) == len(head) - 2
    changes = (("spark1", "connections", left), (lost, "connections", ()))
    assert found(tmp_path, f.serving, *changes, doctor=True) == {"wedged-pair@spark1"}
