"""What a kernel run has to do on a rig, decided once from one observation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import logger, state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans import serve
from deploys.plans.engine import driver_module, known, load_lists
from deploys.plans.rig import Procedure, files_in, once_a_run, wider
from facts.looks import observe_kernels, observe_machines
from facts.node import real
from gates.core import Gate
from gates.firmware import rebootable
from gates.gate_sets import CHANGING, SOUND
from gates.gpu import driver_present
from gates.kernel import bootable_once, driver_problem, own_entries, pinnable
from gates.known_bad import boots
from operations.apply import Steps, folder_steps, limit_s, texts_of, unit_step
from operations.engine import file_steps
from operations.host import reboot_now
from operations.rollback import undo_only
from operations.run import Run, StepFailed, call, run_as_root
from schema.host import Apt, Grub, KernelFacts, KernelSnapshot
from schema.keys import KernelData
from schema.plan import Plan
from schema.render_host import (
    CANDIDATE_PATH,
    CANDIDATE_PATHS,
    CANDIDATE_SERVICE,
    CANDIDATE_SERVICE_PATH,
    GRUB_DIR,
    PIN_PATHS,
    candidate_documents,
    pin_documents,
)
from schema.snapshot import FileState, NodeSnapshot, Unreadable


@dataclass(frozen=True)
class Want:
    """What a run is asked for: pin `kernel`, or try `candidate` once, on `nodes`.

    `plan` is the rig's, with the pin's files in each node's snapshot; `module` is the driver's.
    """

    plan: Plan
    kernel: str
    candidate: bool
    nodes: frozenset[str]
    module: str | None
    budget_s: int


@dataclass(frozen=True)
class KernelWork:
    """The steps of one run, by node."""

    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]
    words: Mapping[str, tuple[str, ...]]
    members: frozenset[str]
    boots: Mapping[str, str]

    def idle(self, node: str) -> str:
        """Why nothing is to do on a node."""
        words = () if self.members else self.words[node]
        return words[0] if words else "nothing to do here in this step"


@once_a_run
def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError for a node that is none, and for both kinds at once."""
    plan, data = rig.plan, rig.data(KernelData)
    nodes = frozenset(rig.asked_nodes(data.only))
    if (data.kernel is None) == (data.candidate is None):
        raise DeployError("--data kernel=RELEASE (or current) pins, --data candidate=RELEASE tries "
                          "once: give one of them")  # fmt: skip
    if data.candidate == "current":
        raise DeployError("--data candidate=current: it runs already; name another kernel")
    return Want(
        plan=wider(plan, rig.nodes.all, (*PIN_PATHS, *CANDIDATE_PATHS), (CANDIDATE_SERVICE,)),
        kernel=data.kernel or data.candidate or "",
        candidate=data.candidate is not None,
        nodes=nodes,
        module=driver_module(plan, data),
        budget_s=data.budget,
    )


def inspect(state: State, want: Want) -> Mapping[str, NodeSnapshot | Unreadable]:
    """The rig with each node's kernels; with its hardware, where the run reboots it."""
    look = observe_machines if want.candidate else observe_kernels
    return look(state, want.plan, want.module)


def gates(want: Want) -> tuple[Gate, ...]:
    """The gates of this run; a candidate's boot needs nobody's hands, or it is not begun."""
    bad = boots(known(), want.kernel, want.nodes)
    if not want.candidate:
        return (*CHANGING, *SOUND, *pinnable(want.kernel, want.nodes), bad)
    hands = rebootable(load_lists(), time.time(), want.nodes)
    return (*CHANGING, *SOUND, *bootable_once(want.kernel, want.nodes), bad, *hands)


def kernels_of(snapshot: NodeSnapshot) -> tuple[KernelFacts, Grub, Apt]:
    """The parts that the gates have proven to be there; DeployError says which one was waived."""
    kernel = snapshot.kernel if isinstance(snapshot, KernelSnapshot) else None
    if not isinstance(kernel, KernelFacts):
        raise DeployError("the kernels cannot be read, so none can be pinned")
    if isinstance(kernel.grub, Unreadable):
        raise DeployError(f"GRUB's files cannot be read: {kernel.grub.unreadable}")
    if isinstance(kernel.apt, Unreadable):
        raise DeployError(f"apt cannot be asked: {kernel.apt.unreadable}")
    return kernel, kernel.grub, kernel.apt


