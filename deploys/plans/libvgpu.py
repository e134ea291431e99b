"""What libvgpu has to do on a host, decided once from one look."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pyinfra import logger, state
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, files_in, once, once_a_run, units_in
from facts.node import AskFailed, ask_node
from gates import cluster
from gates.cluster import files_of, mappers_of, named, state_of, target_of
from gates.core import Violation
from operations.apply import Steps, folder_steps, unit_step
from operations.cluster import restart_pods
from operations.engine import file_steps, timer_steps
from operations.rollback import DEPLOYMENT_TIMEOUT_S, undo_only
from operations.run import StepFailed
from schema.cluster import Candidate, LibraryFile, LibraryLook, Mapped, PodName
from schema.core import Frozen, misfit
from schema.keys import LibvgpuData
from schema.plan import Plan
from schema.render_engine import (
    LIBRARY_FILES,
    LIBRARY_GUARD_PATH,
    LIBRARY_GUARD_TIMER,
    LIBRARY_STATE_PATH,
    library_documents,
)
from schema.snapshot import FileState, NodeSnapshot, Unit

# What the host of a Kubernetes rig is asked beside its snapshot: each thing once a run.

M = TypeVar("M", bound=Frozen)
revert = undo_only(timeout_s=DEPLOYMENT_TIMEOUT_S)


def ask_typed(plan: Plan, verb: str, request: dict[str, Any], kind: type[M], key: str) -> M:
    """A reading verb's typed answer, asked once a run; DeployError when there is none."""

    def make() -> M:
        host = state.inventory.get_host(plan.rig.head.name)
        try:
            return kind.model_validate(ask_node(state, host, verb, request))
        except AskFailed as error:
            raise DeployError(str(error)) from None
        except ValidationError as error:
            raise DeployError(f"{host.name}: {verb}: {misfit(error)}") from None

    return once(f"looked:{key}", make)


# The steps around a swapped library: what is written down about it, and the guard's units.


def around_library(
    plan: Plan, snapshot: NodeSnapshot, target: str, original: str, ours: str
) -> Steps:
    """The state file and the guard: written, started, or taken away."""
    files, units = files_in(snapshot), units_now(snapshot)
    data = plan.chart_as(LibvgpuData)
    documents = library_documents(plan, data, target, original, ours)
    steps = folder_steps(["/etc/rigbook"], files)
    if not data.guard:
        steps += no_guard(files, units)
    changes = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    steps += changes
    if data.guard:
        written = [str(step["path"]) for step in changes]
        for unit in (LIBRARY_GUARD_PATH, LIBRARY_GUARD_TIMER):
            steps += timer_steps(unit, units.get(unit), written)
    return steps


def no_guard(files: Mapping[str, FileState], units: Mapping[str, Unit]) -> Steps:
    """The steps that end a guard of an earlier run; none where there is none."""
    return guard_away(files, units, LIBRARY_FILES)


def guard_away(
    files: Mapping[str, FileState], units: Mapping[str, Unit], paths: Iterable[str]
) -> Steps:
    """The steps that stop these units and remove those of the paths that are units' files."""
    steps: Steps = []
    for name, unit in units.items():
        if unit.active_state == "active" or unit.enabled == "enabled":
            steps.append(unit_step(name, "stop", enabled=False))
    there = [p for p in paths if p.endswith((".service", ".path", ".timer")) and _is_file(files, p)]
    steps += [{"op": "absent", "path": path} for path in there]
    return steps


def _is_file(files: Mapping[str, FileState], path: str) -> bool:
    return path in files and files[path].kind == "file"


def units_now(snapshot: NodeSnapshot) -> dict[str, Unit]:
    """The guard's units that systemd knows; DeployError when they cannot be read."""
    return {
        n: u
        for n, u in units_in(snapshot).items()
        if n in (LIBRARY_GUARD_PATH, LIBRARY_GUARD_TIMER)
    }


# As node's limit: the request carries the library.
MAX_LIBRARY = 24 << 20
# Processes that are named one by one.
SHOWN = 6
# Loaded once more from where it will lie, before the rename: a folder mounted noexec shows here.
LOADS = (
    'said=$(LD_PRELOAD="$1" /bin/true 2>&1) && case "$said" in *ld.so*) echo "$said"; exit 1;; esac'
)


