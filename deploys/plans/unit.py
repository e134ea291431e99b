"""Which drop-in goes where, whether the unit would be sound with it, and how it proves itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, files_in, once_a_run, units_in, wider
from facts import plain
from facts.looks import DropInCheck
from facts.node import ask_each, fact_of, observe
from gates.unit import looping
from operations.apply import Steps
from operations.host import Target, remove_steps, write_steps
from operations.rollback import undo_only
from operations.run import StepFailed
from schema.keys import UnitData
from schema.plan import Plan
from schema.render_unit import drop_in_path, ordered
from schema.snapshot import NodeSnapshot, Unit, Unreadable

# Serve writes these units whole; a drop-in would outlive what it writes.
OWN = "rigbook-"
# The one finding of the check that an operator may waive: the unit starts what is not there.
GHOST = "unit-ghost"
# 203 and 127 come at once: a start that lives this long has found what it starts, in seconds.
SETTLE_S = 6.0
POLL_S = 1.0
# A unit that systemd restarted by itself runs when it has done so for this long.
PROVEN_S = 60.0
UNDO_TIMEOUT_S = 240


@dataclass(frozen=True)
class Wanted:
    """What was asked for: the unit, the drop-in's path and text (None: take it away), where."""

    unit: str
    path: str
    text: str | None
    argv: tuple[str, ...] | None
    nodes: tuple[str, ...]
    named: bool


@dataclass(frozen=True)
class UnitWork:
    """What one run does on each node, and the text that its drop-in has there now."""

    wanted: Wanted
    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]

    @property
    def members(self) -> frozenset[str]:
        """The nodes on which something is to do."""
        return frozenset(node for node, steps in self.steps.items() if steps)

    @property
    def title(self) -> str:
        """The operation's name."""
        return f"{'Remove' if self.wanted.text is None else 'Write'} {self.wanted.path}"


revert = undo_only("the unit is as it was before", UNDO_TIMEOUT_S)


@once_a_run
def parse_request(rig: Procedure) -> tuple[Plan, Wanted]:
    """The plan with the unit and its drop-in in the snapshots, and what is wanted.

    DeployError for keys that do not go together.
    """
    plan, data = rig.plan, rig.data(UnitData)
    override = data.override()
    if data.unit is None:
        raise DeployError("--data unit=NAME.service is missing; which unit?")
    if data.remove == (not override.empty):
        raise DeployError(
            "give --data remove=true, or what the drop-in is to set (exec_start, restart, "
            "restart_sec, environment): one of them"
        )
    nodes = rig.asked_nodes(data.only)
    if not data.remove and data.unit.startswith(OWN):
        raise DeployError(
            f"--data unit={data.unit}: serve writes this unit and a drop-in would outlive it; "
            "allowed: units of others, and remove=true"
        )
    if not data.remove and not ordered(data.drop_in):
        raise DeployError(
            f"--data drop_in={data.drop_in}: no order among drop-ins; allowed: two digits and a "
            "name, such as 50-rigbook-exec"
        )
    path = drop_in_path(data.unit, data.drop_in)
    text = None if data.remove else override.text()
    wanted = Wanted(data.unit, path, text, override.exec_start, nodes, data.only is not None)
    return wider(plan, nodes, (path, path.rpartition("/")[0]), (data.unit,)), wanted


@once_a_run
def plan(rig: Procedure, wanted: Wanted) -> UnitWork:
    """The work of this run; DeployError where the unit would be broken, or is nowhere."""
    targets = {
        node: found
        for node in wanted.nodes
        if (found := _target(node, rig.snapshots[node], wanted)) is not None
    }
    if not targets or (wanted.named and len(targets) < len(wanted.nodes)):
        raise DeployError(f"{', '.join(wanted.nodes)}: systemd knows no unit {wanted.unit}")
    steps: dict[str, Steps] = {node.name: [] for node in rig.plan.rig.nodes}
    for node, target in targets.items():
        restart = would_restart(target.unit, rig.snapshots[node], rig.plan)
        steps[node] = (
            remove_steps(target, restart)
            if wanted.text is None
            else write_steps(target, wanted.text, restart)
        )
        if steps[node] and not restart and target.unit.active_state == "active":
            logger.info(f"    {node}: {wanted.unit} runs; this counts from its next start on")
    to_check = [node for node in targets if steps[node]]
    if _refuse_unsound(rig, wanted, to_check, GHOST in rig.data(UnitData).waive):
        rig.run.waivers = (*rig.waivers, (GHOST, rig.data(UnitData).reason or ""))
        steps = {node: [_accepting(step) for step in of] for node, of in steps.items()}
    before = {node: {wanted.path: target.now.content} for node, target in targets.items()}
    return UnitWork(wanted, steps, before)


def _accepting(step: dict[str, object]) -> dict[str, object]:
    if step["op"] == "unit":
        return {**step, "active": None}  # what is not there is not started
    return {**step, "accept_ghosts": True} if "for_unit" in step else step