@once_a_run
def plan(rig: Procedure, want: Want) -> KernelWork:
    """The work of this run, planned and shown once; all hosts get the same object."""
    steps: dict[str, Steps] = {}
    words: dict[str, tuple[str, ...]] = {}
    files = {name: files_in(snapshot) for name, snapshot in rig.snapshots.items()}
    for name, snapshot in rig.snapshots.items():
        steps[name], words[name] = [], ()
        if name not in want.nodes:
            continue
        facts, grub, apt = kernels_of(snapshot)
        release = facts.running if want.kernel == "current" else want.kernel
        if want.candidate:
            trial = Trial(release, want.budget_s, rig.run.id)
            steps[name] = candidate_steps(trial, facts, files[name])
            words[name] = (f"next boot: {release} once; after it: {facts.running}, the pinned one",)
        else:
            steps[name] = pin_steps(release, grub, apt, files[name])
            words[name] = pin_words(release, grub, apt)
    members = frozenset(name for name in want.nodes if steps[name])
    for name in sorted(want.nodes - members):
        logger.info(f"    {name}: {words[name][0]}; as wanted")
    if want.candidate:
        # For the way back: what each node has to boot again.
        running = {n: kernels_of(rig.snapshots[n])[0].running for n in want.nodes}
        rig.run.context.setdefault("kernels", running)
    return KernelWork(
        steps=steps,
        before={name: texts_of(found) for name, found in files.items()},
        words=words,
        members=members,
        boots={n: s.identity.boot_id for n, s in rig.snapshots.items()},
    )


def pin_steps(release: str, grub: Grub, apt: Apt, files: Mapping[str, FileState]) -> Steps:
    """The steps that pin a kernel; none where it is pinned as it should be."""
    packages = apt.pinning.get(release, ())
    written = file_steps(pin_documents(release, packages), files)
    for step in written:
        if str(step["path"]).startswith("/etc/apt/"):
            step["validate"] = ["apt-config", "-c", "{tmp}", "dump"]
    steps = [*folder_steps([GRUB_DIR], files), *written] if written else []
    if set(packages) - set(apt.holds):
        steps.append({"op": "hold", "packages": list(packages), "held": True})
    entries = own_entries(grub, release)
    as_wanted = (
        grub.saves
        and grub.configured.mode == "saved"
        and grub.next_entry is None
        and entries == [grub.saved_entry]
        and grub.default.kernel == release
    )
    if not as_wanted or any("grub.d" in str(step.get("path")) for step in written):
        steps.append({"op": "grub", "saved": release, "regenerate": True})
    return steps


def pin_words(release: str, grub: Grub, apt: Apt) -> tuple[str, ...]:
    """What a pin changes, for a person: the default as kernels, the former way, the holds."""
    old = f"{grub.default.kernel or 'unknown'} ({grub.default.why})"
    words = [f"default kernel: {release} (saved)"]
    if grub.default.kernel != release or grub.default.how != "saved":
        words = [f"default kernel: {old} -> {release} (saved)"]
    if grub.configured.mode == "title":
        words.append(
            f"GRUB_DEFAULT in {grub.configured.file} is a menu's title ({grub.configured.value}), "
            "which means the first entry once that kernel is gone; overridden, the line stays"
        )
    missing = sorted(set(apt.pinning.get(release, ())) - set(apt.holds))
    if missing:
        words.append(f"new holds: {', '.join(missing)}")
    return tuple(words)


@dataclass(frozen=True)
class Trial:
    """A kernel that is booted once for a change, and the seconds until it must be blessed."""

    kernel: str
    budget_s: int
    change: str


def candidate_steps(
    trial: Trial, facts: KernelFacts, files: Mapping[str, FileState], regenerate: bool = False
) -> Steps:
    """The steps before a candidate's one boot: the unit that falls back, then next_entry.

    `regenerate`: the menu is made anew first, for a kernel that has just come.
    """
    documents = candidate_documents(trial.kernel, facts.running, trial.budget_s, trial.change)
    return [
        *folder_steps(["/etc/rigbook"], files),
        *file_steps(documents, files),
        unit_step(CANDIDATE_SERVICE, enabled=True),
        {
            "op": "grub",
            "saved": facts.running,
            "next": trial.kernel,
            "regenerate": regenerate,
        },
    ]


# A candidate's one boot: reboot into it, prove kernel, driver and engine, pin it, or go back.

# A failed boot and the boot back, for the way back.
BACK_S = 1800
UNDO_TIMEOUT_S = 420


def _inspect(want: Want) -> Mapping[str, NodeSnapshot | Unreadable]:
    return observe_kernels(real(state), want.plan, want.module, fresh=True)


def verify_kernel_trial(rig: Procedure, want: Want, work: KernelWork) -> str:
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
