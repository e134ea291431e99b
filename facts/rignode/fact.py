"""A reading verb of node as a fact: one bounded command, one typed answer; read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import gevent
from pydantic import BaseModel, ValidationError
from pyinfra.api import FactBase, Host, State, StringCommand
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from facts.rignode.call import bounded, last_document
from facts.rignode.context import LATE_S, as_root, in_host, no_sudo, real
from schema.core.parse import misfit
from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable

T = TypeVar("T")


class NodeFact(FactBase[T], Generic[T]):
    """What `verb` answers, as `kind` (a model, or dict for the plain document).

    The program travels with the command and writes nothing on the host (facts/rignode/pack.py).
    `always` is added to each request; every user of the host can read it in the command line.
    """

    verb: ClassVar[str]
    kind: ClassVar[type]
    always: ClassVar[Mapping[str, object]] = {}
    timeout_s: ClassVar[int] = 60

    def command(self, request: str = "{}") -> str:
        """The one command; `request` is the verb's request as JSON text."""
        wanted = self.wanted(request)
        return bounded(pack.inline_command(self.verb, wanted), self.seconds(wanted))

    def wanted(self, request: str) -> dict[str, object]:
        """The verb's whole request, of what is asked for as JSON text."""
        return {**json.loads(request), **self.always}

    def seconds(self, request: Mapping[str, object]) -> int:
        """How long the host may take over `request`."""
        return self.timeout_s

    def process(self, output: list[str]) -> T:
        """The typed answer; FactProcessError says in one line what the host answered instead."""
        return self.answer(document_in(output, self.verb, self.timeout_s))

    def answer(self, document: dict[str, Any]) -> T:
        """The typed answer of node's document; FactProcessError with node's own line."""
        # A model says by itself what it lacks: a snapshot that somebody kept has no `ok`.
        if not document.pop("ok", self.kind is not dict):
            said = "; ".join(str(document[k]) for k in ("error", "remedy") if document.get(k))
            raise FactProcessError(f"node {self.verb} failed: {said}")
        return self.typed(document)

    def typed(self, document: dict[str, Any]) -> T:
        """The document as `kind`; FactProcessError says where it does not fit."""
        kind: Any = self.kind
        if not issubclass(kind, BaseModel):
            answer: T = kind(document)
            return answer
        try:
            answer = kind.model_validate(document)
        except ValidationError as error:
            raise FactProcessError(f"the host's {self.verb} {misfit(error)}") from None
        return answer


def ask_each(
    state: State, plan: Plan, fact: NodeFact[T], requests: Mapping[str, str] | None = None
) -> dict[str, T | Unreadable]:
    """The fact of nodes of the rig by name, all asked at the same time; an `Unreadable` says why a
    node could not be asked.

    `requests`: the request of each node that is asked, as JSON text; None: all, with none.
    """
    asked = {node.name: "{}" for node in plan.rig.nodes} if requests is None else requests
    return ask_some(state, fact, asked)


def ask_some(
    state: State, fact: NodeFact[T], requests: Mapping[str, str]
) -> dict[str, T | Unreadable]:
    """The same of the nodes that `requests` names."""
    state = real(state)
    jobs = {name: gevent.spawn(_ask, state, name, fact, asked) for name, asked in requests.items()}
    gevent.joinall(list(jobs.values()))
    return {name: job.get() for name, job in jobs.items()}


def _ask(state: State, name: str, fact: NodeFact[T], request: str) -> T | Unreadable:
    seconds = fact.seconds(fact.wanted(request))
    said = lines_of(state, name, pack.Call(fact.command(request), ""), seconds)
    if isinstance(said, Unreadable):
        return said
    try:
        return fact.process(said)
    except FactProcessError as error:
        return Unreadable(unreadable=str(error))


def lines_of(
    state: State, name: str, sent: pack.Call, seconds: int = 600
) -> list[str] | Unreadable:
    """What a host prints for a command of root's that ends there within `seconds`; an `Unreadable`
    says why it was not asked.
    """
    host: Host = state.inventory.get_host(name)
    if not state.is_host_in_limit(host):
        return Unreadable(unreadable="left out by --limit or --exclude; a rig is taken whole")
    if host not in state.active_hosts or not host.connected:
        return Unreadable(unreadable="no ssh connection (pyinfra's line above says why)")
    try:
        # Not get_fact: it answers None and keeps the reason, which the gate has to name.
        done, output = in_host(
            state,
            host,
            host.run_shell_command,
            StringCommand(sent.line),
            print_output=state.print_fact_output,
            print_input=state.print_fact_input,
            **as_root(host),
            **({"_stdin": sent.stdin} if sent.stdin else {}),
            limit_s=seconds,
        )
    except TimeoutError:
        return Unreadable(unreadable=f"no answer in {seconds + LATE_S} s: the host hangs")
    except Exception as error:  # whatever went wrong: this node is unknown, not fine
        return Unreadable(
            unreadable=no_sudo(state, host, error) or f"{type(error).__name__}: {error}"
        )
    refused = not done and not output.stdout_lines and "sudo" in " ".join(output.stderr_lines)
    if refused and (why := no_sudo(state, host)):
        return Unreadable(unreadable=why)
    lines: list[str] = output.stdout_lines or output.stderr_lines
    return lines


def document_in(output: list[str], verb: str, seconds: int) -> dict[str, Any]:
    """node's document, the last line of what a host printed; FactProcessError says in one line
    what the host answered instead.
    """
    document = last_document(output)
    if document is None:
        said = " ".join(output)[:300]
        answered = f"no {verb} but: {said!r}" if said else f"nothing (limit {seconds} s)"
        raise FactProcessError(f"the host answered {answered}")
    return document
