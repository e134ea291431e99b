"""Data of a two-node rig as pyinfra would merge it, and recipes to break, for the unit tests."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from gates.core import GIB, Violation
from gates.gate_sets import check
from schema.load import plan
from schema.plan import UNIT, Node, Plan
from schema.snapshot import Docker, Gpus, Network, NodeSnapshot, PeerProbe, Reach, Unreadable, Venv
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
    OUR_PROCESSES,
    SLAVES,
    absent_unit,
    discrete_gpu,
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

ROOT = Path(__file__).resolve().parents[3]


def host(number: int, **changes: object) -> dict[str, object]:
    """Host `number`'s merged data (1 is the head); a change to `...` leaves the key out."""
    data: dict[str, object] = {
        "ssh_hostname": f"192.168.1.1{number}",
        "role": "head" if number == 1 else "worker",
        "lan_address": f"192.168.1.1{number}",
        "fabric_address": f"10.0.0.{number}",
        "fabric_device": "bond0",
        "ssh_user": "milo",
        "rig": "spark",
        "recipe": "deepseek-v4-flash",
        **changes,
    }
    return {key: value for key, value in data.items() if value is not ...}


def spark_plan(root: Path = ROOT, **changes: object) -> Plan:
    """The plan of spark1 and spark2, with the same changes on both."""
    return plan({"spark1": host(1, **changes), "spark2": host(2, **changes)}, None, root)


def tiny() -> dict[str, Any]:
    """The tiny recipe as plain data, to be changed by a test."""
    data: dict[str, Any] = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    return copy.deepcopy(data)


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The tiny recipe with the value at `path` replaced."""
    data = tiny()
    inner: Any = data
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return data


def project(folder: Path, text: str | dict[str, Any], name: str = "broken") -> Path:
    """A project's root below `folder` whose only recipe is `text` (or plain data)."""
    recipes = folder / "catalog" / "recipes"
    recipes.mkdir(parents=True)
    body = text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False)
    (recipes / f"{name}.yaml").write_text(body)
    return folder


# A rig of four behind a switch: its recipe, made of a recipe for two, and its hosts' data.

NAMES = ("spark1", "spark2", "spark3", "spark4")


def recipe_over(folder: Path, of: str, nodes: int = 4) -> dict[str, object]:
    """Writes the recipe `many`, like `of` over so many nodes; gives the keys that choose it."""
    data: dict[str, Any] = yaml.safe_load((ROOT / f"catalog/recipes/{of}.yaml").read_text())
    data["multi_node"]["nnodes"] = data["vllm_serve"]["tensor_parallel_size"] = nodes
    folder.mkdir(exist_ok=True)
    (folder / "many.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return {"recipe": "many", "recipes_dir": [str(folder)]}


def four_plan(folder: Path, of: str = "deepseek-v4-flash", **changes: dict[str, object]) -> Plan:
    """The plan of spark1 to spark4; `changes` by the host's name."""
    chosen = recipe_over(folder, of)
    hosts = {
        name: host(number, rank=number - 1, **{**chosen, **changes.get(name, {})})
        for number, name in enumerate(NAMES, 1)
    }
    return plan(hosts, None, ROOT)


# A healthy rig of two DGX Spark as its snapshots would show it, and one way to break a value.


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
    held = {"container_id": OUR_PROCESSES, "unit": None, "process": "vllm", "pid": 910}
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


# Data of a tower as pyinfra would merge it, its plan, and its healthy snapshots.

TOWER = "tower1"
VENV, TARGET = recorded("venv")["path"], recorded("venv")["target"]
# A process of our unit, in no container.
OWN: dict[str, Any] = {"container_id": None, "unit": UNIT, "cgroup": f"/system.slice/{UNIT}"}


def tower_data(**changes: object) -> dict[str, object]:
    """The tower's merged data; a change to `...` leaves the key out."""
    data: dict[str, object] = {
        "ssh_hostname": "192.168.1.21",
        "role": "head",
        "lan_address": "192.168.1.21",
        "ssh_user": "milo",
        "rig": "tower",
        "recipe": "tiny-venv",
        **changes,
    }
    return {key: value for key, value in data.items() if value is not ...}


def tower_plan(root: Path = ROOT, name: str = TOWER, **changes: object) -> Plan:
    """The plan of the tower."""
    return plan({name: tower_data(**changes)}, None, root)


def venv(**changes: Any) -> Venv:
    """A venv with every piece in place."""
    return Venv(**recorded("venv", **changes))


def healthy_tower(plan: Plan) -> dict[str, NodeSnapshot]:
    """The tower ready to serve: no docker, the venv and the weights there, no engine yet."""
    node = plan.rig.head
    base: Any = healthy(spark_plan())["spark1"]
    network = base.network.model_copy(update={"peers": (), "links": base.network.links[3:]})
    disk = base.disks[0]
    gpus = base.gpus.model_copy(update={"gpus": tuple(discrete_gpu(n, 16311) for n in (0, 1))})
    seen = base.model_copy(
        update={
            "identity": base.identity.model_copy(update={"hostname": node.name, "arch": "x86_64"}),
            "gpus": gpus,
            "network": network,
            "docker": Unreadable(unreadable="no /var/run/docker.sock"),
            "files": tuple(absent_file(document.path) for document in plan.documents[node.name]),
            "weights": (weights(plan, node),),
            "image_files": (),
            "venvs": (venv(user=plan.specs[node.name].user, path=plan.specs[node.name].venv),),
            "disks": tuple(
                disk.model_copy(update={"path": path}) for path in plan.requests[node.name].disks
            ),
        }
    )
    return {node.name: seen}


def serving_tower(plan: Plan) -> dict[str, NodeSnapshot]:
    """The tower with the plan's engine running under our unit."""
    node = plan.rig.head
    spec = plan.specs[node.name]
    live = {name: value for name, value in spec.environ.items() if name.startswith("VLLM_")}
    live |= told_secrets(plan, node)
    live |= {n: v for n, v in spec.environ.items() if n.startswith(("TORCH", "OMP_", "HF_", "TRA"))}
    processes = (
        process(910, f"{TARGET}/bin/python", *spec.argv, environ=live, **OWN),
        process(955, "VLLM::EngineCore", ppid=910, **OWN),
        process(990, "VLLM::Worker_TP0", ppid=955, **OWN),
        process(991, "VLLM::Worker_TP1", ppid=955, **OWN),
    )
    held = {"unit": UNIT, "process": "vllm", "pid": 910}
    seen: Any = healthy_tower(plan)[node.name]
    seen = seen.model_copy(
        update={
            "engine_processes": processes,
            "ports": (port(22), port(8000, **held)),
            "units": (unit(exec_start=("/etc/rigbook/engine/serve.sh",), main_pid=910),),
            "files": written_files(plan, node),
            "memory": seen.memory.model_copy(update={"available": 9 * GIB}),
        }
    )
    return {node.name: seen}
