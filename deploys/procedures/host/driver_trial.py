"""A changed driver's proof, and the way back of a run: packages, module, kernel, engine."""

from __future__ import annotations

from typing import Any

from pyinfra import state

from deploys.common.load_and_gate import endpoint
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in
from deploys.procedures.engine import serve
from deploys.procedures.host.driver import DriverWork, Want
from deploys.procedures.host.kernel import kernels_of, pin_steps
from deploys.procedures.host.kernel_trial import BACK_S, facts_of, pinned, promote
from facts.drivers import observe_drivers
from facts.kernels import observe_kernels
from facts.rignode.context import real
from operations.change.apply import limit_s
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.engine.baseline import fast_enough
from operations.host.driver import PROVE_S
from operations.host.reboot import reboot_now
from operations.rollback.revert import revert_change
from operations.venv.venv import rounds_of
from schema.observed.docker import Docker
from schema.observed.hardware import DriverFacts, DriverSnapshot
from schema.observed.kernel import KernelSnapshot

ALL_GPUS = "nvidia.com/gpu=all"


def works(rig: Procedure, want: Want, work: DriverWork, name: str) -> str:
    """A line about a driver that programs can use; StepFailed says what is not as it was wanted."""
    docker, box = rig.snapshots[name].docker, rig.plan.recipe.container
    by_cdi = box is not None and isinstance(docker, Docker) and ALL_GPUS in docker.cdi_devices
    request: dict[str, Any] = {
        "module": want.module,
        "version": work.wanted,
        # the tests' own module has no GPU behind it
        "cuda": want.module == "nvidia",
        "image": box.image if by_cdi and box else None,
        "devices": [ALL_GPUS] if by_cdi else [],
    }
    run = rig.run
    said = call(run.state, run.host(name), "driver prove", request, PROVE_S)["lines"]
    return f"{name}: {'; '.join(said)}"


def verify(rig: Procedure, want: Want, work: DriverWork) -> str:
    """A line about driver, kernel and engine; StepFailed says what is not as it was wanted."""
    seen = observe_drivers(real(state), want.plan, want.request, fresh=True)
    for name in work.members:
        found = seen[name]
        running = facts_of(name, found).running
        if want.kernel and running != want.kernel:
            raise StepFailed(
                f"{name}: {want.kernel} did not stay up: {running} runs again "
                "(journalctl -b -1 -u rigbook-candidate.service says why)"
            )
        driver = found.driver if isinstance(found, DriverSnapshot) else None
        if not isinstance(driver, DriverFacts):
            raise StepFailed(f"{name}: its driver cannot be read")
        if {driver.loaded, *driver.versions} != {work.wanted}:
            raise StepFailed(
                f"{name}: the module is {driver.loaded or 'not loaded'}, programs load "
                f"{', '.join(driver.versions) or 'none'}, wanted is {work.wanted}"
            )
    said = "no engine ran before"
    if rig.up.all:
        said = f"{serve.verify(rig)}; {_speed(rig)}"
    return f"driver {work.wanted}; {said}{_pin(rig, want, work)}"


def _speed(rig: Procedure) -> str:
    before = rounds_of(rig.run)
    if not before:
        return "nothing to compare its speed with"
    tell = rig.run.host(rig.plan.rig.head.name).log
    return fast_enough(
        endpoint(rig.plan).held_by_ours(), before, rig.plan.recipe.expect.tolerance, tell
    )


def _pin(rig: Procedure, want: Want, work: DriverWork) -> str:
    """The pin holds the new driver, and the new kernel where there is one; a part of the line."""
    to_pin = [name for name in work.members if want.kernel or name in work.pinned]
    seen = observe_kernels(real(state), want.plan, want.module, fresh=True)
    for name in to_pin:
        found = seen[name]
        if want.kernel:
            promote(rig.run, want.kernel, name, found)
            continue
        assert isinstance(found, KernelSnapshot)
        _, grub, apt = kernels_of(found)
        steps = pin_steps(grub.default.kernel or "", grub, apt, files_in(found))
        if steps:
            rig.run.apply(name, steps, limit_s(steps))
    if not to_pin:
        return ""
    seen = observe_kernels(real(state), want.plan, want.module, fresh=True)
    return "; " + "; ".join(pinned(name, seen[name]) for name in to_pin)


def revert(run: Run) -> str:
    """The way back of a run: the former kernel first, for its module loads on it alone; then all
    else, and the former engine's answer.
    """
    _to_former_kernel(run)
    why = run.failure or "a step failed"
    return revert_change(run.state, run.plan, run.id, run.touched, reason=why, run=run.owner.token)


def _to_former_kernel(run: Run) -> None:
    """Boots the pinned kernel where the candidate runs: next_entry is used up."""
    former = run.context.get("kernels")
    if not isinstance(former, dict):
        return
    seen = observe_kernels(run.state, run.plan, None, fresh=True)
    for name in sorted(run.touched & {*former}):
        facts = facts_of(name, seen[name])
        if facts.running != former[name]:
            reboot_now(run.state, run.host(name), facts.boot_id, BACK_S)
