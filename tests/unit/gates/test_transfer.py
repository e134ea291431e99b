"""Who gives and who takes an image or weights, and what a transfer asks the nodes before.

What stands in the way of one: cases/transfer.yaml.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gates.core import GIB
from gates.fabric import Selector
from gates.gate_sets import check
from gates.transfer import (
    TransferRequest,
    images,
    source_of,
    targets_of,
    weights_gates,
    weights_source,
    with_route_probe,
)
from gates.weights import weights_mounted
from schema.load import plan as load_plan
from schema.plan import Plan
from schema.snapshot import NodeSnapshot
from tests.unit.builders import engine_parts, rigs
from tests.unit.builders.host_parts import HCAS, link, rdma_port
from tests.unit.builders.rigs import ROOT, changed, host, project, put, spark_plan

# Which ports NCCL would take, from the engine's environment; what is cabled: cases/fabric.yaml.

PORTS = [*map(rdma_port, HCAS), rdma_port("rocep1s0f10")]
TWINS = "=rocep1s0f0,roceP2p1s0f0"


def found(*codes: str, seen: Any = None, plan: Plan | None = None, **environ: Any) -> list[Any]:
    """The findings of these codes on the head of a rig whose engine has this environment."""
    made = plan or spark_plan()
    specs = {name: replace(spec, environ=environ) for name, spec in made.specs.items()}
    changed = replace(made, specs=specs)
    rows = check(changed, seen or rigs.healthy(changed))
    return [v for v in rows if v.code.startswith(codes or ("rdma-",)) and v.node == "spark1"]


# The words of NCCL's manual, and the values of MiaAI-Lab DSpark PR 95 (`roce`) and ainode PR 89.
@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("roce", [0, 1, 2, 3, 4]),
        ("rocep1s0f0,roceP2p1s0f0", [0, 2]),
        ("rocep1s0f1", [3, 4]),
        ("=rocep1s0f1", [3]),
        ("=rocep1s0f1:1", [3]),
        ("=rocep1s0f1:2", []),
        ("^rocep1s0f1", [0, 1, 2]),
        ("^=rocep1s0f1", [0, 1, 2, 4]),
        ("mlx5_0", []),
    ],
)
def test_which_ports_a_value_means(value: str, taken: list[int]) -> None:
    chosen = Selector.of({"NCCL_IB_HCA": value}).chosen(PORTS)
    assert [PORTS.index(port) for port in chosen] == taken


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ("rocep1s0f0,rocep1s0f1", True),
        ("=rocep1s0f0:1,rocep1s0f1:1", True),
        ("^rocep1s0f0,rocep1s0f1", False),
        ("rocep1s0f0,roceP2p1s0f0", False),
        ("rocep1s0f0", False),
        ("rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1", False),
        ("mlx5_0,mlx5_1", False),
    ],
)
def test_hca_two_ports(value: str, warned: bool) -> None:
    assert bool(found("hca-two-ports", NCCL_IB_HCA=value)) is warned


@pytest.mark.parametrize(
    ("environ", "codes"),
    [
        ({"NCCL_IB_HCA": TWINS}, ["rdma-missing"]),
        ({"NCCL_IB_HCA": TWINS, "NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}, ["rdma-missing"]),
        ({"NCCL_IB_HCA": TWINS, "NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_IB_HCA": TWINS, "NCCL_NET": "Socket"}, []),
        ({}, []),
    ],
)
def test_only_an_engine_that_names_ports_has_to_find_them(
    environ: dict[str, Any], codes: list[str]
) -> None:
    seen = {n: rigs.put(s, "network.rdma", ()) for n, s in rigs.healthy(spark_plan()).items()}
    assert [v.code for v in found(seen=seen, **environ)] == codes


def test_a_container_without_the_devices_uses_tcp() -> None:
    """vllm PR 42075: NCCL falls back without a word."""
    plan = spark_plan()
    assert plan.recipe.container is not None
    box = plan.recipe.container.model_copy(update={"privileged": False})
    bare = replace(plan, recipe=plan.recipe.model_copy(update={"container": box}))
    (missing,) = found(plan=bare, NCCL_IB_HCA=TWINS)
    assert missing.code == "rdma-missing" and "/dev/infiniband" in missing.summary


@pytest.mark.parametrize(
    ("index", "addresses", "evidence"),
    [
        ("3", ["10.0.0.1"], None),
        ("-1", ["10.0.0.1"], None),
        ("4", ["10.0.0.1"], "row 4: empty; rows with an address: 3"),
        ("3", ["169.254.3.3", "10.0.0.1"], "row 3: ::ffff:169.254.3.3 RoCE v2; rows with an addr"),
    ],
)
def test_a_fixed_row_of_the_gid_table(
    index: str, addresses: list[str], evidence: str | None
) -> None:
    seen = rigs.healthy(spark_plan())
    seen["spark1"] = rigs.put(seen["spark1"], "network.rdma.2", rdma_port("rocep1s0f0", *addresses))
    rows = found(seen=seen, NCCL_IB_HCA="=rocep1s0f0", NCCL_IB_GID_INDEX=index)
    assert [v.code for v in rows] == (["rdma-gid"] if evidence else [])
    assert not evidence or evidence in rows[0].evidence


def test_a_fabric_of_link_local_addresses_is_one() -> None:
    """The automatic setup of NVIDIA's playbook; mark-ramsey-ri/vllm-dgx-spark issue 1 serves so."""
    hosts = {f"spark{n}": host(n, fabric_address=f"169.254.28.{n}") for n in (1, 2)}
    plan = load_plan(hosts, None, ROOT)
    seen = rigs.healthy(plan)
    assert found(seen=seen, plan=plan, NCCL_IB_HCA=TWINS) == []
    seen["spark1"] = rigs.put(
        seen["spark1"], "network.rdma", (rdma_port("rocep1s0f0", "10.9.9.9"),)
    )
    seen["spark1"] = rigs.put(
        seen["spark1"], "network.links.+", link("x", addresses=("10.9.9.9/24",))
    )
    (foreign,) = found("rdma-address", seen=seen, plan=plan, NCCL_IB_HCA=TWINS)
    assert "10.9.9.0/24" in foreign.evidence


