"""bench of weights loaders: how long the engine takes from its start to its first token with each.

Each start is from cold: the page cache is dropped once the engine is stopped, on every node. All of
it is one change that ends by its undo, as with profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from pyinfra import logger

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.procedures.engine.installed import endpoint_with_key
from deploys.procedures.measure import profiles
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from schema.desired.plan import CONTAINER, Plan
from schema.inputs.measure_data import BenchData
from schema.measure.statistics import compare

AS_IS = "as the recipe says"
# More than any machine has: the page cache is dropped whatever is free.
_ALL = 1 << 49
DROP_TIMEOUT_S = 180


@once_a_run
def plans(rig: Procedure) -> dict[str, Plan]:
    """The plan of each loader, the recipe's own first; DeployError where the key is missing."""
    endpoint_with_key(rig.plan)
    found = {AS_IS: rig.plan}
    for name in rig.data(BenchData).loaders:
        flags = {**rig.plan.recipe.vllm_serve, "load_format": name}
        recipe = rig.plan.recipe.model_copy(update={"vllm_serve": flags})
        found[name] = profiles.served_as(replace(rig.plan, recipe=recipe), rig.plan.profile)
    return found


def measure_each(rig: Procedure, wanted: Mapping[str, Plan], rounds: int) -> None:
    """Starts the engine with each loader in turn; StepFailed when none starts, or at Ctrl-C."""
    took: dict[str, list[float]] = {name: [] for name in wanted}
    with profiles.interruptible():
        for number in range(1, rounds + 1):
            for name in list(took):
                seconds = _cold_start(rig.run, name, wanted[name])
                if seconds is None:
                    del took[name]
                    continue
                took[name].append(seconds)
                logger.info(f"    {name}, {number} of {rounds}: {seconds:.1f} s to the first token")
        for line in told(took, rig.plan.recipe.name):
            logger.info(f"    {line}")


def _cold_start(run: Run, name: str, plan: Plan) -> float | None:
    """Seconds from a cold start to the first token; None where the engine does not start with it.

    StepFailed where it does not start as it did before.
    """
    try:
        start = profiles.serve_as(run, plan, lambda node: _drop(run, node))
    except StepFailed as error:
        if name == AS_IS:
            raise
        logger.warning(f"    {name}: {error}")
        return None
    if start.first_token_s is None:
        raise StepFailed(f"{name}: it answers, and no first token was seen")
    return start.first_token_s


def _drop(run: Run, node: str) -> None:
    """Drops the page cache of a node; where its kernel does not let us, that is told."""
    request = {"change": run.change(), "need_free_bytes": _ALL, "unless_running": CONTAINER}
    try:
        call(run.state, run.host(node), "caches", request, DROP_TIMEOUT_S)
    except StepFailed as error:
        if error.code != "no_drop_caches":
            raise
        logger.warning(f"    {node}: not from cold: {error}")


def told(took: Mapping[str, list[float]], recipe: str) -> list[str]:
    """A line a loader, and the fastest that the rounds show to be faster than the recipe's own."""
    before = took[AS_IS]
    lines = [f"{AS_IS}: {_seconds(before)}"]
    faster: dict[str, float] = {}
    for name, each in took.items():
        if name == AS_IS:
            continue
        found = compare(before, each, more_is="worse")
        share = f", {found.share.value:+.0%}" if found.share else ""
        lines.append(f"{name}: {_seconds(each)}{share}: {found.word}")
        if found.word == "better":
            faster[name] = median(each)
    if faster:
        best = min(faster, key=lambda name: faster[name])
        lines.append(f"for catalog/recipes/{recipe}.yaml: vllm_serve: load_format: {best}")
    return lines


def _seconds(values: list[float]) -> str:
    return f"{median(values):.1f} s to the first token ({min(values):.1f} to {max(values):.1f})"
