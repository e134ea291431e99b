"""What a change of the driver has to do on a rig, decided once from one observation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyinfra import logger, state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans import serve
from deploys.plans.engine import driver_module, known, load_lists
from deploys.plans.kernel import (
    BACK_S,
    Trial,
    candidate_steps,
    facts_of,
    kernels_of,
    pin_steps,
    pinned,
    promote,
)
from deploys.plans.rig import Procedure, endpoint, files_in, once_a_run, wider
from facts.looks import observe_drivers, observe_kernels
from facts.node import real
from gates.core import MIB, Gate, Observed
from gates.driver import changeable
from gates.firmware import rebootable
from gates.gate_sets import CHANGING, SOUND, check
from gates.kernel import BOOT, boot_room, bootable, falls_back
from gates.known_bad import moves_to
from operations.apply import Steps, limit_s, texts_of
from operations.engine import fast_enough
from operations.host import PROVE_S, reboot_now
from operations.rollback import revert_change
from operations.run import Run, StepFailed, call
from operations.venv import rounds_of
from schema.hardware import AptPlan, DriverFacts, DriverSnapshot, PackageRow
from schema.host import KernelFacts, KernelSnapshot
from schema.keys import DriverData
from schema.plan import Plan
from schema.render_host import CANDIDATE_PATHS, CANDIDATE_SERVICE, PIN_PATHS
from schema.snapshot import Docker, NodeSnapshot, Unreadable

# For the dry run's estimate, in seconds: packages, a build by DKMS, a boot.
INSTALL_S, BUILD_S, BOOT_S = 60, 150, 180
_SPEC_MODE = "0644"


@dataclass(frozen=True)
class Want:
    """What a run is asked for: a driver in the operator's words, with one more kernel or none.

    `plan` is the rig's, with the files of a pin and of the CDI specs in each snapshot.
    """

    plan: Plan
    label: str
    version: str | None
    branch: str | None
    kernel: str | None
    module: str
    budget_s: int

    @property
    def request(self) -> dict[str, str | None]:
        """What `node driver` is asked."""
        return {"module": self.module, "version": self.version, "branch": self.branch,
                "kernel": self.kernel}  # fmt: skip


@dataclass(frozen=True)
class DriverWork:
    """The steps of one run, by stage and node; empty for a node that is as wanted.

    `boots` is each member's boot_id of now; `specs` are the CDI specs to be made.
    """

    wanted: str
    members: tuple[str, ...]
    rows: Mapping[str, list[dict[str, Any]]]
    install: Mapping[str, Steps]
    once: Mapping[str, Steps]
    words: Mapping[str, tuple[str, ...]]
    boots: Mapping[str, str]
    before: Mapping[str, Mapping[str, str | None]]
    specs: Mapping[str, Mapping[str, str]]
    pinned: frozenset[str]

    def of(self, node: str) -> frozenset[str]:
        """The node, where it is one of those that change."""
        return frozenset({node} & {*self.members})


@once_a_run
def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError for no version, and for a rig without a driver."""
    data = rig.data(DriverData)
    module = driver_module(rig.plan, data)
    if module is None:
        raise DeployError(f"recipe {rig.plan.recipe.name} needs no driver (needs_nvidia: false)")
    if (data.version is None) == (not data.latest):
        raise DeployError("--data version=580.142 names a driver, --data latest=true takes the "
                          "newest of the lists: give one of them")  # fmt: skip
    label = data.version or (f"of branch {data.family}" if data.family else "that is newer")
    return Want(
        plan=wider(rig.plan, rig.nodes.all, (*PIN_PATHS, *CANDIDATE_PATHS), (CANDIDATE_SERVICE,)),
        label=label,
        version=data.version,
        branch=data.family,
        kernel=data.candidate,
        module=module,
        budget_s=data.budget,
    )


def inspect(state: State, want: Want) -> Mapping[str, NodeSnapshot | Unreadable]:
    """The rig with each node's kernels, hardware and driver."""
    return observe_drivers(state, want.plan, want.request)


