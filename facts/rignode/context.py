"""pyinfra's context: one host's work on behalf of another, and in greenlets of our own."""

from __future__ import annotations

from typing import Any

from pyinfra.api import Host, State, StringCommand
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
    """pyinfra's arguments for a command of root's: by sudo, which a login that is root does without
    (deploys/common/cli_guards.py sets `_sudo` for it).
    """
    return {"_sudo": host.data.get("_sudo") is not False, "_shell_executable": "sh"}


def no_sudo(state: State, host: Host, error: Exception | None = None) -> str | None:
    """Why a command of root's could not run on the host, in sudo's own words; None: not sudo's
    doing. Asked after a failure: a sudo that refuses leaves the program on its stdin unread, and
    the broken pipe hides what it said.
    """
    if not as_root(host)["_sudo"] or not isinstance(error, BrokenPipeError | EOFError | None):
        return None
    # exit status 0 whatever comes: pyinfra asks a person for a password otherwise
    line = "sudo -H -n true 2>&1 || { echo refused; exit 0; }"
    try:
        _, output = in_host(
            state, host, host.run_shell_command, StringCommand(line), _sudo=False, _timeout=10,
            print_output=False, print_input=False,
        )  # fmt: skip
    except Exception:  # the host itself does not answer
        return None
    said = output.stdout_lines
    if not said or said[-1] != "refused":
        return None
    login = host.data.get("ssh_user") or "this login"
    return f"passwordless sudo is missing for {login}: {' '.join(said[:-1])[-200:]}"


def fact_of(state: State, host: Host, fact: type, *args: Any, **kwargs: Any) -> Any:
    """A fact of any host, or None when it could not be read; never fails the host."""
    kwargs.setdefault("_ignore_errors", True)
    return in_host(state, host, host.get_fact, fact, *args, **kwargs)
