"""Calls node's changing verbs on a host, and turns what they answer into results or one line."""

from __future__ import annotations

from typing import Any

from pyinfra.api import Host, State, StringCommand

from facts.rignode import pack
from facts.rignode.call import AskFailed, bounded, document_of, late
from facts.rignode.context import as_root, in_host
from node.rules.patterns import printable


class StepFailed(Exception):
    """A step did not work: `str()` is the one clear line for the operator, with the evidence.

    `code` is node's own word for it, empty where node did not answer.
    """

    def __init__(self, line: str, code: str = "") -> None:
        # a log's last lines stand below each other
        super().__init__("\n".join(map(printable, line.split("\n"))))
        self.code = code


def call(
    state: State,
    host: Host,
    verb: str,
    request: dict[str, Any],
    timeout_s: int = 120,
) -> dict[str, Any]:
    """Runs a changing verb of node on `host` (installing node by its hash first) and answers its
    JSON document. Raises StepFailed with node's own line, or what the host said instead.

    The request goes through stdin: every user of a host can read its command lines.
    """
    sent = pack.install_call(verb, request)
    command = StringCommand(bounded(sent.line, timeout_s))
    try:
        _, output = in_host(
            state,
            host,
            host.run_shell_command,
            command,
            print_output=state.print_output,
            print_input=state.print_input,
            **as_root(host),
            _stdin=sent.stdin,
            limit_s=timeout_s,
        )
    except TimeoutError:
        raise StepFailed(late(host.name, verb, timeout_s)) from None
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        raise StepFailed(f"{host.name}: {verb}: the connection failed: {error}") from error
    try:
        return document_of(host.name, verb, output, timeout_s)
    except AskFailed as error:
        raise StepFailed(str(error), error.code) from None


def run_as_root(state: State, host: Host, command: str, limit_s: int) -> tuple[bool, Any]:
    """Runs a sh command as root, ended after `limit_s`: whether it did its work, and what it wrote.
    Raises StepFailed where no answer came.
    """
    words = " ".join(command.split()[:3])
    asked = StringCommand(bounded(command, limit_s))
    try:
        done, output = in_host(
            state, host, host.run_shell_command, asked, limit_s=limit_s, **as_root(host)
        )
    except TimeoutError:
        raise StepFailed(late(host.name, words, limit_s)) from None
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        raise StepFailed(f"{host.name}: {words}: the connection failed: {error}") from error
    return done, output
