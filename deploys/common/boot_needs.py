"""What the next boot of a headless machine needs: its board's checklist, the driver's module."""

from __future__ import annotations

from pyinfra.api.exceptions import DeployError

from deploys.common.cli_guards import ROOT
from deploys.common.load_and_gate import once_a_run
from gates.firmware.checklist import Lists
from schema.core.errors import SpecError
from schema.desired.plan import Plan
from schema.inputs.host_data import HostData
from schema.machine.checklist import checklists


@once_a_run
def load_lists() -> Lists:
    """The checklists of the catalog; DeployError says what is wrong in them."""
    try:
        return checklists(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


def driver_module(plan: Plan, data: HostData) -> str | None:
    """The kernel module that a boot must have: group data's, else NVIDIA's where the recipe needs
    it, else none."""
    if data.driver_module is not None:
        return data.driver_module
    return "nvidia" if plan.recipe.expect.needs_nvidia else None
