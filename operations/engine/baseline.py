"""An engine's speed against what it was: measured before it is called recovered (incident B8).

Both sides are rounds by the same client, from this machine: two versions of an engine bring two
versions of its own (docs/adr/0029).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from facts.endpoint.completion import Endpoint
from facts.endpoint.throughput import NotMeasured, NotReached, Rate, measure
from operations.change.node_call import StepFailed
from schema.measure.statistics import compare

# Measurements before a slow engine counts as slow: its first requests fill caches.
ATTEMPTS = 3


def told(rate: Rate, before: Sequence[float]) -> str:
    """A rate against the rounds before it, in plain words, by the spread of both."""
    baseline = median(before)
    word = compare(before, rate.each).word
    share = (1 - rate.tokens_per_s / baseline) * 100
    if word == "worse" or (word == "too few rounds to say" and share >= 1):
        return (
            f"{rate.tokens_per_s:.1f} tok/s, {share:.0f}% under baseline {baseline:.1f}: caches "
            "are cold, or it is not what it was; measure again once it has served a while"
        )
    said = f", {word}" if word in ("better", "within noise") else ""
    return f"{rate.tokens_per_s:.1f} tok/s, baseline {baseline:.1f}{said}"


def compared(
    endpoint: Endpoint, before: Sequence[float], published: float | None, profile: str
) -> str:
    """A part of a line for a person, also where there is nothing to compare with.

    `before`: rounds that were measured here, tokens a second. `published`: the recipe's figure,
    which is told beside ours where there are none, and is no baseline. `profile`: what runs.
    """
    if not before and published is None:
        return (
            f"; no baseline for {profile}: its speed was not compared; measure it with: "
            "pyinfra INVENTORY deploys/bench.py -y"
        )
    try:
        rate = measure(endpoint)
    except NotMeasured as error:
        known = f"baseline {median(before):.1f} tok/s, and " if before else ""
        return f"; {known}no measurement: {error}"
    if published is None or before:
        return f"; {told(rate, before)}"
    return f"; {rate}; published {published:.1f}, which nobody measured here"


def fast_enough(
    endpoint: Endpoint, before: Sequence[float], tolerance: float, say: Callable[[str], None]
) -> str:
    """A line about the speed; StepFailed when it stays below (1 - tolerance) x what was measured
    before, and more than the spread of the rounds explains. Where this machine has no way to the
    port, the speed is not known, and the engine is not taken back for that.
    """
    try:
        if not before:
            return f"{measure(endpoint)}, with no baseline to compare"
        baseline = median(before)
        floor = (1 - tolerance) * baseline
        best: Rate | None = None
        for _ in range(ATTEMPTS):
            rate = measure(endpoint)
            best = rate if best is None or rate.tokens_per_s > best.tokens_per_s else best
            noise = compare(before, best.each).word == "within noise"
            if best.tokens_per_s >= floor or noise:
                return told(best, before)
            say(f"{rate}: below {floor:.1f}; measured again")
    except NotReached as error:
        return f"its speed was not measured, this machine cannot reach it: {error}"
    except NotMeasured as error:
        raise StepFailed(f"its speed could not be measured: {error}") from None
    raise StepFailed(
        f"too slow: {best} after {ATTEMPTS} measurements, baseline {baseline:.1f}, allowed "
        f"{floor:.1f} (tolerance {tolerance:.0%})"
    )
