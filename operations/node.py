"""Calls node's changing verbs on a host, and turns what they answer into results or one line."""

from __future__ import annotations

import json
from typing import Any

from pyinfra.api import Host, State, StringCommand

from facts.observe import in_host
from facts.rig import bounded
from node import pack


class StepFailed(Exception):
    """A step did not work: `str()` is the one clear line for the operator, with the evidence.

    `code` is node's own word for it, empty where node did not answer.
    """

    def __init__(self, line: str, code: str = "") -> None:
        super().__init__(line)
        self.code = code


def call(
    state: State,
    host: Host,
    verb: str,
    request: dict[str, Any],
    timeout_s: int = 120,
    private: bool = False,
) -> dict[str, Any]:
    """Runs a changing verb of node on `host` (installing node by its hash first) and answers its
    JSON document. Raises StepFailed with node's own line, or what the host said instead.

    `private` sends the request through stdin: every user of a host can read its command lines.
    """
    line = pack.install_command(verb, None if private else request)
    command = StringCommand(bounded(line, timeout_s))
    try:
        _, output = in_host(
            state,
            host,
            host.run_shell_command,
            command,
            print_output=state.print_output,
            print_input=state.print_input,
            _sudo=True,
            **({"_stdin": json.dumps(request)} if private else {}),
        )
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        raise StepFailed(f"{host.name}: {verb}: the connection failed: {error}") from error
    try:
        document = json.loads(output.stdout_lines[-1])
    except (IndexError, ValueError):
        document = None
    if not isinstance(document, dict):
        said = " ".join(output.stderr_lines + output.stdout_lines)[-300:].strip()
        said = said or f"nothing within {timeout_s} s"
        raise StepFailed(f"{host.name}: {verb}: the host answered: {said}")
    if not document.get("ok"):
        remedy = document.get("remedy")
        line = f"{host.name}: {verb}: {document.get('error')}"
        raise StepFailed(f"{line}; {remedy}" if remedy else line, str(document.get("code", "")))
    return document
