"""Doctor's findings about the endpoint: what it said, with what the nodes looked like meanwhile."""

from __future__ import annotations

from gates.core.check import Observed, deploy_command
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.failure_signatures import cause_of, last_exit
from gates.engine.state import engine_unit
from schema.desired.plan import Plan
from schema.observed.endpoint_probe import Probe
from schema.observed.snapshot import NodeSnapshot


def answered(plan: Plan, probe: Probe, before: Observed, after: Observed) -> list[Violation]:
    """The finding about a probe that got no answer, or none here; none for one that did.

    `before` are the nodes when the probe was asked, `after` a look when it had failed: an engine
    that dies of its first request shows only there.
    """
    head = plan.rig.head.name
    if probe.not_here:
        return [
            violation(
                "no-way-here",
                head,
                f"the engine answers on {head}, and not for this machine",
                evidence=f"on {head}: {probe.detail}; {probe.not_here}",
                remedy="the ssh -N -L of the evidence, or open the port; after HTTP 401 or 403: "
                "read -rs RIGBOOK_API_KEY; export RIGBOOK_API_KEY",
            )
        ]
    if probe.failure is None:
        return []
    said = f"{probe.detail}; /health {probe.health or 'silent'}, /v1/models {_models(probe)}"
    if probe.failure == "timeout" and (probe.generated or 0) > 0:
        return [
            violation(
                "answer-slow",
                head,
                f"the engine works, but had no time for a question in {probe.seconds:.0f} s",
                evidence=f"{said}; it made {probe.generated:.0f} tokens for others meanwhile",
                remedy=f"{deploy_command(plan, 'verify')} (waits longer)",
            )
        ]
    if probe.models == 200 and probe.failure in ("status", "disconnected", "empty"):
        died = [text for text in (_died(n, before, after) for n in before) if text is not None]
        return [
            violation(
                "cannot-answer",
                head,
                f"the engine lists its model, and cannot answer: {_how(probe)}",
                evidence="; ".join((said, *(text for text, _ in died))),
                remedy=deploy_command(plan, "restart"),
                cause=next((cause for _, cause in died), ""),
            )
        ]
    return [
        violation(
            "no-answer",
            head,
            f"{plan.recipe.served_model_name} gives no real answer at {probe.url}",
            evidence=said,
            remedy=_mend(plan, probe),
        )
    ]


def _models(probe: Probe) -> str:
    names = f" ({', '.join(probe.served)})" if probe.served else ""
    return f"{probe.models or 'silent'}{names}"


def _how(probe: Probe) -> str:
    if probe.failure == "status":
        return f"HTTP {probe.status} to a chat"
    return "the line was cut" if probe.failure == "disconnected" else "an empty completion"


def _died(name: str, before: Observed, after: Observed) -> tuple[str, str] | None:
    """(what became of a node's engine during the probe, its likely cause), None when it lives."""
    one, other = before.get(name), after.get(name)
    if not isinstance(one, NodeSnapshot) or not isinstance(other, NodeSnapshot):
        return None
    then, now = engine_unit(one), engine_unit(other)
    if then is None or now is None:
        return None
    same = (then.main_pid, then.restarts, then.sub_state) == (
        now.main_pid,
        now.restarts,
        now.sub_state,
    )
    if same:
        return None
    text = (
        f"{now.name} on {name} is {now.active_state}/{now.sub_state} after the question, last "
        f"exit: {last_exit(now)}; log: {'; '.join(now.errors[-2:]) or now.last_log_line or 'none'}"
    )
    return text, cause_of(now)


def _mend(plan: Plan, probe: Probe) -> str:
    if probe.failure == "timeout":
        restart = deploy_command(plan, "restart")
        return f"{deploy_command(plan, 'verify')} (waits longer); then {restart}"
    return f"mend the findings above first, then: {deploy_command(plan, 'serve')}"
