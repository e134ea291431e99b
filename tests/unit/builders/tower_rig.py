"""Data of a tower as pyinfra would merge it, its plan, and its healthy snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gates.core.check import GIB
from schema.desired.plan import UNIT, Plan
from schema.inputs.load import plan
from schema.observed.files import Venv
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.engine_parts import absent_file, told_secrets, weights, written_files
from tests.unit.builders.host_parts import discrete_gpu, port, process, unit
from tests.unit.builders.recorded import recorded
from tests.unit.builders.spark_rig import ROOT, spark_plan

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


def healthy(plan: Plan) -> dict[str, NodeSnapshot]:
    """The tower ready to serve: no docker, the venv and the weights there, no engine yet."""
    node = plan.rig.head
    base: Any = f.healthy(spark_plan())["spark1"]
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


def serving(plan: Plan) -> dict[str, NodeSnapshot]:
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
    seen: Any = healthy(plan)[node.name]
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
