"""Who gives and who takes an image or weights, and what a transfer asks the nodes before.

What stands in the way of one: cases/transfer.yaml.
"""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.gate_sets import check
from gates.transfer.image import images, source_of, targets_of
from gates.transfer.route import TransferRequest, with_route_probe
from gates.transfer.weights import weights_gates, weights_source
from schema.desired.plan import Plan
from schema.inputs.load import plan
from schema.observed.snapshot import NodeSnapshot
from tests.unit.builders import engine_parts as e
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import ROOT, host, spark_plan

HEAD, WORKER = "spark1", "spark2"
PORT = 29680
PLAN = spark_plan()
OTHER_BUILD = e.image(PLAN).model_copy(update={"digests": (), "layers": ("sha256:" + "9" * 64,)})


def rig(*changes: tuple[str, str, Any]) -> dict[str, NodeSnapshot]:
    """The healthy rig with (node, path, value) replaced."""
    seen = dict(f.healthy(PLAN))
    for node, path, value in changes:
        seen[node] = f.put(seen[node], path, value)
    return seen


@pytest.mark.parametrize(
    ("changes", "chosen", "gives", "take"),
    [
        ((), None, HEAD, ()),
        (((HEAD, "docker.images", ()),), None, WORKER, (HEAD,)),
        (((WORKER, "docker.images.0", OTHER_BUILD),), WORKER, WORKER, (HEAD,)),
    ],
)
def test_who_gives_an_image_to_whom(
    changes: Any, chosen: str | None, gives: str, take: tuple[str, ...]
) -> None:
    found = images(PLAN, rig(*changes))
    assert source_of(found, chosen) == gives and targets_of(found, gives) == take


@pytest.mark.parametrize(
    ("changes", "gives"),
    [
        (((HEAD, "weights.0.files.5.header_says", 10),), WORKER),
        (((HEAD, "weights.0.files.5.broken", "cut off in its header, at byte 9 of 12"),), WORKER),
        (((HEAD, "weights.0.files.0.magic", e.LFS_POINTER),), WORKER),
        (((HEAD, "weights.0.exists", False), (HEAD, "weights.0.files", ())), WORKER),
        (((WORKER, "weights.0.files.3.size", 7),), None),
    ],
)
def test_who_gives_weights(changes: Any, gives: str | None) -> None:
    """A node with a bad file is no giver; of two that differ and are whole nobody is."""
    assert weights_source(PLAN, rig(*changes), None) == gives


def test_each_node_tries_the_ways_that_a_transfer_may_take() -> None:
    fabric, lan = PLAN.rig.head.fabric_address, PLAN.rig.head.lan_address
    rows = with_route_probe(PLAN, 29700, ()).requests[WORKER].reach
    assert [(r.address, r.port, r.device) for r in rows] == [(str(fabric), 29700, "bond0")]
    rows = with_route_probe(PLAN, PORT, ("fabric-down",)).requests[WORKER].reach
    assert [(r.address, r.device) for r in rows] == [(str(fabric), "bond0"), (str(lan), None)]


def test_each_node_goes_out_of_its_own_device() -> None:
    hosts = {HEAD: host(1), WORKER: host(2, fabric_device="enp1s0f1np1")}
    probed = with_route_probe(plan(hosts, None, ROOT), PORT, ())
    rows = {name: request.reach for name, request in probed.requests.items()}
    assert {n: r.device for n, (r,) in rows.items()} == {HEAD: "bond0", WORKER: "enp1s0f1np1"}


def test_room_for_weights_is_what_lacks() -> None:
    seen = rig((WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ()))
    size = sum(x.size for x in e.weights(PLAN, PLAN.rig.head).files)

    def found(plan: Plan, free: int) -> list[str]:
        worker = f.put(seen[WORKER], "disks.0.free", free)
        gates = weights_gates(TransferRequest(weights_source(plan, seen, None), PORT))
        rows = check(plan, {**seen, WORKER: worker}, gates)
        return [v.remedy for v in rows if v.code == "transfer-room" and v.severity == "block"]

    assert found(PLAN, size + GIB) == []
    (remedy,) = found(PLAN, size)
    assert "docker" not in remedy