@dataclass(frozen=True)
class Swap:
    """One run: the file, our hash, the steps and what to say about them."""

    target: str
    ours: str
    steps: Steps
    lines: tuple[str, ...]
    restarts: dict[str, PodName] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def inspect_library(plan: Plan) -> LibraryLook:
    """The library folder, asked once a run."""
    data = plan.chart
    request = {"folder": data.vgpu_dir, "kubectl": data.kubectl, "kubeconfig": data.kubeconfig}
    return ask_typed(plan, "library look", request, LibraryLook, "library")


@once_a_run
def local_bytes(plan: Plan) -> bytes:
    """The candidate's bytes, from here, its sha256 checked; DeployError says what is wrong."""
    data = plan.chart_as(LibvgpuData)
    if data.library is None or data.sha256 is None:
        raise DeployError(
            "libvgpu needs --data library=FILE --data sha256=HEX (what `sha256sum FILE` prints "
            "where it was built), or --data remove=true"
        )
    path = Path(data.library)
    try:
        if path.stat().st_size > MAX_LIBRARY:
            raise DeployError(f"{path} is larger than {MAX_LIBRARY >> 20} MiB: no such library")
        raw = path.read_bytes()
    except OSError as error:
        raise DeployError(f"library: {path}: {error.strerror}") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != data.sha256:
        raise DeployError(
            f"{path} is not the library that sha256 names: it is {found}, {len(raw)} bytes; "
            "copy it again"
        )
    return raw


def findings(plan: Plan) -> list[Violation]:
    """What speaks against the swap (or against bringing the original back)."""
    node, data, now = plan.rig.head.name, plan.chart_as(LibvgpuData), inspect_library(plan)
    found = [*cluster.readable(node, now)]
    if data.remove:
        return found
    raw = local_bytes(plan)
    found += [*cluster.target_known(node, now, data.target), *cluster.preloaded(node, now)]
    file = _target(plan, now)
    if file is None:
        return found
    request = {"content_base64": base64.b64encode(raw).decode("ascii")}
    candidate = ask_typed(plan, "library check", request, Candidate, "candidate")
    found += cluster.known_content(node, now, file, candidate.sha256)
    found += cluster.candidate_fits(node, now, file, candidate)
    found += cluster.symbols_kept(node, file, candidate, data.without)
    return found


def _target(plan: Plan, now: LibraryLook) -> LibraryFile | None:
    return files_of(now).get(target_of(now, plan.chart_as(LibvgpuData).target).path or "")


def to_restart(now: LibraryLook, ours: str) -> dict[str, PodName]:
    """The pods, by uid, whose processes have another library than ours mapped."""
    pods = now.pods if isinstance(now.pods, dict) else {}
    old = [m.pod for m in mappers_of(now) if m.sha256 != ours and m.pod in pods]
    return {uid: pods[uid] for uid in dict.fromkeys(old) if uid is not None}


@once_a_run
def plan(rig: Procedure) -> Swap:
    """The work of this run, planned once."""
    make = _removal if rig.plan.chart_as(LibvgpuData).remove else _swap
    return make(rig.plan, rig.snapshots[rig.plan.rig.head.name])


def _swap(plan: Plan, snapshot: NodeSnapshot) -> Swap:
    data, now, raw = plan.chart_as(LibvgpuData), inspect_library(plan), local_bytes(plan)
    file, known = _target(plan, now), state_of(now)
    assert file is not None and file.sha256 is not None  # the gate has stopped the run otherwise
    ours, original = hashlib.sha256(raw).hexdigest(), file.sha256
    if known is not None and known.target == file.path and file.sha256 in (known.ours, ours):
        original = known.original
    steps: Steps = []
    if file.sha256 != ours:
        steps.append(_library_step(file, base64.b64encode(raw).decode("ascii")))
    steps += around_library(plan, snapshot, file.path, original, ours)
    lines = [f"{file.path} counts: {target_of(now, data.target).how}"] if steps else []
    restarts = to_restart(now, ours) if data.restart_pods else {}
    lines += [
        f"will be restarted, which cannot be undone: {pod.namespace}/{pod.name}"
        for pod in restarts.values()
    ]
    keep = [named(now, m) for m in mappers_of(now) if m.pod not in restarts and m.sha256 != ours]
    lines += [f"keeps the former one until its restart: {line}" for line in keep[:SHOWN]]
    if len(keep) > SHOWN:
        lines.append(f"and {len(keep) - SHOWN} more processes")
    if not steps:
        logger.info(f"    {file.path} is ours already: {ours[:12]}")
    told = tuple(lines if steps or restarts else ())
    notes = {file.path: f"{file.sha256} becomes {ours}"}
    return Swap(file.path, ours, steps, told, restarts, notes)


