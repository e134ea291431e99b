"""What libvgpu has to do on a host, decided once from one look."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in
from deploys.procedures.cluster.ask import ask_typed
from deploys.procedures.cluster.libvgpu_guard import around, no_guard, units_now
from gates.cluster import vgpu_library as gates
from gates.cluster.mounted_library import files_of, mappers_of, named, state_of, target_of
from gates.core.violation import Violation
from operations.change.apply import Steps
from schema.desired.plan import Plan
from schema.inputs.cluster_runbook_data import LibvgpuData
from schema.observed.library import Candidate, LibraryFile, LibraryLook, PodName
from schema.observed.snapshot import NodeSnapshot
from schema.render.library_files import STATE_PATH

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
    found = [*gates.readable(node, now)]
    if data.remove:
        return found
    raw = local_bytes(plan)
    found += [*gates.target_known(node, now, data.target), *gates.preloaded(node, now)]
    file = _target(plan, now)
    if file is None:
        return found
    request = {"content_base64": base64.b64encode(raw).decode("ascii")}
    candidate = ask_typed(plan, "library check", request, Candidate, "candidate")
    found += gates.known_content(node, now, file, candidate.sha256)
    found += gates.candidate_fits(node, now, file, candidate)
    found += gates.symbols_kept(node, file, candidate, data.without)
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
    steps += around(plan, snapshot, file.path, original, ours)
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
    steps.append({"op": "absent", "path": STATE_PATH})
    return Swap(known.target, known.original, steps, ())
