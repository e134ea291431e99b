"""What the vLLM that is to come says of its command line, before the one that serves is stopped."""

from __future__ import annotations

from collections.abc import Mapping

from gates.core.check import deploy_command
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.observed.artifact import ParserAnswer

_LINE = 300


def arguments(plan: Plan, deploy: str, answers: Mapping[str, ParserAnswer]) -> list[Violation]:
    """The target's own parser takes each node's command line.

    A flag that another version has, JSON that lost its quotes, a length that the model has not:
    what served is gone for as long as it takes to find that out (eugr/spark-vllm-docker#111).
    """
    found = []
    file = f"catalog/recipes/{plan.recipe.name}.yaml (profile {plan.profile})"
    again = deploy_command(plan, deploy) + " --dry"
    for node, answer in answers.items():
        if answer.outcome == "refused":
            found.append(
                violation(
                    "arguments-refused",
                    node,
                    f"vLLM itself refuses its command line: {answer.said[:_LINE]}",
                    evidence=f"its own parser on {node}, after {answer.took_s:.1f} s, with nothing "
                    f"stopped: {answer.said}",
                    remedy=f"change {file}, then: {again}",
                )
            )
        if answer.outcome == "unreadable":
            found.append(
                violation(
                    "weights-denied",
                    node,
                    f"the engine's user cannot read the weights: {answer.said[:_LINE]}",
                    evidence=f"asked on {node} as that user, after {answer.took_s:.1f} s, "
                    f"with nothing stopped: {answer.said}",
                    remedy=f"on {node}: sudo namei -l PATH, with the path above, shows the first "
                    "folder or file that is closed; a folder on the way: sudo chmod o+x FOLDER (no "
                    f"-R); the weights themselves: sudo chmod -R o+rX WEIGHTS; then: {again}",
                )
            )
        why = answer.said if answer.outcome == "unchecked" else answer.unsure
        if why and answer.outcome not in ("refused", "unreadable"):
            what = "the command line" if answer.outcome == "unchecked" else "the model's config"
            found.append(
                violation(
                    "arguments-unchecked",
                    node,
                    f"{what} could not be checked before the start: {why[:_LINE]}",
                    evidence=f"vLLM's own parser on {node}, after {answer.took_s:.1f} s: {why}",
                    remedy=f"nothing blocks; a start that fails goes back by itself; see it anew: "
                    f"{again}",
                )
            )
    return found
