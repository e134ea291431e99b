"""12 losses in the middle of a kernel's pin, on a VM with clock, boot and power of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.lease.rigs import OnVm, cells, run
from tests.system.vm.conftest import Rig as Vm


@pytest.mark.parametrize("loss", cells("kernel"))
def test_kernel(boot: Callable[..., Vm], loss: str) -> None:
    """A pin on real GRUB, with the VM's own clock and power."""
    vm = boot()
    vm.with_engine()
    rig = OnVm(vm)
    before = vm.boots()
    row = run(rig, "kernel", loss, "kernel=current")
    pinned = (vm.kernels.first, vm.kernels.first)
    assert vm.boots() == (pinned if row.status == "COMMITTED" else before), row