def _library_step(file: LibraryFile, content: str) -> dict[str, object]:
    return {
        "op": "file",
        "path": file.path,
        "content_base64": content,
        "mode": file.mode,
        "owner": file.owner,
        "group": file.group,
        "expect_sha256": file.sha256,
        "keep": True,
        "validate": ["sh", "-c", LOADS, "sh", "{tmp}"],
    }


def _removal(plan: Plan, snapshot: NodeSnapshot) -> Swap:
    """The original back from its kept copy, guard and state file gone; nothing where none was."""
    now = inspect_library(plan)
    known = state_of(now)
    if known is None:
        return Swap("", "", [], ())
    file = files_of(now).get(known.target)
    steps = no_guard(files_in(snapshot), units_now(snapshot))
    if file is None or file.sha256 not in (known.ours, known.original):
        raise DeployError(
            f"{known.target} is neither ours nor the original: it may be a new plugin's own; "
            "nothing was changed. To go back all the same: pyinfra INVENTORY "
            f"deploys/rollback.py -y --data change=ID --data overwrite={known.target}"
        )
    if file.sha256 != known.original:
        step = _library_step(file, "")
        steps.append({**step, "blob": known.original, "keep": False})
        del steps[-1]["content_base64"]
    steps.append({"op": "absent", "path": LIBRARY_STATE_PATH})
    return Swap(known.target, known.original, steps, ())


# How a swap proves that it is done: on the disk, in a fresh process, in the pods started anew.


def verify_libvgpu_proof(rig: Procedure, work: Swap) -> str:
    """A line about the library on the disk and in fresh processes; StepFailed: what is not so.

    Pods that are to be restarted are restarted once the host's own proof holds.
    """
    state, data = rig.run.state, rig.plan.chart_as(LibvgpuData)
    asks = partial(_ask, state, rig.run.host(rig.plan.rig.head.name))
    request = {"folder": data.vgpu_dir, "kubectl": data.kubectl, "kubeconfig": data.kubeconfig}
    now = LibraryLook.model_validate(asks("library look", request))
    fresh = Mapped.model_validate(asks("library check", {"path": work.target}))
    file = files_of(now).get(work.target)
    if file is None or file.sha256 != work.ours:
        raise StepFailed(f"{work.target} is not {work.ours[:12]} on the disk: overwritten again?")
    if (fresh.inode, fresh.sha256) != (file.inode, work.ours):
        raise StepFailed(
            f"a fresh process with {work.target} maps inode {fresh.inode}, sha256 {fresh.sha256}, "
            f"not inode {file.inode}, {work.ours}: {fresh.said}"
        )
    restarted = restart_pods(rig.run, work.restarts)
    if restarted:
        now = LibraryLook.model_validate(asks("library look", request))
        _gone(now, work)
    old = [mapper for mapper in mappers_of(now) if mapper.sha256 != work.ours]
    rest = f"; {len(old)} processes keep the former one until their restart" if old else ""
    what = "the original" if data.remove else "ours"
    done = "".join(f"; {line}" for line in restarted)
    return f"{work.target} is {what} ({work.ours[:12]}), a fresh process maps it{done}{rest}"


def _ask(state: State, host: Host, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    """node's answer; StepFailed when the host does not answer."""
    try:
        return ask_node(state, host, verb, request)
    except AskFailed as error:
        raise StepFailed(str(error)) from None


def _gone(now: LibraryLook, work: Swap) -> None:
    """StepFailed when a pod that came up after the restart maps another library than ours."""
    late = {uid: pod for uid, pod in to_restart(now, work.ours).items() if uid not in work.restarts}
    if late:
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in late.values())
        raise StepFailed(f"{names} started after the swap and map another library: is "
                         f"{work.target} the file that the plugin mounts?")  # fmt: skip
