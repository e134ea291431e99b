"""A verb of node that takes long: while it works, the operator sees how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gevent
from pyinfra.api import Host, State

from operations.change.node_call import StepFailed, call

# A line for the operator this often while a host works.
REPORT_S = 10.0


def call_with_progress(
    state: State,
    host: Host,
    verb: str,
    request: Mapping[str, Any],
    timeout_s: int,
    progress: Callable[[], Iterable[str]],
) -> dict[str, Any]:
    """node's answer to `verb`; every REPORT_S seconds until then the lines that `progress` gives.

    `timeout_s`: the longest that it may take. StepFailed as `call` raises it.
    """
    job = gevent.spawn(_caught, state, host, verb, dict(request), timeout_s)
    while not job.ready():
        job.join(REPORT_S)
        for line in () if job.ready() else progress():
            host.log(line)
    answer = job.get()
    if isinstance(answer, StepFailed):
        raise answer
    return dict(answer)


def _caught(state: State, host: Host, verb: str, request: dict[str, Any], timeout_s: int) -> Any:
    """The answer or the StepFailed: gevent prints what a greenlet raises."""
    try:
        return call(state, host, verb, request, timeout_s)
    except StepFailed as error:
        return error
