"""What the doctor asks of an engine's files: are the patches in force, is its version known bad.

Asked beside the snapshots, at the same time; a node that cannot say is named as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import look_at_patches, venv_of
from deploys.common.known_bad import known
from gates.artifact.file_patch_state import PatchState
from gates.artifact.file_patches import told
from gates.artifact.known_bad import below_gate, engine_gate
from gates.core.check import Observed
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot


class InForce:
    """A look at the recipe's patches on every node, under way from the moment it is made."""

    def __init__(self, state: State, plan: Plan) -> None:
        # Before a greenlet: the operator's data are those of the host in context.
        venvs = {
            node.name: venv_of(plan, node.name)
            for node in (plan.rig.nodes if plan.recipe.file_patches else ())
        }
        self._jobs = {n: gevent.spawn(_look, state, plan, n, venv) for n, venv in venvs.items()}

    def findings(self, observed: Observed) -> list[Violation]:
        """What is not in force, on the nodes that answered at all."""
        found: list[Violation] = []
        for name, job in self._jobs.items():
            answer = job.get()
            if not isinstance(observed.get(name), NodeSnapshot):
                continue  # nodes-reachable names it
            if isinstance(answer, str):
                found.append(_unknown(name, answer))
            else:
                found += told(name, answer)
        return found


def _look(state: State, plan: Plan, name: str, venv: str | None) -> tuple[PatchState, ...] | str:
    """The states of the patches on one node, or why they cannot be told."""
    states: Mapping[str, Any]
    try:
        states, _ = look_at_patches(state, plan, {name: venv})
    except DeployError as error:
        return str(error)
    return tuple(states[name])


def _unknown(node: str, why: str) -> Violation:
    return violation(
        "patch-unknown",
        node,
        "whether the recipe's patches are in force cannot be told",
        evidence=why,
        remedy="pyinfra INVENTORY deploys/patch.py --dry --diff",
        unknown=True,
    )


def known_to_fail(plan: Plan, observed: Observed, answers: bool) -> list[Violation]:
    """What runs or lies there although the catalog calls it broken here; DeployError for its table.

    `answers`: the engine gave a real completion. Then the table is what is wrong, and it warns.
    """

    def works(snapshot: NodeSnapshot) -> bool:
        return answers

    return check(plan, observed, [below_gate(known(), works), engine_gate(known(), works)])
