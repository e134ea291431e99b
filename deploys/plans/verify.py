"""The plan of the runbook verify: what it inspects, plans and proves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, endpoint, inventory_name
from facts.endpoint import Endpoint
from facts.measure import NotMeasured, Rate, aggregate, measure
from facts.node import look_at_engine, real
from gates.processes import compare_vllm_flags, serves
from gates.recipe import written_argv
from schema.keys import VerifyData
from schema.plan import Plan, engine_spec
from schema.recipe import Baseline, Recipe
from schema.snapshot import NodeSnapshot

# What `measure=true` of verify does: rates of the profile that runs, against its baselines.

# What templates of chats call their switch for thoughts.
THINKING = ("thinking", "enable_thinking")


def measured(rig: Procedure) -> Iterator[str]:
    """A line for each measurement that `measure=true` asks for, as it comes; none without it.

    DeployError after the last one when a rate is below what the recipe tolerates, and for an engine
    that cannot be measured.
    """
    plan = rig.plan
    if plan.runtime == "deployment" or not rig.data(VerifyData).measure:
        return
    profile, words = running_profile(plan)
    yield words
    rows = [row for row in plan.recipe.expect.baselines if row.profile == profile]
    # verify has looked whose engine answers
    where = without_thoughts(plan.recipe, endpoint(plan).held_by_ours())
    tolerance = plan.recipe.expect.tolerance
    slow: list[str] = []
    try:
        if not rows:
            yield (
                f"1 stream: {measure(where)}; recipe {plan.recipe.name} has no baseline for "
                f"{profile or 'these flags'} in expect.baselines; keep what is measured with: "
                f"pyinfra {inventory_name()} deploys/bench.py -y"
            )
        for row in rows:
            rate = aggregate(where, row.concurrency, row.tokens)
            floor = (1 - tolerance) * row.tokens_per_s
            yield f"{_streams(row)}: {rate}, {_compared(rate, row)}"
            if rate.tokens_per_s < floor:
                slow.append(f"{_streams(row)} {rate.tokens_per_s:.1f}, allowed {floor:.1f}")
    except NotMeasured as error:
        raise DeployError(f"{where.model} answers, and could not be measured: {error}") from None
    if slow:
        raise DeployError(
            f"{where.model} ({profile}) answers, and is too slow: {'; '.join(slow)} tok/s "
            f"(tolerance {tolerance:.0%}); caches are cold after a start, and others may be asking "
            "it: measure again in peace"
        )


def running_profile(plan: Plan) -> tuple[str | None, str]:
    """The recipe's profile that the head's engine runs, and a line about it; None: its flags are
    none of the recipe's profiles'. DeployError when the head cannot tell.

    The launch script's, which a proven answer has shown to be the engine's.
    """
    head = plan.rig.head
    seen = look_at_engine(real(state), (head.name,))[head.name]
    live = written_argv(seen) if isinstance(seen, NodeSnapshot) else ()
    if not serves(live):
        raise DeployError(f"{head.name} does not tell which flags its engine runs with")
    named = dict.fromkeys((plan.profile, *plan.recipe.profiles))
    differ = {
        name: [flag for flag, _, _ in compare_vllm_flags(_argv(plan, name), live)] for name in named
    }  # fmt: skip
    running = next((name for name, flags in differ.items() if not flags), None)
    if running is None:
        flags = ", ".join(differ[plan.profile])
        return None, f"no profile of recipe {plan.recipe.name}: {flags} differ from {plan.profile}"
    if running != plan.profile:
        return running, f"runs profile {running}, not {plan.profile}: {running} is compared"
    return running, f"runs profile {running}"


def _argv(plan: Plan, profile: str) -> tuple[str, ...]:
    return engine_spec(plan.rig, plan.rig.head, plan.recipe, profile).argv


def without_thoughts(recipe: Recipe, where: Endpoint) -> Endpoint:
    """The endpoint with thinking off where the recipe turns it on: baselines are of answers."""
    defaults = recipe.vllm_serve.get("default_chat_template_kwargs")
    own = dict(where.chat_template_kwargs)
    asked = {**(defaults if isinstance(defaults, dict) else {}), **own}
    off = {name: False for name in THINKING if asked.get(name) is True}
    if not off:
        return where
    return replace(where, chat_template_kwargs=tuple({**own, **off}.items()))


def _streams(row: Baseline) -> str:
    return f"{row.concurrency} stream{'s' if row.concurrency > 1 else ''}"


def _compared(rate: Rate, row: Baseline) -> str:
    share = (rate.tokens_per_s / row.tokens_per_s - 1) * 100
    return f"baseline {row.tokens_per_s:.1f} ({share:+.0f}%)"