HEAD, WORKER = "spark1", "spark2"
PORT = 29680
PLAN = spark_plan()
OTHER_BUILD = engine_parts.image(PLAN).model_copy(
    update={"digests": (), "layers": ("sha256:" + "9" * 64,)}
)


def rig(*changes: tuple[str, str, Any]) -> dict[str, NodeSnapshot]:
    """The healthy rig with (node, path, value) replaced."""
    seen = dict(rigs.healthy(PLAN))
    for node, path, value in changes:
        seen[node] = rigs.put(seen[node], path, value)
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
        (((HEAD, "weights.0.files.0.magic", engine_parts.LFS_POINTER),), WORKER),
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
    probed = with_route_probe(load_plan(hosts, None, ROOT), PORT, ())
    rows = {name: request.reach for name, request in probed.requests.items()}
    assert {n: r.device for n, (r,) in rows.items()} == {HEAD: "bond0", WORKER: "enp1s0f1np1"}


def test_room_for_weights_is_what_lacks() -> None:
    seen = rig((WORKER, "weights.0.exists", False), (WORKER, "weights.0.files", ()))
    size = sum(x.size for x in engine_parts.weights(PLAN, PLAN.rig.head).files)

    def found(plan: Plan, free: int) -> list[str]:
        worker = rigs.put(seen[WORKER], "disks.0.free", free)
        gates = weights_gates(TransferRequest(weights_source(plan, seen, None), PORT))
        rows = check(plan, {**seen, WORKER: worker}, gates)
        return [v.remedy for v in rows if v.code == "transfer-room" and v.severity == "block"]

    assert found(PLAN, size + GIB) == []
    (remedy,) = found(PLAN, size)
    assert "docker" not in remedy


# A snapshot of a Hugging Face cache needs the blobs beside it, in the container as well.

HUB = "~/.cache/huggingface"
MODEL = f"{HUB}/hub/models--deepseek-ai--DeepSeek-V4-Flash"
SNAPSHOT = f"{MODEL}/snapshots/0f1e2d3c"


@pytest.mark.parametrize(
    ("path", "mounted", "linked", "found"),
    [
        (SNAPSHOT, SNAPSHOT, 48, True),
        (SNAPSHOT, f"{MODEL}/snapshots", 48, True),
        (MODEL, SNAPSHOT, 48, True),
        (SNAPSHOT, MODEL, 48, False),
        (MODEL, HUB, 48, False),
        # plain files, as a move between nodes brings them
        (SNAPSHOT, SNAPSHOT, 0, False),
        # another model's
        (SNAPSHOT, f"{HUB}/hub/models--org--other/snapshots", 48, False),
    ],
)
def test_links_lead_to_what_is_mounted(
    tmp_path: Path, path: str, mounted: str, linked: int, found: bool
) -> None:
    edit = changed(("weights", "path"), path)
    edit["container"]["volumes"] = [{"source": mounted, "target": "/models"}]
    plan = spark_plan(project(tmp_path, edit), recipe="broken")
    seen = dict(rigs.healthy(plan))
    home = plan.rig.head.home
    for name in seen:
        seen[name] = put(seen[name], "weights.0.folder", SNAPSHOT.replace("~", home))
        seen[name] = put(seen[name], "weights.0.linked", linked)
    said = weights_mounted(plan, seen)
    assert [v.node for v in said] == (list(seen) if found else [])
    for v in said:
        assert f"links into {MODEL.replace('~', home)}/blobs" in v.evidence
        assert "catalog/recipes/broken.yaml" in v.remedy
