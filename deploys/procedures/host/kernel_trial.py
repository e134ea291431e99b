"""A candidate's one boot: reboot into it, prove kernel, driver and engine, pin it, or go back."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra import state

from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in
from deploys.procedures.engine import serve
from deploys.procedures.host.kernel import KernelWork, Want, kernels_of, pin_steps
from facts.kernels import observe_kernels
from facts.rignode.context import real
from gates.gpu.driver import driver_present
from gates.kernel.next_boot import driver_problem
from operations.change.apply import limit_s
from operations.change.node_call import StepFailed, call, run_as_root
from operations.change.run import Run
from operations.change.steps import unit_step
from operations.host.reboot import reboot_now
from operations.rollback.revert import undo_only
from schema.observed.kernel import KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.kernel_files import CANDIDATE_PATH, CANDIDATE_SERVICE, CANDIDATE_SERVICE_PATH

# A failed boot and the boot back, for the way back.
BACK_S = 1800
UNDO_TIMEOUT_S = 420


def _inspect(want: Want) -> Mapping[str, NodeSnapshot | Unreadable]:
    return observe_kernels(real(state), want.plan, want.module, fresh=True)


def verify(rig: Procedure, want: Want, work: KernelWork) -> str:
    """A line about what boots next; StepFailed says what is not as it was asked for."""
    seen = _inspect(want)
    if not want.candidate:
        return "; ".join(pinned(name, seen[name]) for name in sorted(work.members or want.nodes))
    for name in sorted(work.members):
        _runs(want, name, seen[name])
    said = serve.verify(rig) if rig.up.all else "no engine ran before"
    for name in sorted(work.members):
        promote(rig.run, want.kernel, name, seen[name])
    done = _inspect(want)
    return f"{said}; " + "; ".join(pinned(name, done[name]) for name in sorted(work.members))


def facts_of(name: str, seen: NodeSnapshot | Unreadable) -> KernelFacts:
    if not isinstance(seen, KernelSnapshot):
        reason = seen.unreadable if isinstance(seen, Unreadable) else "no facts"
        raise StepFailed(f"{name}: its kernels cannot be read: {reason}")
    if isinstance(seen.kernel, Unreadable):
        raise StepFailed(f"{name}: its kernels cannot be read: {seen.kernel.unreadable}")
    return seen.kernel


def pinned(name: str, seen: NodeSnapshot | Unreadable) -> str:
    """A line about a proven pin, read anew from grub.cfg, grubenv and apt."""
    facts = facts_of(name, seen)
    assert isinstance(seen, KernelSnapshot)
    _, grub, apt = kernels_of(seen)
    release = grub.default.kernel or ""
    missing = sorted(set(apt.pinning.get(release, ())) - set(apt.holds))
    problem = driver_problem(facts, release)
    if grub.default.how != "saved" or grub.next != grub.default or missing:
        raise StepFailed(
            f"{name}: the pin does not hold: next boot {grub.next.kernel} ({grub.next.why}); "
            f"not held: {', '.join(missing) or 'none'}"
        )
    driver = f", {facts.module} {', '.join(facts.user_driver)}" if facts.module else ""
    if problem is not None:
        driver = f" (waived: {problem})"
    return f"{name} boots {release}{driver}, {len(apt.pinning.get(release, ()))} packages held"


def _runs(want: Want, name: str, seen: NodeSnapshot | Unreadable) -> None:
    """StepFailed unless the candidate runs here with its driver."""
    facts = facts_of(name, seen)
    if facts.running != want.kernel:
        raise StepFailed(
            f"{name}: {want.kernel} did not stay up: {facts.running} runs again "
            "(journalctl -b -1 -u rigbook-candidate.service says why)"
        )
    if facts.module is not None and facts.loaded is None:
        raise StepFailed(f"{name}: {want.kernel} runs, but the {facts.module} module is not loaded")
    problem = driver_problem(facts, facts.running)
    found = driver_present(want.plan, {name: seen})
    bad = [v.summary for v in found if v.severity == "block"]
    if problem is not None or bad:
        raise StepFailed(f"{name}: {want.kernel} runs, but: {problem or bad[0]}")


def promote(run: Run, kernel: str, name: str, seen: NodeSnapshot | Unreadable) -> None:
    """The candidate becomes the pinned kernel, and nobody waits for it any more."""
    assert isinstance(seen, KernelSnapshot)
    _, grub, apt = kernels_of(seen)
    end: list[dict[str, object]] = [
        {"op": "absent", "path": CANDIDATE_PATH},
        unit_step(CANDIDATE_SERVICE, "stop", enabled=False, reload=False),
        {"op": "absent", "path": CANDIDATE_SERVICE_PATH},
        unit_step(CANDIDATE_SERVICE),
    ]
    steps = [*pin_steps(kernel, grub, apt, files_in(seen)), *end]
    run.apply(name, steps, limit_s(steps))


def revert(run: Run) -> str:
    """The way back of a pin, or of a candidate that may have been booted; a line about it."""
    pinned = run.context.get("kernels")
    if isinstance(pinned, dict):
        return _back_to_pinned(run, pinned)
    return undo_only("the default kernel and the holds are as they were", UNDO_TIMEOUT_S)(run)


def _back_to_pinned(run: Run, pinned: Mapping[str, str]) -> str:
    """Undo, then every node that still runs the candidate boots the pinned kernel."""
    nodes = sorted(run.touched)
    problems = []
    for name in nodes:
        try:
            request = {
                "change": run.id,
                "overwrite": [],
                "start_units": False,
                "run": run.owner.token,
            }
            call(run.state, run.host(name), "undo", request, UNDO_TIMEOUT_S)
        except StepFailed as error:
            if error.code not in ("no_change", "undo_incomplete"):
                raise
            # what is not as it was is told at the end: no node stays on the candidate for it
            problems += [str(error)] if error.code == "undo_incomplete" else []
    seen = observe_kernels(run.state, run.plan, None, fresh=True)
    for name in nodes:
        facts = facts_of(name, seen[name])
        if name in pinned and facts.running != pinned[name]:
            reboot_now(run.state, run.host(name), facts.boot_id, BACK_S)
            again = facts_of(name, observe_kernels(run.state, run.plan, None, fresh=True)[name])
            if again.running != pinned[name]:
                raise StepFailed(f"{name} runs {again.running}, not the pinned {pinned[name]}")
    problems += _start_again(run, nodes)
    if problems:
        raise StepFailed("; ".join(problems))
    seen_there = ", ".join(name for name in nodes if name in pinned)
    return f"change {run.id} ROLLED_BACK; {seen_there} run the pinned kernel"


def _start_again(run: Run, nodes: list[str]) -> list[str]:
    """Starts the engine's unit where it is enabled and did not come up by the boot itself; a line
    for each node that did not answer."""
    late = []
    for name in nodes:
        command = (
            "systemctl is-enabled -q rigbook-engine.service 2>/dev/null"
            " && timeout 60 systemctl start --no-block rigbook-engine.service || true"
        )
        try:
            run_as_root(run.state, run.host(name), command, 90)
        except StepFailed as error:
            late.append(str(error))
    return late
