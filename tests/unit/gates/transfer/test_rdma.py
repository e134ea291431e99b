"""Which ports NCCL would take, from the engine's environment; what is cabled: cases/fabric.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gates.gate_sets import check
from gates.transfer.rdma import Selector
from schema.desired.plan import Plan
from schema.inputs.load import plan as load_plan
from tests.unit.builders import snapshots as f
from tests.unit.builders.host_parts import HCAS, link, rdma_port
from tests.unit.builders.spark_rig import ROOT, host, spark_plan

PORTS = [*map(rdma_port, HCAS), rdma_port("rocep1s0f10")]
TWINS = "=rocep1s0f0,roceP2p1s0f0"


def found(*codes: str, seen: Any = None, plan: Plan | None = None, **environ: Any) -> list[Any]:
    """The findings of these codes on the head of a rig whose engine has this environment."""
    made = plan or spark_plan()
    specs = {name: replace(spec, environ=environ) for name, spec in made.specs.items()}
    changed = replace(made, specs=specs)
    rows = check(changed, seen or f.healthy(changed))
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
    seen = {n: f.put(s, "network.rdma", ()) for n, s in f.healthy(spark_plan()).items()}
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
    seen = f.healthy(spark_plan())
    seen["spark1"] = f.put(seen["spark1"], "network.rdma.2", rdma_port("rocep1s0f0", *addresses))
    rows = found(seen=seen, NCCL_IB_HCA="=rocep1s0f0", NCCL_IB_GID_INDEX=index)
    assert [v.code for v in rows] == (["rdma-gid"] if evidence else [])
    assert not evidence or evidence in rows[0].evidence


def test_a_fabric_of_link_local_addresses_is_one() -> None:
    """The automatic setup of NVIDIA's playbook; mark-ramsey-ri/vllm-dgx-spark issue 1 serves so."""
    hosts = {f"spark{n}": host(n, fabric_address=f"169.254.28.{n}") for n in (1, 2)}
    plan = load_plan(hosts, None, ROOT)
    seen = f.healthy(plan)
    assert found(seen=seen, plan=plan, NCCL_IB_HCA=TWINS) == []
    seen["spark1"] = f.put(seen["spark1"], "network.rdma", (rdma_port("rocep1s0f0", "10.9.9.9"),))
    seen["spark1"] = f.put(seen["spark1"], "network.links.+", link("x", addresses=("10.9.9.9/24",)))
    (foreign,) = found("rdma-address", seen=seen, plan=plan, NCCL_IB_HCA=TWINS)
    assert "10.9.9.0/24" in foreign.evidence
