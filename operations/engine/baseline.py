"""An engine's speed against what it was: measured before it is called recovered (incident B8)."""

from __future__ import annotations

from collections.abc import Callable

from facts.endpoint.completion import Endpoint
from facts.endpoint.throughput import NotMeasured, Rate, measure
from operations.change.node_call import StepFailed

# Rounds before a slow engine counts as slow: its first requests fill caches.
ROUNDS = 3


def told(rate: Rate, baseline: float) -> str:
    """A rate against its baseline, in plain words."""
    share = (1 - rate.tokens_per_s / baseline) * 100
    if share >= 1:
        return (
            f"{rate.tokens_per_s:.1f} tok/s, {share:.0f}% under baseline {baseline:.1f}: caches "
            "are cold, or it is not what it was; measure again once it has served a while"
        )
    return f"{rate.tokens_per_s:.1f} tok/s, baseline {baseline:.1f}"


def compared(endpoint: Endpoint, baseline: float | None) -> str:
    """A part of a line for a person; empty where there is nothing to compare with."""
    if baseline is None:
        return ""
    try:
        return f"; {told(measure(endpoint), baseline)}"
    except NotMeasured as error:
        return f"; baseline {baseline:.1f} tok/s, and no measurement: {error}"


def fast_enough(
    endpoint: Endpoint, baseline: float | None, tolerance: float, say: Callable[[str], None]
) -> str:
    """A line about the speed; StepFailed when it stays below (1 - tolerance) x baseline."""
    if baseline is None:
        try:
            return f"{measure(endpoint)}, with no baseline to compare"
        except NotMeasured as error:
            raise StepFailed(f"its speed could not be measured: {error}") from None
    floor = (1 - tolerance) * baseline
    best: Rate | None = None
    for _ in range(ROUNDS):
        try:
            rate = measure(endpoint)
        except NotMeasured as error:
            raise StepFailed(f"its speed could not be measured: {error}") from None
        best = rate if best is None or rate.tokens_per_s > best.tokens_per_s else best
        if best.tokens_per_s >= floor:
            return told(best, baseline)
        say(f"{rate}: below {floor:.1f}; measured again")
    assert best is not None
    raise StepFailed(
        f"too slow: {best} after {ROUNDS} rounds, baseline {baseline:.1f}, allowed {floor:.1f} "
        f"(tolerance {tolerance:.0%})"
    )
