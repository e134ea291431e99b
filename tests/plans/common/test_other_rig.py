"""A node that belongs to another rig: no runbook changes it, unless that rig is named."""

from __future__ import annotations

from typing import Any

from schema.keys import RUNBOOKS
from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ends,
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    host,
    refused,
)

# What a runbook has to be given before its gates are asked.
NEEDS: dict[str, tuple[str, ...]] = {
    "adopt": ("take=true",),
    "kernel": ("kernel=current",),
    "unit": ("unit=vllm.service", "restart=always"),
    "watch": ("webhook=http://127.0.0.9/x",),
    "rollback": (f"change={scenario.OPEN_ID}",),
}
# They read, or reach a host that is off (wake); the last two are of a Kubernetes rig.
OTHERS = {"doctor", "verify", "report", "wake", "fabric", "provenance", "libvgpu", "gpu_limit"}
# The stand-in rig's engine runs in a container, without a driver: these refuse that before they
# look.
REFUSE_FIRST = {"upgrade", "patch", "backup", "restore", "driver"}
CHANGING = sorted(RUNBOOKS.keys() - OTHERS - REFUSE_FIRST)


def mistaken(deploy: str, *pairs: str, **more: Any) -> Scenario:
    """A run of the inventory of rig `other` on the nodes of rig `lab`."""
    words = (f"deploys/{deploy}.py", "-y", *data(*NEEDS.get(deploy, ()), *pairs))
    return Scenario(words, data={"rig": "other"}, answers=Reply, **more)


def with_a_stranger(address: str) -> list[Any]:
    """The rig's own name and head, and a worker that is another machine than the head's peer."""
    return [(HEAD, host(1, address)), (WORKER, host(2, address, fabric_address="10.0.0.9"))]


FOREIGN = refused("other-rig", f"{HEAD} belongs to rig lab, not to other")
TABLE: Table = {
    **{deploy: (mistaken(deploy), FOREIGN) for deploy in CHANGING},
    "one peer": (Scenario(("deploys/stop.py", "-y"), hosts=with_a_stranger), refused(
        "other-rig", f"{HEAD} belongs to rig lab with 10.0.0.2, which is not in this inventory")),
    "waived": (mistaken("serve", "waive=other-rig", "reason=mine"), refused(
        "other-rig cannot be waived")),
    "misnamed": (mistaken("serve", "former_rig=spark"), FOREIGN),
    "named": (mistaken("serve", "former_rig=lab"), done("COMMITTED")),
    "peer named": (Scenario(("deploys/stop.py", "-y", *data("former_rig=lab")),
                            hosts=with_a_stranger), done("COMMITTED")),
    # read-only: a finding
    "doctor": (mistaken("doctor"), Ends(
        None, (), (f"other-rig [{WORKER}]", "name the inventory of rig lab"))),
    "not here": (Scenario(("deploys/verify.py", "-y", *data("former_rig=lab")), answers=Reply),
                 refused("former_rig")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_no_changing_runbook_touches_a_node_of_another_rig(ran: Runs) -> None:
    assert CHANGING and [d for d in CHANGING if ran[d].changing] == []
