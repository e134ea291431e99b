"""What makes a run of pyinfra short. Nothing here changes what a run does."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import sys
from collections.abc import Sequence
from functools import partial

import gevent
import pyinfra.api.util

# What the deploys import, in an order in which each takes 20 ms at most on top of those before;
# behind a colon a type whose validator is built, which would happen at its first use.
NEEDED = (
    "pydantic_core.core_schema",
    "pydantic.errors",
    "pydantic.json_schema",
    "pydantic.fields",
    "schema.core",
    "schema.snapshot",
    "schema.compatibility",
    "schema.plan",
    "schema.load",
    "schema.cluster",
    "facts.node",
    "facts.endpoint",
    "gates.gate_sets",
    "gates.recipe",
    "deploys.plans.rig",
    "operations.engine",
    "operations.rollback",
    "schema.load",
    "schema.recipe:Recipe",
    "schema.snapshot:NodeSnapshot",
)
# Objects that are made before the next search for garbage: the default, 700, has 150 searches in
# the imports alone, and a run is over before there is garbage to speak of.
COLLECT_AFTER = 50_000


def shorten(arguments: Sequence[str]) -> None:
    """Makes the run with this command line shorter."""
    # pyinfra keeps no bytecode, so that its own deploy files leave none. Ours are modules: compiled
    # anew in each run they cost 0.1 s. What the operator's Python was told (-B) holds.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    # pyinfra asks where each operation is called, and uses file and line only. By default inspect
    # looks up the lines of source around each caller as well: 5 ms an operation and host.
    pyinfra.api.util.stack = partial(inspect.stack, 0)
    pyinfra.api.util.getframeinfo = partial(inspect.getframeinfo, context=0)
    if any(word.endswith(".py") and word.startswith("deploys/") for word in arguments):
        # Later than the greenlets that connect, which are to send their first bytes before.
        gevent.spawn_later(0.001, _import_while_others_wait)


def _import_while_others_wait() -> None:
    """Imports one module after the other, and lets go between two: ssh connects meanwhile."""
    for needed in NEEDED:
        name, _, kind = needed.partition(":")
        # What is wrong with it is told by the deploy that imports it.
        with contextlib.suppress(Exception):
            module = importlib.import_module(name)
            if kind:
                getattr(module, kind).model_rebuild()
        gevent.sleep(0)
