"""The catalog's tables of what is known to fail and of Xids, and the gates that ask them."""

from __future__ import annotations

from pyinfra.api.exceptions import DeployError

from deploys.common.cli_guards import ROOT
from deploys.common.load_and_gate import once_a_run
from gates.artifact import known_bad
from gates.core.check import Gate
from schema.core.errors import SpecError
from schema.machine import xids
from schema.recipe.compatibility import CompatibilityTable, load_table


@once_a_run
def known() -> CompatibilityTable:
    """catalog/compatibility.yaml; DeployError says what is wrong in it."""
    try:
        return load_table(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


@once_a_run
def known_xids() -> xids.XidTable:
    """catalog/xids.yaml; DeployError says what is wrong in it."""
    try:
        return xids.load(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


def running() -> tuple[Gate, ...]:
    """The gates about the kernel, the driver and the version that a rig runs."""
    return (*below(), known_bad.engine_gate(known()))


def below() -> tuple[Gate, ...]:
    """The gate about the kernel and the driver alone: before another version of the engine."""
    return (known_bad.below_gate(known()),)
