"""adopt --data take=true: a rig that serves by other means is handed over as one change.

What would start the former engine is taken away while it serves; then it is ended, ours is started
and proven. Without a real answer of ours everything goes back, and the former engine answers again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import gevent
from pyinfra import host, logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import (
    inventory_name,
    once_a_run,
    operator_data,
    refusal_line,
)
from deploys.common.procedure import Procedure, gated
from deploys.common.runtime import Work
from deploys.procedures.adopt import prove
from deploys.procedures.adopt.former_steps import end_steps, grace_s, refusals, release_steps, who
from deploys.procedures.adopt.look import Seen, container_of
from deploys.procedures.engine import serve
from facts.former import FormerFact
from facts.observe import observe
from facts.rignode.context import real
from facts.rignode.fact import ask_each
from gates.core.waiver import apply_waivers, blocking
from gates.gate_sets import ROOM, TAKING, check
from operations.adopt.answer import CONTEXT, Served, ask_former
from operations.adopt.room import require_room
from operations.change.apply import Steps, apply
from operations.change.node_call import StepFailed
from operations.engine import engine
from schema.desired.plan import Plan
from schema.observed.former import Former, FormerEngine
from schema.observed.snapshot import Unreadable

# For an answer of the former engine, while it still serves.
ASK_S = 30.0
# Memory of a GPU is free half a second after its process is gone; a port lingers a little longer.
ROOM_S = 60.0
POLL_S = 2.0
# Which files lie in a container's own layer is no matter here, and costs docker its time.
BRIEF = '{"brief": true}'
# The codes that may be waived, and why.
Waive = tuple[tuple[str, ...], str | None]


@dataclass(frozen=True)
class Taking:
    """The work of one take-over: by node the steps that end the former setup, and serve's work."""

    end: Mapping[str, Steps]
    configure: Mapping[str, Steps]
    serve: Work
    by: str
    waive: Waive
    room_s: float = ROOM_S

    @property
    def to_end(self) -> frozenset[str]:
        """The nodes on which something is to be ended."""
        return frozenset(name for name, steps in self.end.items() if steps)

    @property
    def to_configure(self) -> frozenset[str]:
        """The nodes on which supervisors or files are to be changed."""
        return frozenset(name for name, steps in self.configure.items() if steps)


def over() -> None:
    """Gates, plans and does the take-over of the rig in context; called in deploy code."""
    rig = gated(
        "adopt", TAKING, revert=serve.revert, meanwhile=serve.must_answer, more=serve.findings
    )
    work = plan(rig)
    apply(
        name="Take the engine from who would start it, and write our files",
        run=rig.run,
        label="configure",
        steps=work.configure[host.name],
        members=work.to_configure,
        idle=work.serve.idle,
        before=work.serve.before[host.name],
        notes=work.serve.notes.get(host.name),
    )
    for name, members in (("head", rig.nodes.head), ("workers", rig.nodes.workers)):
        apply(
            name=f"End the former engine: {name}",
            run=rig.run,
            label=f"end {name}",
            steps=work.end[host.name] if host.name in members else [],
            members=work.to_end & members,
            idle="no former engine runs here",
        )
    if rig.at_head:
        require_room(
            name="Room for our engine",
            run=rig.run,
            needed=bool(work.to_end),
            check=partial(_room, rig, work.waive, work.room_s),
        )
    engine.start(name="Start the workers", run=rig.run, nodes=work.serve.start.workers)
    engine.start(name="Start the head", run=rig.run, nodes=work.serve.start.head)
    if rig.at_head:
        engine.prove(
            name="A real chat completion of our engine",
            run=rig.run,
            needed=work.serve.needs_proof or bool(work.to_end),
            check=lambda: _proof(rig, work),
        )


def _proof(rig: Procedure, work: Taking) -> str:
    said = serve.verify(rig, work=work.serve)
    return f"{said}; taken over from {work.by}" if work.by else said


