"""Doctor's findings about an engine that is not up: a crash loop, and where it stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timezone

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.failure_signatures import action, cause_of, last_exit
from gates.engine.state import engine_state, engine_unit, own_container
from gates.unit.supervision import watched
from node.rules.root_cause import ROOT_CAUSE
from schema.desired.plan import UNIT, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.snapshot import NodeSnapshot
from schema.observed.units import Unit

# A restart is of the present trouble when it is younger than this, in seconds.
RECENT_S = 3600.0


@per_node
def crash_loop(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A unit that ends and is started again, all day: each load fills memory and page cache."""
    now = snapshot.identity.clock_unix_s
    for unit in require(snapshot.units, "units"):
        if not watched(snapshot, unit) or not looping(unit, now, plan):
            continue
        budget = plan.recipe.expect.start_budget_s
        since = unit.restart_times[0] if unit.restart_times else unit.since_unix_s
        count = max(unit.restarts, len(unit.restart_times))
        given_up = unit.result == "start-limit-hit" or unit.active_state == "failed"
        # Once more than it was restarted; an automatic restart that waits is not yet counted.
        yield violation(
            "crash-loop",
            node.name,
            f"{unit.name} on {node.name} "
            + (f"crashed {count + 1} times; systemd gave up" if given_up else
               f"was started {count + 1} times, and systemd starts it again"),
            evidence=f"started {count + 1} times since {_when(since)}, now {unit.active_state}/"
            f"{unit.sub_state} ({unit.result}); last exit: {last_exit(unit)}; log: "
            f"{said(unit)}",
            remedy=_coming_back(plan, now + budget) if unit.name == UNIT and not given_up else
            f"on {node.name}: sudo systemctl stop {shlex.quote(unit.name)}; {action(unit)}mend "
            "the findings above "
            + (f"it, then {deploy_command(plan, 'restart')}" if unit.name == UNIT else "it"),
            severity="block" if unit.name == UNIT else "warn",
            cause=cause_of(unit),
        )  # fmt: skip


def _coming_back(plan: Plan, until: float) -> str:
    """What is done about our unit within its limits: its start limit ends a loop by itself."""
    return (
        f"wait until {_when(until)}: {deploy_command(plan, 'verify')} tells when it answers; "
        "it comes back by itself, or systemd gives up, and the doctor says what then"
    )


def said(unit: Unit) -> str:
    """The root cause of a unit's log, else its last two errors, else its last line."""
    named = [line for line in unit.errors[:1] if line.startswith(ROOT_CAUSE)]
    return "; ".join(named or unit.errors[-2:]) or unit.last_log_line or "none"


def looping(unit: Unit, now: float, plan: Plan) -> bool:
    """True while systemd restarts the unit again and again, or has given up doing so.

    A unit that runs counts while its present start is younger than the start budget: only then
    may its former restarts be the present trouble.
    """
    if unit.result == "start-limit-hit" or unit.sub_state == "auto-restart":
        return True
    if unit.active_state == "failed":
        return unit.restarts > 0
    recent = [t for t in unit.restart_times if now - t < RECENT_S]
    young = unit.since_unix_s is None or now - unit.since_unix_s < plan.recipe.expect.start_budget_s
    return unit.restarts > 1 and young and len(recent) > 1


def _when(moment: float | None) -> str:
    if moment is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


@per_node
def engine_down(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Where the engine stands when it is not running; the findings before it say why."""
    now = engine_state(plan, node, snapshot)
    if now == "running":
        return
    unit = engine_unit(snapshot)
    age = None
    if unit is not None and unit.since_unix_s is not None:
        age = snapshot.identity.clock_unix_s - unit.since_unix_s
    budget = plan.recipe.expect.start_budget_s
    loading = now == "starting" and age is not None and age <= budget
    yield violation(
        "engine-down",
        node.name,
        f"the engine is {now}" + (f" for {age:.0f} s of {budget} s" if loading else ""),
        evidence=_standing(plan, unit, own_container(snapshot)),
        remedy=f"wait for it: {deploy_command(plan, 'verify')}"
        if loading
        else deploy_command(plan, "serve"),
        cause=_why_down(plan, node, now, unit, loading),
    )


def _standing(plan: Plan, unit: Unit | None, container: Container | None) -> str:
    box = f"; container {container.state if container else 'none'}" if plan.recipe.container else ""
    if unit is None:
        return f"systemd knows no {UNIT}{box}"
    return (
        f"{UNIT} {unit.active_state}/{unit.sub_state} ({unit.result or 'no result'}), load state "
        f"{unit.load_state}, since {_when(unit.since_unix_s)}, last exit: {last_exit(unit)}{box}; "
        f"log: {unit.last_log_line or 'none'}"
    )


def _why_down(plan: Plan, node: Node, now: str, unit: Unit | None, loading: bool) -> str:
    several = len(plan.rig.nodes) > 1
    # the head's unit is active once a real answer came
    if loading and node.role == "head" and unit is not None and unit.active_state == "active":
        return "it loads, or one of its processes has died: then systemd starts it again"
    if loading:
        return "it loads" + ("; the head waits for its workers at the rendezvous" * several)
    if now == "starting" and not several:
        return "it hangs: in a load, or in a kernel build"
    if now == "starting":
        return "it hangs: at the rendezvous with its peer, in a load, or in a kernel build"
    if now == "failed" and unit is not None:
        return cause_of(unit)
    return {"absent": "it was never served here", "stopped": "somebody stopped it"}.get(now, "")


GATES = (crash_loop, engine_down)
