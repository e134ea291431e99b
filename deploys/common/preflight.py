"""What the vLLM that is to come says of its command line, asked before anything is stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import logger
from pyinfra.api import State

from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from gates.core.violation import Violation
from gates.engine.arguments import arguments
from schema.core.parse import misfit
from schema.desired.plan import EngineSpec, Plan
from schema.observed.artifact import ParserAnswer

# The longest that the program may take on a host, and the call around it.
TIMEOUT_S = 180
_CALL_S = TIMEOUT_S + 60


def preflight(
    state: State, plan: Plan, deploy: str, venvs: Mapping[str, str] | None = None
) -> list[Violation]:
    """Findings about what the target, image or venv, says of the command line that it is to get;
    read-only, all nodes at the same time. Its seconds are told.

    The nodes of a rig have the same image (the gate `image-differs`), and their command lines
    differ in what rigbook adds: of an image the head alone is asked. A venv is each node's own.
    `venvs`: the folder of each node's venv where it is not the recipe's (a version that comes).
    """
    started = time.monotonic()
    a_state = real(state)
    jobs = {
        name: gevent.spawn(_ask, a_state, name, _request(plan, spec, (venvs or {}).get(name)))
        for name, spec in plan.specs.items()
        if plan.recipe.container is None or name == plan.rig.head.name
    }
    gevent.joinall(list(jobs.values()))
    answers = {name: job.get() for name, job in jobs.items()}
    taken = [name for name, answer in answers.items() if answer.outcome == "accepted"]
    if taken:
        logger.info(
            f"    vLLM's own parser takes the command line of {', '.join(taken)} "
            f"({time.monotonic() - started:.1f} s)"
        )
    return arguments(plan, deploy, answers)


def _request(plan: Plan, spec: EngineSpec, venv: str | None) -> dict[str, Any]:
    where: dict[str, Any] = {"venv": venv or spec.venv, "user": spec.user}
    if plan.recipe.container is not None:
        volumes = [[source, target] for source, target, _ in spec.volumes]
        where = {"image": plan.recipe.container.image, "volumes": volumes}
    return {"argv": spec.argv, "environ": spec.environ, "timeout_s": TIMEOUT_S, **where}


def _ask(state: State, name: str, request: dict[str, Any]) -> ParserAnswer:
    try:
        answer = ask_node(state, state.inventory.get_host(name), "preflight", request, _CALL_S)
        return ParserAnswer.model_validate(answer)
    except AskFailed as error:
        why = str(error)
    except ValidationError as error:
        why = f"{name}: the host's answer {misfit(error)}"
    return ParserAnswer(outcome="unchecked", said=why, unsure="", took_s=0.0)
