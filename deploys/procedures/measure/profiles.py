"""bench of several profiles: each is served and measured, and then what served before is back.

All of it is one change, which always ends by its undo: so an interruption, an engine that does not
start and a client that fails lead back the same way.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gevent
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in
from deploys.procedures.engine.installed import endpoint_with_key
from deploys.procedures.measure.bench import Bench
from facts.endpoint.start_times import StartTimes
from facts.observe import observe
from facts.rignode.context import real
from gates.engine.state import engine_unit
from operations.change.node_call import StepFailed
from operations.change.run import Run
from operations.change.steps import unit_step
from operations.engine import engine
from operations.engine.wait_ready import wait_for_answer
from schema.core.errors import SpecError
from schema.desired.plan import UNIT, Plan
from schema.inputs.load import profile_name
from schema.inputs.measure_data import BenchData
from schema.measure.run import Start
from schema.observed.snapshot import NodeSnapshot
from schema.render.engine_files import documents
from schema.render.engine_spec import engine_spec

TOKEN_S = 5.0


class Interrupted(BaseException):
    """Ctrl-C while profiles are measured; nothing that only catches Exception swallows it."""


def served_as(plan: Plan, profile: str) -> Plan:
    """The same rig and recipe in another profile."""
    specs = {n.name: engine_spec(plan.rig, n, plan.recipe, profile) for n in plan.rig.nodes}
    made = {
        n.name: documents(plan.rig, n, plan.recipe, profile, specs[n.name]) for n in plan.rig.nodes
    }
    return replace(plan, profile=profile, specs=specs, documents=made)


@once_a_run
def plans(rig: Procedure) -> dict[str, Plan]:
    """The plan of each profile that --data names; DeployError for one that the recipe lacks."""
    endpoint_with_key(rig.plan)
    try:
        names = [profile_name(rig.plan.recipe, name) for name in rig.data(BenchData).profiles]
    except SpecError as error:
        raise DeployError(f"--data: profiles: {error}") from None
    return {name: served_as(rig.plan, name) for name in names}


def measure_each(rig: Procedure, wanted: dict[str, Plan], data: BenchData) -> None:
    """Serves and measures each; StepFailed when one cannot be, or at Ctrl-C."""
    with _interruptible():
        for name, plan in wanted.items():
            logger.info(f"    profile {name}")
            start = _serve_as(rig.run, plan)
            _tell(start)
            try:
                bench = Bench(plan, data)
                bench.run = bench.run.model_copy(update={"start": start})
                for line in bench.lines():
                    logger.info(f"    {line}")
            except DeployError as error:
                raise StepFailed(f"profile {name}: {error}") from None


def _tell(start: Start) -> None:
    parts = (("port", start.port_s), ("HTTP", start.http_s), ("first token", start.first_token_s))
    seen = ", ".join(f"{word} after {took:.1f} s" for word, took in parts if took is not None)
    logger.info(f"    from its start: {seen or 'nothing was seen'}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Has the first Ctrl-C end the block by StepFailed in this greenlet; the next is pyinfra's."""
    here: Any = gevent.getcurrent()
    former = signal.getsignal(signal.SIGINT)

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, former)
        here.kill(Interrupted, block=False)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    except Interrupted:
        raise StepFailed("interrupted by Ctrl-C; what was measured is kept") from None
    finally:
        signal.signal(signal.SIGINT, former)


def _serve_as(run: Run, plan: Plan) -> Start:
    """Stops the engine, writes the plan's files, starts it; gives how long the start took.

    StepFailed without an answer.
    """
    head, workers = plan.rig.head.name, [node.name for node in plan.rig.workers]
    looks = observe(real(state), plan, fresh=True)
    run.announce()
    for node in (head, *workers):
        run.apply(node, [unit_step(UNIT, "stop", reload=False)], engine.UNIT_TIMEOUT_S)
    for node in (*workers, head):
        seen = looks[node]
        if not isinstance(seen, NodeSnapshot):
            raise StepFailed(f"{node}: {seen.unreadable}")
        steps = engine.file_steps(plan.documents[node], files_in(seen))
        if steps:
            run.apply(node, steps + engine.unit_steps(engine_unit(seen), True))
    where = endpoint_with_key(plan)
    watch = StartTimes(where)
    try:
        for node in (*workers, head):
            run.apply(node, [unit_step(UNIT, "start", reload=False)], engine.UNIT_TIMEOUT_S)
        budget = plan.recipe.expect.start_budget_s
        wait_for_answer(real(state), head, [head, *workers], where, budget)
        watch.held_by_ours()
        until = time.monotonic() + TOKEN_S
        # the watch may be one question behind
        while watch.found.http_s and not watch.found.first_token_s and time.monotonic() < until:
            gevent.sleep(0.1)
    finally:
        found = watch.stop()
    return found
