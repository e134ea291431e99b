"""Guards of pyinfra's command line."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory, extract_name_data

from facts.endpoint import KEY_VARIABLE
from facts.node import bound_output

# Guards around pyinfra's own command line: where it would go on or say nothing, rigbook stops.
#
# pyinfra exits 0 when `--limit` matches no host, goes on with the hosts that are left when one
# cannot be reached, and `--serial`/`--no-wait` run a rig's steps out of order (pyinfra-notes.md).

ROOT = Path(__file__).resolve().parents[2]
_OWN_CODE = ("deploys", "facts", "gates", "operations", "schema")
# all that moves a cursor or turns a line around, but pyinfra's own colours
_ESCAPE = re.compile(
    "(?!\x1b\\[(?:0|1|3[0-7]|9[0-7])m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
_OUT_OF_ORDER = ("--serial", "--no-wait")
# The deploy whose hosts are down as a rule.
WAKES = "wake.py"
# What --data holds to see the keys that a runbook takes, in place of running it.
HELP = "help=true"
_NO_QUESTION = ("yes", "dry", "json_output", "debug_facts", "debug_operations")


def harmless(record: logging.LogRecord) -> bool:
    """Takes out of a line what a host's words could do to a terminal; the line is always shown."""
    record.msg, record.args = _ESCAPE.sub("?", record.getMessage()), ()
    return True


def _as_typed(state: Any, record: logging.LogRecord) -> bool:
    """Puts the inventory that was typed into each command that a line names."""
    named = state.__dict__.get("rigbook_inventory")
    if named and isinstance(record.msg, str):
        record.msg = record.msg.replace("pyinfra INVENTORY ", f"pyinfra {shlex.quote(str(named))} ")
    return True


def install_cli_guards(state: State, arguments: Sequence[str]) -> None:
    """Checks the command line and wraps `state.init`, which runs once the inventory is known."""
    from pyinfra_cli import exceptions as shown  # it patches threads: not for who imports this file

    logger.addFilter(harmless)
    logger.addFilter(partial(_as_typed, state))
    bound_output()
    # Its thread logs a traceback of what pyinfra tells in a line.
    logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
    for flag in _OUT_OF_ORDER:
        if flag in arguments:
            raise PyinfraError(f"{flag} breaks the order worker, head, answer; run without it")
    key = os.environ.get(KEY_VARIABLE, "")
    # Its HTTP client would quote the key in the error.
    if not (key.isascii() and key.isprintable()):
        raise PyinfraError(f"{KEY_VARIABLE} has characters no HTTP header can hold; set it again")
    for pair in _data_pairs(arguments):
        if not pair.partition("=")[1]:
            raise PyinfraError(f"--data {pair!r} has no value; allowed: --data key=value")
    _refuse_twice("--data", [pair.partition("=")[0] for pair in _data_pairs(arguments)])
    context = click.get_current_context(silent=True)
    typed = context.params if context else {}
    runbooks = tuple(Path(str(name)).stem for name in typed.get("operations") or ())
    if HELP in _data_pairs(arguments):
        _print_keys(runbooks)
        raise SystemExit(0)
    _refuse_a_question_to_nobody(typed)
    state.__dict__["rigbook_runbooks"] = runbooks
    named = typed.get("inventory") or "INVENTORY"
    state.__dict__["rigbook_inventory"] = named
    state.__dict__["rigbook_dry"] = bool(typed.get("dry"))
    state.__dict__["rigbook_asks"] = not any(typed.get(flag) for flag in _NO_QUESTION)
    # pyinfra's own ends with 0, as a success does
    signal.signal(signal.SIGINT, partial(_interrupted, state))
    shown.get_frame_line_from_tb = partial(_place, shown.get_frame_line_from_tb)
    if context:
        context.call_on_close(partial(_say_last, state))
    make = Inventory.make_hosts_and_groups

    def make_once(inventory: Any, names: list[Any], groups: Mapping[str, Any]) -> None:
        # pyinfra keeps the last of two hosts of one name, and says nothing
        for group, (rows, _) in groups.items():
            _refuse_twice(f"{named}: {group}", [name for name, _ in extract_name_data(rows)])
        make(inventory, names, groups)

    replaced: Any = Inventory
    replaced.make_hosts_and_groups = make_once
    asleep = any(Path(str(name)).name == WAKES for name in typed.get("operations") or ())
    original = state.init

    def init(inventory: Any, config: Any, initial_limit: Any = None) -> None:
        # A lost host is named by the gate nodes-reachable, which stops the run on all hosts.
        config.FAIL_PERCENT = None
        state.should_raise_failed_hosts = None
        # A step waits for all hosts that take part in it; pyinfra begins with 20 a core at most.
        config.PARALLEL = config.PARALLEL or len(list(inventory))
        original(inventory, config, initial_limit=initial_limit)
        fails: Any = state.fail_hosts

        def fail_hosts(hosts: Any, activated_count: Any = None) -> None:
            # A rig of which no host answers has its findings, too: pyinfra would end without them.
            if hosts and not state.activated_hosts:
                for lost in hosts:
                    state.activate_host(lost)
                return
            try:
                fails(hosts, activated_count=activated_count)
            except PyinfraError:  # "No hosts remaining!", below the line that matters
                if not last_words(state):
                    raise
                raise SystemExit(1) from None

        state.__dict__["fail_hosts"] = fail_hosts
        for one in inventory:
            if one.data.get("_sudo") is None and logs_in_as_root(one):
                one.data._sudo = False  # pyinfra's own operations read it there, too
        if asleep:
            leave_unconnected(inventory)
        names = ", ".join(sorted(host.name for host in inventory))
        if not names:
            raise PyinfraError(
                f"{named} is not there or has no hosts; see inventory/spark.py for the shape"
            )
        if names and len(list(inventory)) > config.PARALLEL:
            raise PyinfraError(
                f"--parallel {config.PARALLEL} breaks a rig of {len(list(inventory))} hosts, whose "
                "steps run on all of them at once; run without it"
            )
        if initial_limit is not None and not initial_limit:
            raise PyinfraError(f"--limit/--exclude leave no host; the inventory has: {names}")

    # pyinfra gives no hook there: the method is replaced.
    state.__dict__["init"] = init


