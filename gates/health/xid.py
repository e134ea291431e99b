"""Xids: what the driver said of a GPU, and what NVIDIA says to do about it first."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import Gate, deploy_command, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.health.gpu import reboot
from gates.health.part import recent, remedy_for, this_boot, told
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.machine.xids import Xid, XidTable
from schema.observed.snapshot import NodeSnapshot

# What NVIDIA says to ignore, and what another Xid explains.
SILENT = ("none", "follow")


def xids(table: XidTable) -> Gate:
    """The gate about the Xids of this boot; catalog/xids.yaml is the table."""

    @per_node
    def gpu_xid(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """One finding for each GPU and code. An Xid that a restart mends is forgotten after a day:
        the engine that met it is long another.
        """
        lines = this_boot(snapshot, "xid")
        for device, number in dict.fromkeys((line.device, line.number) for line in lines):
            same = [line for line in lines if (line.device, line.number) == (device, number)]
            xid = table.find(number or 0)
            if xid.action == "restart_engine":
                same = recent(snapshot, same)
            if xid.action in SILENT or not same:
                continue
            what = xid.what or xid.name
            yield violation(
                "gpu-xid",
                node.name,
                f"GPU {device} of {node.name}: Xid {number}, {what}",
                evidence=told(same),
                remedy=remedy_for(snapshot, same[-1], _action(plan, node, xid)),
                cause=f"Xid {number}, {xid.name}; NVIDIA's first action: {xid.action} "
                f"({table.date})",
            )

    return gpu_xid


def _action(plan: Plan, node: Node, xid: Xid) -> str:
    restart, stop = deploy_command(plan, "restart"), deploy_command(plan, "stop")
    report = "sudo nvidia-bug-report.sh"
    return {
        "restart_engine": restart,
        "reset_gpu": f"{stop}; on {node.name}: sudo nvidia-smi --gpu-reset; where the driver "
        f"refuses that: {reboot(plan, node)}",
        "reboot": reboot(plan, node),
        "nvlink": f"{stop}; on {node.name}: nvidia-smi nvlink -e, then {reboot(plan, node)}",
        "power_cable": f"power {node.name} off and seat the card's power cables",
        "update": f"update the driver of {node.name}, then {reboot(plan, node)}",
        "support": f"on {node.name}: {report}, and show it to the card's vendor",
    }.get(xid.action, f"on {node.name}: {report}; {restart}")
