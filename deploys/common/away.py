"""What the nodes did by themselves while the operator was away: the next command says it first."""

from __future__ import annotations

from pyinfra import logger

from deploys.common.load_and_gate import dry_run
from deploys.common.take_up import changes_of
from gates.core.check import Observed
from node.rules.heartbeat import KEEPER
from operations.change.alive_here import forget, is_alive_here


def told(seen: Observed) -> Observed:
    """Tells, once, what became of this machine's changes whose lease ran out; gives `seen`."""
    ended: dict[str, list[str]] = {}
    for name, snapshot in seen.items():
        for change in changes_of(snapshot):
            taken = change.taken_by
            if taken is not None and taken.deploy == KEEPER and change.status != "OPEN":
                what = f"{change.deploy}, change {change.id}"
                row = f"{name} is {change.status}: {change.reason}"
                ended.setdefault(change.id, [what]).append(row)
    for identifier, (what, *rows) in ended.items():
        if is_alive_here(identifier) is False:
            logger.warning(f"while you were away ({what}): {'; '.join(rows)}")
            if not dry_run():
                forget(identifier)
    return seen
