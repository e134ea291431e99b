"""What a kernel run has to do on a rig, decided once from one observation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.boot_needs import driver_module, load_lists
from deploys.common.known_bad import known
from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in, wider
from facts.hardware import observe_machines
from facts.kernels import observe_kernels
from gates.core.check import Gate
from gates.firmware.checklist import rebootable
from gates.gate_sets import CHANGING, SOUND
from gates.kernel.known_bad import boots
from gates.kernel.pin import bootable_once, own_entries, pinnable
from operations.change.apply import Steps, texts_of
from operations.change.steps import folder_steps, unit_step
from operations.engine.engine import file_steps
from schema.desired.plan import Plan
from schema.inputs.runbook_data import KernelData
from schema.observed.files import FileState
from schema.observed.kernel import Apt, Grub, KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.kernel_files import (
    CANDIDATE_PATHS,
    CANDIDATE_SERVICE,
    GRUB_DIR,
    PIN_PATHS,
    candidate_documents,
    pin_documents,
)


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
