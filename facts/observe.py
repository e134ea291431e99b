"""All nodes of a rig at one moment: one snapshot a host, taken at the same time, asked once a run.

pyinfra has no fact cache and runs a deploy file once a host; the memo makes every host's run see
the same observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent
from gevent.lock import RLock
from pyinfra.api import Host, State, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.context import ContextObject, ctx_config, ctx_host, ctx_state

from facts.snapshot import Snapshot, parse_snapshot
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable

_LOCK = RLock()


def real(state: State) -> State:
    """The State behind pyinfra's `state` proxy, which is empty in other greenlets."""
    return ctx_state.get() if isinstance(state, ContextObject) else state


def in_host(state: State, host: Host, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `function` with pyinfra's context set to `host`; for work on another host's behalf."""
    with ctx_state.use(state), ctx_config.use(state.config.copy()), ctx_host.use(host):
        return function(*args, **kwargs)


def fact_of(state: State, host: Host, fact: type, *args: Any, **kwargs: Any) -> Any:
    """A fact of any host, or None when it could not be read; never fails the host."""
    kwargs.setdefault("_ignore_errors", True)
    return in_host(state, host, host.get_fact, fact, *args, **kwargs)


def observe(
    state: State, plan: Plan, fresh: bool = False
) -> Mapping[str, NodeSnapshot | Unreadable]:
    """Each node's snapshot by name; an `Unreadable` says why a node could not be asked.

    `fresh` asks again, for a look after a change.
    """
    state = real(state)
    with _LOCK:
        memo = state.__dict__.setdefault("rigbook_observed", {})
        key = id(plan)
        if fresh or key not in memo:
            jobs = {
                node.name: gevent.spawn(_look, state, node.name, plan.requests[node.name])
                for node in plan.rig.nodes
            }
            gevent.joinall(list(jobs.values()))
            memo[key] = {name: job.get() for name, job in jobs.items()}
        return memo[key]


def _look(state: State, name: str, request: Any) -> NodeSnapshot | Unreadable:
    host = state.inventory.get_host(name)
    if not state.is_host_in_limit(host):
        return Unreadable(unreadable="left out by --limit or --exclude; a rig is taken whole")
    if host not in state.active_hosts:
        return Unreadable(unreadable="no ssh connection (pyinfra's line above says why)")
    try:
        return _ask(state, host, request.model_dump_json())
    except FactProcessError as error:
        return Unreadable(unreadable=str(error))
    except Exception as error:  # whatever went wrong: this node is unknown, not fine
        return Unreadable(unreadable=f"{type(error).__name__}: {error}")


def _ask(state: State, host: Host, request: str) -> NodeSnapshot:
    # Not get_fact: it answers None and keeps the reason, which the gate has to name.
    _, output = in_host(
        state,
        host,
        host.run_shell_command,
        StringCommand(Snapshot().command(request)),
        print_output=state.print_fact_output,
        print_input=state.print_fact_input,
        _sudo=True,
    )
    return parse_snapshot(output.stdout_lines or output.stderr_lines)
