"""kernel on a VM with real GRUB, interrupted in a pin at random moments; a stand-in engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.system.lease.rigs import OnVm
from tests.system.sweep.cycle import Case, cells, run
from tests.system.vm.conftest import Rig as Vm


class Kernel(Case):
    """A pin. It is undone by its id before the next: a second one would change nothing."""

    deploy = "kernel"
    rig: OnVm

    def prepare(self) -> None:
        for row in self.rig.changes("tower")[:1]:
            if row["status"] == "COMMITTED":
                done, text = self.rig.vm.deploy(
                    "deploys/rollback.py", "-y", "--data", f"change={row['id']}"
                )
                assert done == 0, text

    def data(self) -> Sequence[str]:
        return ("kernel=current",)

    def prove(self) -> None:
        pinned = self.rig.vm.kernels.first
        assert self.rig.vm.boots() == (pinned, pinned), self.rig.vm.boots()
        assert self.rig.answers(), "the stand-in engine does not run"


def test_one_more_run(boot: Callable[..., Vm]) -> None:
    """One VM for all cells: it boots for minutes. The first fault ends it."""
    if not cells("kernel"):
        return
    vm = boot()
    vm.with_engine()
    case = Kernel(OnVm(vm))
    for cell in cells("kernel"):
        run(case, cell)
