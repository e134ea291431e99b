"""What the nodes did by themselves while the operator was away: the next command says it first."""

from __future__ import annotations

from pyinfra import logger, state

from deploys.common.load_and_gate import dry_run, once_a_run
from deploys.common.take_up import changes_of
from facts.observe import observe
from facts.rignode.context import real
from gates.core.check import Observed
from node.rules.heartbeat import KEEPER
from operations.change.alive_here import died_here, forget, is_alive_here
from schema.desired.plan import Plan


def told(seen: Observed) -> Observed:
    """Tells what became of this machine's changes whose lease ran out, once they are closed on
    every node that has them the last time; gives `seen`.
    """
    ended: dict[str, list[str]] = {}
    open_still = set()
    for name, snapshot in seen.items():
        for change in changes_of(snapshot):
            taken = change.taken_by
            if taken is None or taken.deploy != KEEPER:
                continue
            row = f"{name} is {change.status}: {change.reason}"
            if change.status == "OPEN":
                open_still.add(change.id)
                row = f"{name} is going back by itself, and has not ended"
            ended.setdefault(change.id, [f"{change.deploy}, change {change.id}"]).append(row)
    for identifier, (what, *rows) in ended.items():
        if is_alive_here(identifier) is False:
            logger.warning(f"while you were away ({what}): {'; '.join(rows)}")
            if not dry_run() and identifier not in open_still:
                forget(identifier)
    return seen


@once_a_run
def tell(plan: Plan) -> None:
    """The same, for a runbook that looks at no node: they are asked only after a run that died.

    A Kubernetes rig has no lease.
    """
    if plan.deployment is None and died_here():
        told(observe(real(state), plan))
