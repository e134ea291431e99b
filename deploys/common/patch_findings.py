"""What the doctor asks of an engine's files: are the patches in force, is its version known bad.

A node that cannot say is named as unknown.
"""

from __future__ import annotations

import json

from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import look_request, patch_states, venv_of
from deploys.common.known_bad import known
from facts.engine_files import PatchedFiles
from facts.rignode.together import Together
from gates.artifact.file_patches import told
from gates.artifact.known_bad import below_gate, engine_gate
from gates.core.check import Observed
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable


class InForce:
    """The recipe's patches on every node: a part of what the nodes are `asked`."""

    def __init__(self, asked: Together, plan: Plan) -> None:
        nodes = [node.name for node in (plan.rig.nodes if plan.recipe.file_patches else ())]
        requests = {name: json.dumps(look_request(plan, name, venv_of(plan, name)))
                    for name in nodes}  # fmt: skip
        self._plan = plan
        self._answers = asked.add(PatchedFiles(), requests)

    def findings(self, observed: Observed) -> list[Violation]:
        """What is not in force, on the nodes that answered at all."""
        found: list[Violation] = []
        for name, answer in self._answers().items():
            if not isinstance(observed.get(name), NodeSnapshot):
                continue  # nodes-reachable names it
            if isinstance(answer, Unreadable):
                found.append(_unknown(name, answer.unreadable))
                continue
            try:
                found += told(name, patch_states(self._plan, answer))
            except DeployError as error:
                found.append(_unknown(name, str(error)))
        return found


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