def gates(want: Want) -> tuple[Gate, ...]:
    """The gates of this run: of the driver, and of a boot where one is asked for."""
    own = (*CHANGING, *SOUND, *BOOT, boot_room, *changeable(want.label, want.kernel), _pairs(want))
    return (*own, *_boot_gates(want)) if want.kernel else own


def _boot_gates(want: Want) -> tuple[Gate, ...]:
    assert want.kernel is not None
    nodes = frozenset(node.name for node in want.plan.rig.nodes)

    def installed(plan: Plan, observed: Observed) -> list[Any]:
        """The kernel's own part, where it does not come with the driver's packages."""
        coming = {
            name
            for name, seen in observed.items()
            if isinstance(seen, DriverSnapshot) and f"linux-image-{want.kernel}" in _names(seen)
        }
        return bootable(want.kernel or "", nodes - coming)(plan, observed)

    return (installed, *falls_back(want.kernel, nodes))


def _names(seen: DriverSnapshot) -> set[str]:
    apt = seen.driver.apt if isinstance(seen.driver, DriverFacts) else None
    return {row.name for row in apt.rows if row.new} if isinstance(apt, AptPlan) else set()


def _pairs(want: Want) -> Gate:
    """Is this driver, with this kernel, known to fail on such a rig?"""

    def pairs(plan: Plan, observed: Observed) -> list[Any]:
        drivers = {
            name: seen.driver.apt.wanted
            for name, seen in observed.items()
            if isinstance(seen, DriverSnapshot)
            and isinstance(seen.driver, DriverFacts)
            and isinstance(seen.driver.apt, AptPlan)
        }
        return moves_to(known(), drivers, want.kernel)(plan, observed)

    return pairs


def drivers_of(name: str, snapshot: object) -> tuple[DriverFacts, AptPlan]:
    """The parts that the gates have proven to be there; DeployError where one was waived."""
    driver = snapshot.driver if isinstance(snapshot, DriverSnapshot) else None
    if not isinstance(driver, DriverFacts) or not isinstance(driver.apt, AptPlan):
        raise DeployError(f"{name}: the driver cannot be read, so it is not changed")
    return driver, driver.apt


@once_a_run
def plan(rig: Procedure, want: Want) -> DriverWork:
    """The work of this run, planned and shown once; all hosts get the same object."""
    # workers first: the head, which answers clients, is the last to change
    names = [node.name for node in reversed(rig.plan.rig.nodes)]
    made = {name: _node_work(rig, want, name) for name in names}
    members = tuple(name for name in names if made[name] is not None)
    wanted = drivers_of(names[0], rig.snapshots[names[0]])[1].wanted or ""
    for name in sorted(set(names) - {*members}):
        logger.info(f"    {name}: the driver {wanted} is there and loaded; as wanted")
    work = {name: found for name, found in made.items() if found is not None}
    if members:
        # asked of the nodes that boot, and of no other
        hands = rebootable(load_lists(), time.time(), frozenset(members))
        rig.gate_more(check(rig.plan, rig.snapshots, hands))
    running = {n: _kernel(rig.snapshots[n]).running for n in members}
    rig.run.context.setdefault("kernels", running)
    return DriverWork(
        wanted=wanted,
        members=members,
        rows={name: work[name].rows for name in members},
        install={name: work[name].install for name in members},
        once={name: work[name].once for name in members},
        words={name: work[name].words for name in members},
        boots={name: rig.snapshots[name].identity.boot_id for name in members},
        before={name: texts_of(files_in(rig.snapshots[name])) for name in names},
        specs={name: work[name].specs for name in members},
        pinned=frozenset(n for n in members if _is_pinned(rig.snapshots[n])),
    )


@dataclass(frozen=True)
class _NodeWork:
    rows: list[dict[str, Any]]
    install: Steps
    once: Steps
    words: tuple[str, ...]
    specs: Mapping[str, str]


