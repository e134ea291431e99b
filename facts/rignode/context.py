"""pyinfra's context: one host's work on behalf of another, and in greenlets of our own."""

from __future__ import annotations

from typing import Any

from pyinfra.api import Host, State
from pyinfra.context import ContextObject, ctx_config, ctx_host, ctx_state


def real(state: State) -> State:
    """The State behind pyinfra's `state` proxy, which is empty in other greenlets."""
    found: State = state
    if isinstance(state, ContextObject):
        found = ctx_state.get()
    return found


def in_host(state: State, host: Host, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `function` with pyinfra's context set to `host`; for work on another host's behalf."""
    with ctx_state.use(state), ctx_config.use(state.config.copy()), ctx_host.use(host):
        return function(*args, **kwargs)


def as_root(host: Host) -> dict[str, Any]:
    """pyinfra's arguments for a command of root's."""
    return {"_sudo": True, "_shell_executable": "sh"}


def fact_of(state: State, host: Host, fact: type, *args: Any, **kwargs: Any) -> Any:
    """A fact of any host, or None when it could not be read; never fails the host."""
    kwargs.setdefault("_ignore_errors", True)
    return in_host(state, host, host.get_fact, fact, *args, **kwargs)
