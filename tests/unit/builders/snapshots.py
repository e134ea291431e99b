"""A healthy rig of two DGX Spark as its snapshots would show it, and one way to break a value."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel

from gates.core.check import GIB
from gates.core.violation import Violation
from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import Docker
from schema.observed.machine import Gpus
from schema.observed.network import Network, PeerProbe, Reach
from schema.observed.snapshot import NodeSnapshot
from tests.unit.builders.engine_parts import (
    absent_file,
    container,
    image,
    image_files,
    told_secrets,
    warm_caches,
    weights,
    written_files,
)
from tests.unit.builders.host_parts import (
    HCAS,
    NOW,
    OURS,
    SLAVES,
    absent_unit,
    disk,
    gb10,
    joined,
    link,
    pair_timer,
    port,
    process,
    rdma_port,
    unit,
)
from tests.unit.builders.recorded import recorded
from tests.unit.builders.spark_rig import spark_plan


def put(value: Any, path: str, new: Any) -> Any:
    """`value` with the part at `path` (such as `docker.images.0.arch`) replaced by `new`.

    `+` stands for one more of a list, `-` for the index that is to be left out, `=TEXT` for each
    word of that text, which `new` replaces or, empty, leaves out.
    """
    if not path:
        return tuple(new) if isinstance(new, list) else new
    first, _, rest = path.partition(".")
    if isinstance(value, BaseModel):
        return value.model_copy(update={first: put(getattr(value, first), rest, new)})
    if isinstance(value, dict):
        return {**value, first: put(value.get(first), rest, new)}
    if first == "+":
        return (*value, new)
    if first.startswith("="):
        words = (new if word == first[1:] else word for word in value)
        return tuple(word for word in words if word)
    items = list(value)
    if first == "-":
        del items[new]
        return tuple(items)
    items[int(first)] = put(items[int(first)], rest, new)
    return tuple(items)


def healthy(plan: Plan) -> dict[str, NodeSnapshot]:
    """Both nodes ready to serve: the image and the weights there, no engine yet."""
    return {node.name: _node(plan, node) for node in plan.rig.nodes}


def serving(plan: Plan) -> dict[str, NodeSnapshot]:
    """Both nodes with the plan's engine running under our unit."""
    return {node.name: _running(plan, node) for node in plan.rig.nodes}


def _node(plan: Plan, node: Node) -> NodeSnapshot:
    peers = [other for other in plan.rig.nodes if other.name != node.name]
    identity = {
        "hostname": node.name,
        "machine_id": hashlib.md5(node.name.encode()).hexdigest(),
        "clock_unix_s": NOW + node.rank * 0.2,
    }
    links = (
        link("bond0", kind="bond", addresses=(f"{node.fabric_address}/24",), slaves=SLAVES),
        *(link(name, master="bond0") for name in SLAVES),
        link("eth0", mtu=1500, addresses=(f"{node.lan_address}/24",)),
    )
    probes = [
        PeerProbe(
            address=str(peer.fabric_address),
            route_device="bond0",
            route_source=str(node.fabric_address),
            full_size_ping=True,
            detail="8972 bytes unfragmented through bond0",
        )
        for peer in peers
    ]
    reach = [
        Reach(
            address=str(address),
            port=29680,
            device=device,
            state="refused",
            detail="nobody listens there",
        )
        for peer in peers
        for address, device in ((peer.fabric_address, "bond0"), (peer.lan_address, None))
    ]
    values = recorded(
        "spark",
        identity={**recorded("spark")["identity"], **identity},
        gpus=Gpus(stand_in=False, driver_version="580.95.05", gpus=(gb10(node),), processes=()),
        network=Network(
            links=links,
            rdma=tuple(rdma_port(name, str(node.fabric_address)) for name in HCAS),
            peers=tuple(probes),
            reach=tuple(reach),
        ),
        ports=(port(22),),
        docker=Docker(
            version="28.3.3",
            storage_driver="overlay2",
            root="/var/lib/docker",
            images=(image(plan),),
            containers=(),
            runtimes=("io.containerd.runc.v2", "runc"),
            default_runtime="runc",
            gpu_hooks=("nvidia-container-runtime-hook", "nvidia-cdi-hook"),
        ),
        units=(absent_unit(),),
        files=(
            *(absent_file(document.path) for document in plan.documents[node.name]),
            *warm_caches(plan, node),
        ),
        weights=(weights(plan, node),),
        image_files=image_files(plan),
        disks=tuple(disk(path) for path in plan.requests[node.name].disks),
    )
    return NodeSnapshot(**values)


def _running(plan: Plan, node: Node) -> NodeSnapshot:
    spec = plan.specs[node.name]
    live = {name: value for name, value in spec.environ.items() if name.startswith("VLLM_")}
    live |= told_secrets(plan, node)
    argv = ("/usr/bin/python3", "/usr/local/bin/vllm", *spec.argv[1:])
    processes = (
        process(910, *argv, environ=live, ppid=902),
        process(955, "VLLM::EngineCore", ppid=910),
        process(990, f"VLLM::Worker_TP{node.rank}", ppid=955),
    )
    held = {"container_id": OURS, "unit": None, "process": "vllm", "pid": 910}
    ports = [port(22)]
    if node.role == "head":
        ports += [port(8000, **held), port(29501, **held)]
    seen: Any = _node(plan, node)
    seen = put(seen, "engine_processes", processes)
    seen = put(seen, "ports", tuple(ports))
    seen = put(seen, "connections", joined(plan, node))
    seen = put(seen, "docker.containers", (container(plan, node),))
    seen = put(seen, "units", (unit(), pair_timer()))
    seen = put(seen, "files", written_files(plan, node))
    seen = put(seen, "memory.available", 9 * GIB)
    assert isinstance(seen, NodeSnapshot)
    return seen


def beyond_usual(plan: Plan, seen: Any, usual: Any = None) -> list[Violation]:
    """The findings that a healthy rig of the spark recipe does not have."""
    expected = check(spark_plan(), usual or healthy(plan))
    return [found for found in check(plan, seen) if found not in expected]