def last_words(state: Any) -> list[str]:
    """What a failed run ends with, in order; operations.run adds to it."""
    words: list[str] = state.__dict__.setdefault("rigbook_last_words", [])
    return words


def _say_last(state: Any) -> None:
    if words := list(dict.fromkeys(last_words(state))):
        logger.warning(f"--> error: {'; '.join(words)}")


def _place(found: Any, trace: Any) -> Any:
    """Where pyinfra says that an error arose: in an inventory, that helps; in our code, it hides
    the verdict."""
    info = found(trace)
    ours = info is not None and any(
        Path(info.filename).is_relative_to(ROOT / part) for part in _OWN_CODE
    )
    return None if ours else info


def _interrupted(state: Any, *_: Any) -> None:
    """Ends with 130, as a shell does, and says what to type: nothing is undone by an interrupt."""
    rig = shlex.quote(str(state.__dict__["rigbook_inventory"]))
    run = state.__dict__.get("rigbook_run")
    nodes = sorted(run.touched) if run and not run.closed else []
    if nodes:
        down = sorted(run.down)
        what = (
            f"change {run.id} is open on {', '.join(nodes)}"
            + (
                f"; it stopped the engine on {', '.join(down)}, which does not serve"
                if down
                else ""
            )
            + f"; run the same command again, or undo it: {run.rollback()}"
        )
    else:
        what = (
            "this run left no change open; whether an older one is open: "
            f"pyinfra {rig} deploys/doctor.py -y"
        )
    click.echo(f"--> interrupted: {what}", err=True)
    # not sys.exit: it ends one greenlet, and the run would go on
    sys.stdout.flush()
    os._exit(130)


def _refuse_twice(where: str, names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PyinfraError(f"{where}: {', '.join(map(repr, twice))} is given twice; allowed: once")


def logs_in_as_root(host: Any) -> bool:
    """Whether the login is root, who needs no sudo (and may have none)."""
    if str(host.name).startswith("@local"):
        return os.geteuid() == 0
    return bool(host.data.get("ssh_user") == "root")


def _print_keys(runbooks: Sequence[str]) -> None:
    """Prints the keys of --data that these runbooks take, one a line."""
    from schema.load import key_lines  # for this alone: no other run pays for it

    for name in runbooks:
        for line in key_lines(name):
            click.echo(line)


def leave_unconnected(inventory: Any) -> None:
    """Takes every host for connected without a connection: pyinfra connects to all hosts before it
    reads a deploy, ends where none answers, and leaves out those that do not.

    `connected_now` makes the real connection where one is needed.
    """
    for host in inventory:
        host.__dict__["rigbook_connect"] = host.connect

        def later(*_: Any, host: Any = host, **__: Any) -> None:
            host.connected = True

        host.connect = later


def connected_now(host: Any) -> None:
    """Connects to a host that `leave_unconnected` left; pyinfra's ConnectError says why not."""
    host.connected = False
    host.__dict__["rigbook_connect"](show_errors=False, raise_exceptions=True)


def own_folder() -> None:
    """Raises PyinfraError outside rigbook's own folder: pyinfra finds no group_data there, says
    nothing, and connects with the wrong user and key. Inventories call it, since they run first.
    """
    if Path.cwd().resolve() != ROOT:
        raise PyinfraError(f"start pyinfra in rigbook's own folder: cd {ROOT}")


def _refuse_a_question_to_nobody(typed: Mapping[str, Any]) -> None:
    """PyinfraError where pyinfra would ask for Enter and nobody can press it (EOFError there)."""
    deploys = any(str(name).endswith(".py") for name in typed.get("operations", ()))
    asks = not any(typed.get(flag) for flag in _NO_QUESTION)
    if deploys and asks and not (sys.stdin and sys.stdin.isatty()):
        raise PyinfraError("no terminal to confirm at; add -y, or --dry to look only")


def _data_pairs(arguments: Sequence[str]) -> list[str]:
    """What stands behind each --data; pyinfra splits it at `=` and fails where there is none."""
    following = [after for flag, after in pairwise(arguments) if flag == "--data"]
    joined = [a.removeprefix("--data=") for a in arguments if a.startswith("--data=")]
    return following + joined
