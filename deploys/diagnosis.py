"""What the doctor adds to the gates: drift from the recipe, and whether the engine answers."""

from __future__ import annotations

import dataclasses
import json

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.support import endpoint, operator_data, remedy, say
from facts.endpoint import ask
from facts.observe import observe
from gates.codes import violation
from gates.drift import drift, engine_state
from gates.serving import SERVING, check
from gates.violation import Violation
from gates.waiver import blocking
from schema.engine import Plan
from schema.snapshot import NodeSnapshot


def diagnose(state: State, plan: Plan) -> list[Violation]:
    """All findings about a rig, lowest layer first."""
    observed = observe(state, plan)
    found = check(plan, observed, SERVING)
    running = False
    for node in plan.rig.nodes:
        snapshot = observed[node.name]
        if not isinstance(snapshot, NodeSnapshot):
            continue
        now = engine_state(plan, node, snapshot)
        running = running or now == "running"
        if now == "running":
            found += [_drifted(node.name, str(d)) for d in drift(plan, node, snapshot)]
        else:
            found.append(_not_running(node.name, now))
    found += _endpoint(plan, running)
    return sorted(found, key=lambda v: (v.layer, v.severity != "block", v.node or "", v.code))


def _drifted(node: str, difference: str) -> Violation:
    return violation(
        "drift",
        node,
        f"differs from the recipe: {difference}",
        evidence="the live process, container and files against what the recipe renders",
        remedy="pyinfra INVENTORY deploys/serve.py --dry --diff, then without --dry",
    )


def _not_running(node: str, now: str) -> Violation:
    return violation(
        "engine-down",
        node,
        f"the engine is {now}",
        evidence="state of rigbook-engine.service and its container",
        remedy="pyinfra INVENTORY deploys/serve.py",
    )


def _endpoint(plan: Plan, running: bool) -> list[Violation]:
    where = endpoint(plan)
    answer = ask(where, 60.0)
    if answer.ok:
        return []
    return [
        violation(
            "no-answer",
            plan.rig.head.name,
            f"{where.model} gives no real answer at {where.base_url}",
            evidence=answer.detail,
            remedy="mend the findings above first, then: pyinfra INVENTORY deploys/serve.py"
            if not running
            else "pyinfra INVENTORY deploys/serve.py (it restarts the nodes in order)",
        )
    ]


def print_report(plan: Plan, findings: list[Violation]) -> None:
    """Prints the findings; DeployError (exit status 1) when one of them blocks serving."""
    if operator_data().as_json:
        rows = [
            {**dataclasses.asdict(f), "layer": f.layer.name.lower(), "remedy": remedy(f)}
            for f in findings
        ]
        print(json.dumps(rows, indent=2))
    else:
        for finding in findings:
            say(finding)
    stops = blocking(findings)
    if stops:
        raise DeployError(
            f"{len(stops)} finding(s) block serving, the lowest layer first: {stops[0].code} "
            f"on {stops[0].node or 'the rig'}"
        )
    names = ", ".join(node.name for node in plan.rig.nodes)
    logger.info(f"    {names}: {plan.recipe.name} ({plan.profile}) serves; nothing blocks")
