"""All nodes of a rig at one moment: one snapshot a host, taken at the same time, asked once a run.

pyinfra has no fact cache and runs a deploy file once a host; the memo makes every host's run see
the same observation.
"""

from __future__ import annotations

from collections.abc import Mapping

from gevent.lock import RLock
from pyinfra.api import State

from facts.rignode.context import real
from facts.rignode.fact import ask_each
from facts.rignode.together import Together
from facts.snapshot import Snapshot
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable

_LOCK = RLock()
Looks = Mapping[str, NodeSnapshot | Unreadable]


def forget(state: State) -> None:
    """Has every later observation ask again, because what was seen has changed."""
    real(state).__dict__.pop("rigbook_observed", None)


def observe(state: State, plan: Plan, fresh: bool = False, asked: Together | None = None) -> Looks:
    """Each node's snapshot by name; an `Unreadable` says why a node could not be asked.

    `fresh` asks again, for a look after a change. `asked`: other facts of the same nodes, which
    are asked in the same command.
    """
    state = real(state)
    with _LOCK:
        # with the plan, which is kept: the id of one that is gone is the next one's
        memo: dict[int, tuple[Plan, Looks]] = state.__dict__.setdefault("rigbook_observed", {})
        key = id(plan)
        if fresh or key not in memo:
            requests = {name: one.model_dump_json() for name, one in plan.requests.items()}
            if asked is None:
                found = ask_each(state, plan, Snapshot(), requests)
            else:
                found = asked.add(Snapshot(), requests)()
            memo[key] = plan, found
        return memo[key][1]