def would_restart(unit: Unit, snapshot: NodeSnapshot, plan: Plan) -> bool:
    """True for a unit of others that is tried again and again, or that failed and is enabled.

    One that runs is left alone: whoever wants it to restart says when. Ours restarts as a pair.
    A restart of systemd's own that is seconds old has proven nothing, so a look into the short
    active phase of a crash loop does not count as "runs".
    """
    now = snapshot.identity.clock_unix_s
    if unit.name.startswith(OWN):
        return False
    if unit.active_state == "failed":
        return unit.enabled == "enabled"
    young = unit.since_unix_s is not None and now - unit.since_unix_s < PROVEN_S
    return (
        unit.active_state == "activating"
        or (unit.restarts > 0 and young)
        or looping(unit, now, plan)
    )


def _target(node: str, snapshot: NodeSnapshot, wanted: Wanted) -> Target | None:
    """The drop-in as it is on a node; None where systemd does not know the unit."""
    unit, files = units_in(snapshot).get(wanted.unit), files_in(snapshot)
    if unit is None:
        return None
    now, folder = files[wanted.path], files[wanted.path.rpartition("/")[0]]
    if now.kind not in ("file", "absent") or folder.kind not in ("directory", "absent"):
        raise DeployError(f"{node}: {wanted.path} or its folder is a link or no plain file")
    return Target(unit, wanted.path, now, folder)


def _refuse_unsound(rig: Procedure, wanted: Wanted, nodes: list[str], waived: bool) -> bool:
    """DeployError when a node says that the unit would be broken; asked at the same time.

    True when the unit would start what is not there, and `waived` says that this is meant.
    """
    request = json.dumps({"unit": wanted.unit, "path": wanted.path, "content": wanted.text})
    answers = ask_each(rig.run.state, rig.plan, DropInCheck(), dict.fromkeys(nodes, request))
    lines, ghosts = [], []
    for node, answer in answers.items():
        if isinstance(answer, Unreadable):
            lines.append(f"{node}: did not say whether {wanted.unit} would be sound: "
                         f"{answer.unreadable}")  # fmt: skip
            continue
        lines += [f"{node}: {wanted.unit}: {problem}" for problem in answer["problems"]]
        ghosts += [f"{node}: {wanted.unit}: {ghost}" for ghost in answer["ghosts"]]
    if not lines and waived:
        for ghost in ghosts:
            logger.warning(f"    waived {GHOST}: {ghost}")
        return bool(ghosts)
    if lines or ghosts:
        raise DeployError("nothing was changed: " + "; ".join(lines + ghosts))
    return False


def verify(rig: Procedure, work: UnitWork) -> str:
    """A line about each unit; StepFailed says which is not what was asked for."""
    restarted = [
        node for node in sorted(work.members) if any(s.get("active") for s in work.steps[node])
    ]
    _verify_stays_up(rig.run.state, work.wanted.unit, restarted)
    seen = observe(rig.run.state, rig.plan, fresh=True)
    said = []
    for node in sorted(work.members):
        snapshot = seen[node]
        if not isinstance(snapshot, NodeSnapshot):
            raise StepFailed(f"{node}: cannot be asked: {snapshot.unreadable}")
        said.append(f"{node}: {_as_wanted(node, snapshot, work.wanted)}")
    return "; ".join(said) or "the drop-in is as it should be"


def _as_wanted(node: str, snapshot: NodeSnapshot, wanted: Wanted) -> str:
    units = snapshot.units if isinstance(snapshot.units, tuple) else ()
    unit = next((u for u in units if u.name == wanted.unit), None)
    if unit is None or unit.load_state != "loaded" or unit.needs_reload:
        raise StepFailed(f"{node}: systemd did not load {wanted.unit} as it is on disk")
    if (wanted.path in unit.drop_ins) != (wanted.text is not None):
        raise StepFailed(f"{node}: systemd reads other drop-ins: {', '.join(unit.drop_ins)}")
    # systemd shows argv joined by blanks.
    if wanted.argv is not None and " ".join(unit.exec_start) != " ".join(
        " ".join(wanted.argv).split()
    ):
        raise StepFailed(f"{node}: {wanted.unit} starts {' '.join(unit.exec_start)[:200]}")
    return f"{wanted.unit} starts {' '.join(unit.exec_start)[:200]}, {unit.active_state}"


def _verify_stays_up(state: State, unit: str, nodes: list[str]) -> None:
    """StepFailed when a unit that was started here ends with an error in its first seconds."""
    deadline = time.monotonic() + SETTLE_S
    while nodes:
        for node in nodes:
            look = fact_of(state, state.inventory.get_host(node), plain.Unit, unit)
            if look is None:
                raise StepFailed(f"{node}: systemd does not say how {unit} is")
            if look.active == "failed" or look.sub == "auto-restart":
                raise StepFailed(
                    f"{node}: {unit} ended again: {look.result}, exit status {look.exit_status}: "
                    f"{look.last_line}"
                )
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)
