"""What the nodes have of memory, clocks, power and heat while something else is under way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import state

from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from schema.core.parse import misfit
from schema.desired.plan import Plan
from schema.measure.run import Sample

EVERY_S = 5.0
ASK_S = 20


class Sampler:
    """Samples of all nodes, by name, since `began` (of time.monotonic)."""

    def __init__(self, plan: Plan) -> None:
        self.began = time.monotonic()
        self.samples: dict[str, list[Sample]] = {node.name: [] for node in plan.rig.nodes}
        self._state = real(state)

    def look(self) -> None:
        """Takes one sample of each node, all at the same time."""
        gevent.joinall([gevent.spawn(self._one, name) for name in self.samples])

    def _one(self, name: str) -> None:
        at_s = time.monotonic() - self.began
        found: dict[str, Any]
        try:
            host = self._state.inventory.get_host(name)
            found = ask_node(self._state, host, "measure sample", {}, ASK_S)
            sample = Sample(at_s=at_s, **found)
        except AskFailed as error:
            sample = Sample(at_s=at_s, problem=str(error))
        except ValidationError as error:
            sample = Sample(at_s=at_s, problem=f"the host's sample {misfit(error)}")
        self.samples[name].append(sample)

    def _go_on(self) -> None:
        while True:
            started = time.monotonic()
            self.look()
            gevent.sleep(max(0.0, EVERY_S - (time.monotonic() - started)))

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Takes a sample every EVERY_S seconds while the block runs."""
        job = gevent.spawn(self._go_on)
        try:
            yield
        finally:
            job.kill()
