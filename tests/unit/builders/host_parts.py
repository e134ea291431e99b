"""Parts of a healthy host's snapshot; keywords change a part."""

from __future__ import annotations

from typing import Any

from schema.desired.plan import CONTAINER, PAIR_TIMER, UNIT, Plan
from schema.desired.rig import Node
from schema.observed.files import ChangeSummary
from schema.observed.machine import EngineProcess, Gpu
from schema.observed.network import Connection, Link, Port
from schema.observed.units import Unit

NOW = 1_780_000_000.0
BOOT = "5d1f5f0e-0000-4000-8000-000000000001"
OURS = "c0ffee" + "0" * 58
SLAVES = ("enP2p1s0f0np0", "enp1s0f0np0")


def link(name: str, **changes: Any) -> Link:
    """A link that is up at MTU 9000."""
    values: dict[str, Any] = {
        "kind": None,
        "state": "UP",
        "carrier": True,
        "mtu": 9000,
        "mac": None,
        "addresses": (),
        "speed_mbit": 100_000,
        "master": None,
        "slaves": (),
        "bond_slaves_down": (),
    }
    return Link(name=name, **{**values, **changes})


def process(pid: int, *argv: str, **changes: Any) -> EngineProcess:
    """An engine process of our container."""
    values: dict[str, Any] = {
        "ppid": 1,
        "start_ticks": 1000 + pid,
        "uid": 0,
        "comm": argv[0][:15],
        "argv": argv,
        "exe": "/usr/bin/python3.12",
        "cgroup": f"/system.slice/docker-{OURS}.scope",
        "unit": None,
        "container_id": OURS,
        "environ": {},
        "rss": 512 * 1024**2,
    }
    return EngineProcess(pid=pid, **{**values, **changes})


def port(number: int, **changes: Any) -> Port:
    """A listening port, held by sshd unless told otherwise."""
    values: dict[str, Any] = {
        "address": "0.0.0.0",
        "pid": 700,
        "process": "sshd",
        "unit": "ssh.service",
        "container_id": None,
    }
    return Port(port=number, **{**values, **changes})


def joined(plan: Plan, node: Node) -> tuple[Connection, ...]:
    """The connections of a node's rank with the others: the rendezvous, and one for data."""
    master = plan.recipe.multi_node.master_port if plan.recipe.multi_node else 0
    others = [other for other in plan.rig.nodes if node.role != other.role]
    return tuple(
        connection(
            str(node.fabric_address),
            local if node.role == "head" else 40000 + local % 1000,
            str(other.fabric_address),
            40000 + local % 1000 if node.role == "head" else local,
        )
        for other in others
        for local in (master, 45200)
    )


def connection(local: str, port: int, peer: str, peer_port: int, **changes: Any) -> Connection:
    """An established connection of our container's."""
    values: dict[str, Any] = {"pid": 990, "process": "VLLM::Worker_TP", "container_id": OURS}
    return Connection(
        local_address=local,
        local_port=port,
        peer_address=peer,
        peer_port=peer_port,
        **{**values, **changes},
    )


def unit(**changes: Any) -> Unit:
    """Our unit, installed, enabled and active."""
    values: dict[str, Any] = {
        "name": UNIT,
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "enabled": "enabled",
        "fragment": f"/etc/systemd/system/{UNIT}",
        "drop_ins": (),
        "exec_start": ("/usr/bin/docker", "run", "--name", CONTAINER),
        "exec_start_exists": True,
        "restart": "always",
        "restarts": 0,
        "result": "success",
        "exit_status": 0,
        "main_pid": 900,
        "since_unix_s": NOW - 600,
        "needs_reload": False,
        "last_log_line": None,
    }
    return Unit(**{**values, **changes})


def pair_timer(**changes: Any) -> Unit:
    """The timer of the pair check, enabled and waiting."""
    values: dict[str, Any] = {
        "name": PAIR_TIMER,
        "sub_state": "waiting",
        "fragment": f"/etc/systemd/system/{PAIR_TIMER}",
        "exec_start": (),
        "exec_start_exists": None,
        "restart": "no",
        "main_pid": None,
    }
    return unit(**{**values, **changes})


def absent_unit() -> Unit:
    """Our unit where it was never installed."""
    return unit(
        load_state="not-found",
        active_state="inactive",
        sub_state="dead",
        enabled="",
        fragment=None,
        exec_start=(),
        exec_start_exists=None,
        main_pid=None,
        since_unix_s=None,
    )


def change(status: str, **changes: Any) -> ChangeSummary:
    """A change of the journal."""
    values: dict[str, Any] = {
        "id": "20260530T065800-serve-1a2b",
        "deploy": "serve",
        "opened_unix_s": NOW - 3600,
        "closed_unix_s": None,
        "operator": "milo@forge",
        "boot_id": BOOT,
        "steps": ("file /etc/rigbook/engine/serve.sh",),
        "reason": None,
    }
    return ChangeSummary(status=status, **{**values, **changes})


def gb10(node: Node) -> Gpu:
    """The GPU of a DGX Spark: it does not report its memory."""
    return Gpu(
        index=0,
        uuid=f"GPU-{node.name}",
        name="NVIDIA GB10",
        driver_version="580.95.05",
        memory_total_mib=None,
        memory_used_mib=None,
        memory_free_mib=None,
        compute_cap="12.1",
        pci_bus_id="0000000F:01:00.0",
    )


def discrete_gpu(index: int, free: int | None, total: int | None = 16311) -> Gpu:
    """A card with memory of its own."""
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA GeForce RTX 5060 Ti",
        driver_version="580.95.05",
        memory_total_mib=total,
        memory_used_mib=None if free is None or total is None else total - free,
        memory_free_mib=free,
        compute_cap="12.0",
        pci_bus_id="00000000:01:00.0",
    )