@once_a_run
def plan(rig: Procedure) -> Taking:
    """The work, planned and told once; DeployError where the rig is not to be taken over."""
    former, data = look(rig.plan), operator_data()
    engines = [engine for found in former.values() for engine in found.engines]
    ours = serve.plan(rig)
    by = "; ".join(f"{name}: {words}" for name, found in former.items() if (words := who(found)))
    releases = {name: release_steps(found) for name, found in former.items()}
    ends = {name: end_steps(found) for name, found in former.items()}
    if not any([*releases.values(), *ends.values()]) and not rig.run.resumed:
        if ours.start.all:
            raise DeployError(
                "nothing was changed: no vLLM runs on this rig that rigbook did not start, and "
                f"nothing would start one; start it: pyinfra {inventory_name()} deploys/serve.py -y"
            )
        logger.info("    nothing to take over: the engine is rigbook's own")
    if engines:
        seen = Seen(former, {})
        prove.tell(rig.plan, seen, prove.differences(rig.plan, seen))
        served = _served(rig.plan, former, by)
        answer = ask_former(real(state), rig.plan, served, ASK_S)
        logger.info(f"    serves now: {by}: {answer.detail}")
        # one that was begun by a run that died keeps what that one saw
        answered = answer.ok or answer.alive
        rig.run.context.setdefault(CONTEXT, asdict(replace(served, answered=answered)))
    kept: Any = rig.run.context.get(CONTEXT)
    return Taking(
        end=ends,
        configure={name: [*releases[name], *ours.steps[name]] for name in former},
        serve=ours,
        by=by if kept is None else str(kept["by"]),
        waive=(data.waive, data.reason),
        room_s=ROOM_S + max((grace_s(found) for found in former.values()), default=0.0),
    )


def look(plan: Plan) -> dict[str, Former]:
    """What runs by other means, by node; DeployError names what keeps it from being taken over."""
    seen = ask_each(real(state), plan, FormerFact(), dict.fromkeys(plan.requests, BRIEF))
    lines: list[str] = []
    found: dict[str, Former] = {}
    for name, former in seen.items():
        if isinstance(former, Unreadable):
            lines.append(f"{name}: {former.unreadable}")
            continue
        found[name] = former
        lines += [f"{name}: {line}" for line in refusals(former)]
    if lines:
        raise DeployError(f"nothing was changed: not taken over: {'; '.join(lines)}")
    return found


def _served(plan: Plan, former: Mapping[str, Former], by: str) -> Served:
    """Where the former engine answers: the head of those that run, else as the recipe says."""
    recipe = plan.recipe
    for name, found in former.items():
        for one in found.engines:
            if one.is_head:
                model = _option(one.argv, "--served-model-name") or recipe.served_model_name
                return Served(name, one.port, model, by, pod=_pod(found, one))
    return Served(plan.rig.head.name, recipe.port, recipe.served_model_name, by)


def _pod(found: Former, engine: FormerEngine) -> dict[str, str] | None:
    """Whose pod has a network of its own, in which the engine is to be asked; None: the host's."""
    box = container_of(found, engine)
    row = next((row for row in found.supervisors if row.kind == "pod" and row.deployment), None)
    if engine.inside_of != "pod" or row is None or box is None or box.network_mode == "host":
        return None
    return {
        "namespace": str(row.namespace),
        "deployment": str(row.deployment),
        "container": str(row.template_container),
    }


def _option(argv: tuple[str, ...], name: str) -> str | None:
    """The first value of an option, as `--name value` or `--name=value`."""
    for n, word in enumerate(argv):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            return value if equals else next(iter(argv[n + 1 : n + 2]), None)
    return None


def _room(rig: Procedure, waive: Waive, limit_s: float) -> str:
    """A line once port and memory are free on every node; StepFailed names what is not."""
    started = time.monotonic()
    while True:
        found = check(rig.plan, observe(state, rig.plan, fresh=True), ROOM)
        left, _ = apply_waivers(found, *waive)
        took = time.monotonic() - started
        if not blocking(left):
            return f"port and memory are free after {took:.0f} s"
        if took > limit_s:
            line = refusal_line(left).removeprefix("nothing was changed: ")
            raise StepFailed(f"after {took:.0f} s: {line}")
        gevent.sleep(POLL_S)
