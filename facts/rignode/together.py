"""Several facts of a host by one remote command: one Python there, each fact its own answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import gevent
from gevent.lock import RLock
from pyinfra.api import State
from pyinfra.api.exceptions import FactProcessError

from facts.rignode import pack
from facts.rignode.call import bounded
from facts.rignode.context import real
from facts.rignode.fact import NodeFact, document_in, lines_of
from schema.observed.snapshot import Unreadable

T = TypeVar("T")
# By verb what node printed of it; or why nothing of the host is known.
Said = dict[str, dict[str, Any]] | Unreadable
# What the host may take beyond its slowest part: the starts of sudo and Python.
MORE_S = 15
VERB = "several"


class Together:
    """Facts of some nodes; each node is asked once for all of them, when the first is wanted.

    One that fails or is late on a node is an `Unreadable` there; the others are what they are.
    """

    def __init__(self, state: State, nodes: Collection[str]) -> None:
        self._state = real(state)
        self._parts: dict[str, dict[str, pack.Part]] = {name: {} for name in nodes}
        self._lock = RLock()
        self._said: dict[str, Said] | None = None

    def add(
        self, fact: NodeFact[T], requests: Mapping[str, str] | None = None
    ) -> Callable[[], dict[str, T | Unreadable]]:
        """Adds a fact, which is not asked yet; what comes back gives its answers by node.

        `requests`: the request of each node that is asked, as JSON text; None: all, with none.
        """
        if self._said is not None:
            raise RuntimeError(f"{fact.verb}: the hosts have been asked already")
        asked = dict.fromkeys(self._parts, "{}") if requests is None else requests
        for name, request in asked.items():
            wanted = fact.wanted(request)
            assert fact.verb not in self._parts[name], f"{fact.verb} is asked twice of {name}"
            self._parts[name][fact.verb] = pack.Part(fact.verb, wanted, fact.seconds(wanted))

        def answers() -> dict[str, T | Unreadable]:
            everything = self._ask_once()
            found: dict[str, T | Unreadable] = {}
            for name in asked:
                said = everything[name]
                if isinstance(said, Unreadable):
                    found[name] = said
                    continue
                try:
                    found[name] = fact.answer(dict(said[fact.verb]))
                except FactProcessError as error:
                    found[name] = Unreadable(unreadable=str(error))
            return found

        return answers

    def _ask_once(self) -> dict[str, Said]:
        with self._lock:
            if self._said is None:
                jobs = {name: gevent.spawn(self._ask, name) for name in self._parts}
                gevent.joinall(list(jobs.values()))
                self._said = {name: job.get() for name, job in jobs.items()}
            return self._said

    def _ask(self, name: str) -> Said:
        parts = list(self._parts[name].values())
        if not parts:
            return {}
        seconds = max(part.seconds for part in parts) + MORE_S
        line, stdin = pack.several_call(parts)
        said = lines_of(self._state, name, pack.Call(bounded(line, seconds), stdin), seconds)
        if isinstance(said, Unreadable):
            return said
        try:
            document = document_in(said, VERB, seconds)
        except FactProcessError as error:
            return Unreadable(unreadable=str(error))
        if document.get("ok"):
            found: dict[str, dict[str, Any]] = document["parts"]
            return found
        why = "; ".join(str(document[k]) for k in ("error", "remedy") if document.get(k))
        return Unreadable(unreadable=f"node {VERB} failed: {why}")
