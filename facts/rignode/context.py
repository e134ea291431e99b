"""pyinfra's context: one host's work on behalf of another, and in greenlets of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from pyinfra import logger
from pyinfra.api import Host, State, StringCommand
from pyinfra.connectors import util
from pyinfra.context import ContextObject, ctx_config, ctx_host, ctx_state

# what the operator's clock allows beyond the host's own limit: sudo, the start of Python, the wire
LATE_S = 30
# the readers of pyinfra's own limit end first: left running, they would fill this end's memory
END_S = 1.0
# more than any honest answer; behind it nothing is read, and the clock ends the command
MAX_OUT = 128 << 20


def real(state: State) -> State:
    """The State behind pyinfra's `state` proxy, which is empty in other greenlets."""
    found: State = state
    if isinstance(state, ContextObject):
        found = ctx_state.get()
    return found


def bound_output() -> None:
    """Has pyinfra's readers stop at MAX_OUT of a stream: a host that floods would fill this
    machine's memory, also without one newline.
    """
    read = util.read_buffer

    def at_most(stream: Any) -> Iterator[Any]:
        left = MAX_OUT
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            yield line

    def read_buffer(name: str, io: Any, *more: Any, **options: Any) -> None:
        read(name, at_most(io), *more, **options)

    util.read_buffer = read_buffer


@contextmanager
def own_clock(seconds: float) -> Iterator[None]:
    """Ends what stands below it after `seconds` of this machine's clock: TimeoutError.

    pyinfra's `_timeout` and paramiko's are of reading alone: a frozen host takes no input, never
    says how its command ended, or does not answer the wish for a channel.
    """
    clock = gevent.Timeout(seconds)
    try:
        with clock:
            yield
    except gevent.Timeout as ended:
        if ended is not clock:
            raise
        raise TimeoutError(f"no answer in {seconds:.0f} s") from None


def in_host(
    state: State, host: Host, function: Any, *args: Any, limit_s: int, **kwargs: Any
) -> Any:
    """Calls `function` (run_shell_command, get_fact) with pyinfra's context set to `host`, for work
    on another host's behalf. `limit_s` is the host's own limit; TimeoutError: it did not keep it.
    """
    late_s = limit_s + LATE_S
    if host.__dict__.pop("rigbook_cut", False):
        reconnect(state, host, LATE_S)
    try:
        with (
            own_clock(late_s + END_S),
            ctx_state.use(state), ctx_config.use(state.config.copy()), ctx_host.use(host),
        ):  # fmt: skip
            return function(*args, _timeout=late_s, **kwargs)
    except TimeoutError:
        # half a packet may be on the line: the next command gets a new one
        host.__dict__["rigbook_cut"] = True
        raise


def reconnect(state: State, host: Host, limit_s: float) -> None:
    """Ends the host's connection and makes a new one; `host.connected` says whether it came."""
    with own_clock(limit_s), ctx_state.use(state), ctx_host.use(host):
        host.disconnect()
        host.connect(show_errors=False)


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
            state, host, host.run_shell_command, StringCommand(line), _sudo=False, limit_s=10,
            print_output=False, print_input=False,
        )  # fmt: skip
    except Exception:  # the host itself does not answer
        return None
    said = output.stdout_lines
    if not said or said[-1] != "refused":
        return None
    login = host.data.get("ssh_user") or "this login"
    return f"passwordless sudo is missing for {login}: {' '.join(said[:-1])[-200:]}"


def fact_of(state: State, host: Host, fact: type, *args: Any) -> Any:
    """A fact of any host, or None when it could not be read; never fails the host."""
    limit_s = getattr(fact, "timeout_s", 60)
    try:
        return in_host(
            state, host, host.get_fact, fact, *args, _ignore_errors=True, limit_s=limit_s
        )
    except TimeoutError as error:
        logger.error(f"    [{host.name}] {fact.__name__}: {error}")
        return None
