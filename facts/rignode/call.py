"""Asks one of node's reading verbs on a host: nothing is written there."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api import Host, State, StringCommand

from facts.rignode import pack
from facts.rignode.context import LATE_S, as_root, in_host, no_sudo, real
from node.rules.patterns import printable


class AskFailed(Exception):
    """The host did not answer, or refused: `str()` is one clear line, `code` node's word for it."""

    def __init__(self, line: str, code: str = "") -> None:
        super().__init__(printable(line))
        self.code = code


def bounded(command: str, seconds: int) -> str:
    """The sh command, ended on the HOST after `seconds` (a local timeout leaves it running)."""
    return f"timeout -k 5 {seconds} sh -c {shlex.quote(command)}"


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def last_document(lines: list[str]) -> dict[str, Any] | None:
    """The JSON object on the last line that a host printed, or None."""
    try:
        document = json.loads(lines[-1], parse_constant=_no_number)
    except (IndexError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def document_of(host: str, verb: str, output: Any, timeout_s: int) -> dict[str, Any]:
    """node's JSON document from what a host printed; AskFailed with node's own line, or with what
    the host said instead.
    """
    document = last_document(output.stdout_lines)
    if document is None:
        said = " ".join(output.stderr_lines + output.stdout_lines)[-300:].strip()
        # empty after a moment too: a host that lost its power ends the channel
        told = f": {said}" if said else f" nothing (limit {timeout_s} s)"
        raise AskFailed(f"{host}: {verb}: the host answered{told}")
    if not document.get("ok"):
        remedy = document.get("remedy")
        line = f"{host}: {verb}: {document.get('error')}"
        raise AskFailed(f"{line}; {remedy}" if remedy else line, str(document.get("code", "")))
    return document


def late(host: str, verb: str, timeout_s: int) -> str:
    """The line about a host that did not end a command by its own limit."""
    waited = timeout_s + LATE_S
    return f"{host}: {verb}: no answer in {waited} s (its own limit is {timeout_s} s): it hangs"


def ask_node(
    state: State, host: Host, verb: str, request: dict[str, Any], timeout_s: int = 120
) -> dict[str, Any]:
    """node's answer to a reading verb, or AskFailed.

    Program and request go through stdin: no limit of length, and nothing of the request in a
    command line, which every user of the host can read.
    """
    state = real(state)
    sent = pack.stdin_call(verb, request)
    try:
        _, output = in_host(
            state,
            host,
            host.run_shell_command,
            StringCommand(bounded(sent.line, timeout_s)),
            print_output=state.print_fact_output,
            print_input=state.print_fact_input,
            **as_root(host),
            _stdin=sent.stdin,
            limit_s=timeout_s,
        )
    except TimeoutError:
        raise AskFailed(late(host.name, verb, timeout_s)) from None
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        why = no_sudo(state, host, error) or f"the connection failed: {error}"
        raise AskFailed(f"{host.name}: {verb}: {why}") from error
    document = document_of(host.name, verb, output, timeout_s)
    document.pop("ok")
    return document
