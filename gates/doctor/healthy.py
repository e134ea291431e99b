"""Lines about a node that are no findings: what runs there, and what was tried last."""

from __future__ import annotations

from gates.artifact.venv import own_venv
from gates.core.check import Observed, gib
from gates.drift.launch_files import running_profile
from gates.engine.state import engine_unit, is_own, own_container
from node.rules.root_cause import ROOT_CAUSE
from node.rules.secret import masked_line
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable

# What went back longer ago is an old story; the journal has it.
RECENT_S = 86400.0
MOST = 400


def went_back_lines(observed: Observed) -> list[str]:
    """For each node whose newest change was taken back within a day: which, and why.

    The engine that serves again says nothing of the start that failed.
    """
    lines = []
    for name, snapshot in observed.items():
        if isinstance(snapshot, Unreadable) or isinstance(snapshot.journal, Unreadable):
            continue
        last = next(iter(snapshot.journal.changes), None)
        if last is None or last.status != "ROLLED_BACK" or not last.reason:
            continue
        age = snapshot.identity.clock_unix_s - (last.closed_unix_s or last.opened_unix_s)
        if age < RECENT_S:
            reason = " ".join(last.reason.split())
            cause = reason[reason.find(ROOT_CAUSE) :] if ROOT_CAUSE in reason else reason
            lines.append(
                f"{name}: {last.deploy} {last.id} was taken back: {masked_line(cause)[:MOST]}"
            )
    return lines


def healthy_line(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    """`lab1: head of lab, tiny (balanced), up 12 min, pids 910 955, 4.40 GiB, image …`."""
    profile = running_profile(plan, node, snapshot)
    parts = [f"{node.name}: {node.role}, rank {node.rank}", f"{plan.recipe.name} ({profile})"]
    unit, container = engine_unit(snapshot), own_container(snapshot)
    if unit is not None and unit.since_unix_s is not None:
        minutes = (snapshot.identity.clock_unix_s - unit.since_unix_s) / 60
        parts.append(f"{unit.active_state} for {minutes:.0f} min, {unit.restarts} restarts")
    if not isinstance(snapshot.engine_processes, Unreadable):
        own = [process for process in snapshot.engine_processes if is_own(snapshot, process)]
        size = sum(process.rss for process in own)
        parts.append(f"{len(own)} processes of {gib(size)} (pid {own[0].pid if own else 'none'})")
    venv = own_venv(plan, node, snapshot)
    if venv is not None:
        parts.append(f"venv {venv.target}, vllm {', '.join(venv.versions.get('vllm', ()))}")
    if container is not None:
        parts.append(f"image {container.image} {container.image_id.removeprefix('sha256:')[:12]}")
    return ", ".join(parts)
