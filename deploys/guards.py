"""Guards around pyinfra's own command line: where it would go on or say nothing, rigbook stops.

pyinfra exits 0 when `--limit` matches no host, goes on with the hosts that are left when one
cannot be reached, and `--serial`/`--no-wait` run a rig's steps out of order (pyinfra-notes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click
from pyinfra.api import State
from pyinfra.api.exceptions import PyinfraError

_OUT_OF_ORDER = ("--serial", "--no-wait")


def install(state: State, arguments: Sequence[str]) -> None:
    """Checks the command line and wraps `state.init`, which runs once the inventory is known."""
    for flag in _OUT_OF_ORDER:
        if flag in arguments:
            raise PyinfraError(f"{flag} breaks the order worker, head, answer; run without it")
    for pair in _data_pairs(arguments):
        if not pair.partition("=")[1]:
            raise PyinfraError(f"--data {pair!r} has no value; allowed: --data key=value")
    typed = click.get_current_context(silent=True)
    state.__dict__["rigbook_inventory"] = typed and typed.params.get("inventory")
    original = state.init

    def init(inventory: Any, config: Any, initial_limit: Any = None) -> None:
        # A lost host is named by the gate nodes-reachable, which stops the run on all hosts.
        config.FAIL_PERCENT = None
        state.should_raise_failed_hosts = None
        original(inventory, config, initial_limit=initial_limit)
        names = ", ".join(sorted(host.name for host in inventory))
        if not names:
            raise PyinfraError("the inventory has no hosts; see inventory/spark.py for the shape")
        if initial_limit is not None and not initial_limit:
            raise PyinfraError(f"--limit/--exclude leave no host; the inventory has: {names}")

    state.init = init  # type: ignore[method-assign]


def _data_pairs(arguments: Sequence[str]) -> list[str]:
    """What stands behind each --data; pyinfra splits it at `=` and fails where there is none."""
    following = [after for flag, after in pairwise(arguments) if flag == "--data"]
    joined = [a.removeprefix("--data=") for a in arguments if a.startswith("--data=")]
    return following + joined