def _kernel(snapshot: object) -> KernelFacts:
    found = getattr(snapshot, "kernel", None)
    if not isinstance(found, KernelFacts):
        raise DeployError("the kernels cannot be read, so no driver is changed")
    return found


def _is_pinned(snapshot: object) -> bool:
    grub = _kernel(snapshot).grub
    return not isinstance(grub, Unreadable) and grub.ours


def _node_work(rig: Procedure, want: Want, name: str) -> _NodeWork | None:
    """A node's part; None where its driver and its kernel are as wanted."""
    snapshot = rig.snapshots[name]
    facts, apt = drivers_of(name, snapshot)
    kernels = _kernel(snapshot)
    here = (facts.loaded, *facts.versions)
    moves = want.kernel is not None and kernels.running != want.kernel
    if not apt.rows and set(here) == {apt.wanted} and not moves:
        return None
    releases = _releases(kernels, want.kernel)
    once: Steps = []
    if moves and want.kernel is not None:
        trial = Trial(want.kernel, want.budget_s, rig.run.id)
        kernels_of(snapshot)
        once = candidate_steps(trial, kernels, files_in(snapshot), regenerate=True)
    return _NodeWork(
        rows=[_row(row) for row in apt.rows],
        install=_install(want, apt, releases),
        once=once,
        words=_words(want, facts, apt, releases, rig.plan),
        specs={path: _SPEC_MODE for path in facts.cdi if path.startswith("/etc/")},
    )


def _releases(kernels: KernelFacts, more: str | None) -> tuple[str, ...]:
    """The kernels that must have the module: the running, the next and the usual one, the new."""
    grub = kernels.grub
    booted = () if isinstance(grub, Unreadable) else (grub.next.kernel, grub.default.kernel)
    names = (kernels.running, *booted, more)
    return tuple(dict.fromkeys(name for name in names if name))


def _row(row: PackageRow) -> dict[str, Any]:
    return row.model_dump(include={"name", "old", "new", "arch", "old_arch"})


def _install(want: Want, apt: AptPlan, releases: Sequence[str]) -> Steps:
    """Holds off, the packages, holds on again: what was held stays so."""
    if not apt.rows:
        return []
    held = sorted({row.name for row in apt.rows if row.old} & set(apt.holds))
    again = sorted({row.name for row in apt.rows if row.new} & set(held))
    packages: dict[str, object] = {
        "op": "packages",
        "module": want.module,
        "version": apt.wanted,
        "kernels": list(releases),
        "rows": [_row(row) for row in apt.rows],
    }
    steps: Steps = [{"op": "hold", "packages": held, "held": False}] if held else []
    steps.append(packages)
    return [*steps, *([{"op": "hold", "packages": again, "held": True}] if again else [])]


def _words(
    want: Want, facts: DriverFacts, apt: AptPlan, releases: Sequence[str], plan: Plan
) -> tuple[str, ...]:
    """What a person is told before: package by package, what is built, stops, and how long."""
    lines = [f"driver {', '.join(facts.versions) or 'none'} -> {apt.wanted}"]
    for row in apt.rows:
        kept = f" (old one: {row.kept})" if row.kept else ""
        lines.append(f"{row.name}: {row.old or 'new'} -> {row.new or 'removed'}{kept}")
    if apt.download is not None:
        lines.append(f"{apt.download / MIB:.0f} MiB to fetch before anything stops")
    built = any("dkms" in row.name and row.new for row in apt.rows)
    does = "DKMS builds" if built else "the packages bring"
    lines.append(f"{does} {want.module} for {', '.join(releases)}")
    lines.append(f"stops: the engine; then boots {want.kernel or 'the default kernel'} once")
    seconds = INSTALL_S + BUILD_S * built * len(releases) + BOOT_S
    lines.append(
        f"estimate: {seconds} s here, then up to {plan.recipe.expect.start_budget_s} s until the "
        "engine answers"
    )
    return tuple(lines)


# A changed driver's proof, and the way back of a run: packages, module, kernel, engine.

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


def verify_driver_trial(rig: Procedure, want: Want, work: DriverWork) -> str:
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
