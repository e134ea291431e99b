"""A completion of OUR engine: who holds the port is looked at before it and after it.

An engine of a former setup answered on the port while ours was failing, and the change was called
COMMITTED. So an answer counts from a rig whose unit is up on every rank, with the flags of its
launch script, whose processes hold the port, the same ones before the completion and after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import zip_longest
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyinfra.api import State

from facts.endpoint.completion import Answer, Endpoint
from facts.engine_look import look_at_engine
from facts.rignode.call import AskFailed, ask_node
from node.rules import ownership
from node.rules.completion import RETRY
from operations.change.node_call import StepFailed
from schema.desired.plan import CONTAINER, UNIT
from schema.observed.kube import HostAnswer
from schema.observed.machine import EngineProcess
from schema.observed.network import Port
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.engine_files import SCRIPT_PATH
from schema.render.installed import argv_in

Looks = Mapping[str, NodeSnapshot | Unreadable]
# Who answers, as far as a pid and its start can be given to nobody else: equal, or somebody else.
Identity = frozenset[tuple[str, str, int | None, int | None]]
# Completions that are asked for, where the engine is another one behind each.
TRIES = 3
# node takes no longer limit for one question
_LONGEST_S = 600
# Beyond the node's own limit: two readings of /metrics, and the start of its program.
_CALL_S = 40
# A worker's title, with its ranks: VLLM::Worker_DP0_PP0_TP0_EP0, each where there are several.
_WORKER = re.compile(r"VLLM::Worker_(?:DP|PP|TP)\d")
# A value that the host does not tell, and one that the shell alone knows.
_MASK, _EXPANDED = "***", ("$", "`")


class NotOurs(StepFailed):
    """Somebody else's engine is what answers, or ours runs other flags: waiting mends neither."""


class _NotSeen(Exception):
    """It cannot be told yet whose engine it is; `str()` says why."""


def ask_ours(
    state: State,
    head: str,
    nodes: Collection[str],
    endpoint: Endpoint,
    ask: Callable[[Endpoint], Answer],
    there_s: float | None = None,
) -> Answer:
    """What `ask` gets, when our engine on `nodes` is what answers at `endpoint`, the same one
    before and after; else an answer that is not ok and says why. NotOurs names who answers.

    `there_s`: where this machine gets no answer, the head asks its own engine, for as long, and
    what that gets decides: the way from here says nothing about the engine. A line tells it.
    """
    try:
        for _ in range(TRIES):
            before = identity(look_at_engine(state, nodes), head, endpoint)
            here = answer = ask(endpoint.held_by_ours())
            # "loading" is the engine's own word
            if not here.ok and there_s is not None and here.status not in RETRY:
                answer = asked_there(state, head, here, there_s)
            if not answer.ok:
                return answer
            looks = look_at_engine(state, nodes)
            if before == identity(looks, head, endpoint):
                _experts_as_written(looks)
                if not here.ok:
                    _tell(state, head, endpoint, here)
                return answer
    except _NotSeen as reason:
        return Answer(False, str(reason))
    return Answer(False, f"the engine was started anew while it was asked, {TRIES} times")


def asked_there(state: State, head: str, here: Answer, seconds: float) -> Answer:
    """What the head's engine says to the head itself; `here`, what this machine got, where the head
    could not be asked.
    """
    host, limit_s = state.inventory.get_host(head), max(1, min(int(seconds), _LONGEST_S))
    request = {"timeout_s": limit_s}
    try:
        found = ask_node(state, host, "engine answer", request, limit_s + _CALL_S)
        said = HostAnswer.model_validate(found)
    except (AskFailed, ValidationError) as error:
        return replace(here, detail=f"{here.detail}; {' '.join(str(error).split())[:200]}")
    detail = f"{said.detail}, asked on {head} itself"
    if not said.answered:
        detail += f" (from this machine: {here.detail})"
    return Answer(said.answered, detail, said.final, said.wants_key, said.late, said.made,
                  model=said.model, not_from_here=True)  # fmt: skip


def way_here(endpoint: Endpoint, head: str, here: Answer) -> str:
    """A line about an engine that answers its own host and not this machine."""
    where = urlsplit(endpoint.base_url)
    address = f"{where.hostname}:{where.port}"
    if here.alive or here.status is not None:
        return f"{head} answers, and takes no question of this machine: {here.detail}"
    return (
        f"{head} answers, and this machine cannot reach {address} ({here.detail}); for clients "
        f"here open the port, or: ssh -N -L 8000:{address} USER@{head}, and ask "
        "http://localhost:8000"
    )


def _tell(state: State, head: str, endpoint: Endpoint, here: Answer) -> None:
    host = state.inventory.get_host(head)
    host.log_styled(f"warning: {way_here(endpoint, head, here)}", fg="yellow")


def is_ours(snapshot: NodeSnapshot, node: str, endpoint: Endpoint) -> bool:
    """Whether the snapshot shows our own engine, and nobody else, where `endpoint` leads."""
    try:
        for port in _listeners(snapshot, node, endpoint):
            _require_ours(snapshot, node, port)
    except (NotOurs, _NotSeen):
        return False
    return True


def identity(looks: Looks, head: str, endpoint: Endpoint) -> Identity:
    """Who answers at `endpoint` on `head`, all of them ours, and our engine on every node looked
    at. NotOurs, or _NotSeen where it is not up or cannot be read.
    """
    seen = {}
    for node, snapshot in looks.items():
        if isinstance(snapshot, Unreadable):
            raise _NotSeen(f"{node} could not be looked at: {snapshot.unreadable}")
        seen[node] = snapshot
    found = set()
    for port in _listeners(seen[head], head, endpoint):
        _require_ours(seen[head], head, port)
        found.add((head, seen[head].identity.boot_id, port.pid, port.start_ticks))
    for node, snapshot in seen.items():
        pid = _unit_up(node, snapshot)
        found.add((node, snapshot.identity.boot_id, pid, None))
        _as_written(node, snapshot)
    return frozenset(found)


def _listeners(snapshot: NodeSnapshot, node: str, endpoint: Endpoint) -> list[Port]:
    where = urlsplit(endpoint.base_url)
    number = where.port or (443 if where.scheme == "https" else 80)
    if isinstance(snapshot.ports, Unreadable):
        raise _NotSeen(f"who holds port {number} of {node}: {snapshot.ports.unreadable}")
    held = ownership.at(snapshot.ports, number, where.hostname or "")
    if not held:
        raise _NotSeen(f"nothing listens on port {number} of {node}")
    return held


def _require_ours(snapshot: NodeSnapshot, node: str, port: Port) -> None:
    if port.pid is None:
        raise _NotSeen(f"who holds port {port.port} of {node} is not visible")
    if isinstance(snapshot.docker, Unreadable) and port.container_id is not None:
        raise _NotSeen(f"whose container holds port {port.port}: {snapshot.docker.unreadable}")
    if _is_ours(snapshot, port):
        return
    boxes, units = snapshot.supervisors
    box = ownership.box_of(port, boxes)
    held = box.name if box else port.container_id and port.container_id[:12]
    by = f"container {held}" if held else f"unit {port.unit or 'none'}"
    end = ownership.end(port, boxes, units)
    raise NotOurs(
        f"what answers is not this rig's engine: port {port.port} of {node} is held by pid "
        f"{port.pid} ({port.process}, {by}), not by {UNIT}; on {node}: "
        + (end.text if end else f"sudo kill -TERM {port.pid}")
    )


def _is_ours(snapshot: NodeSnapshot, held: Port | EngineProcess) -> bool:
    boxes, _ = snapshot.supervisors
    own = next((box.id for box in boxes if box.name.lstrip("/") == CONTAINER), None)
    return ownership.is_ours(held, UNIT, own)


def _unit_up(node: str, snapshot: NodeSnapshot) -> int | None:
    """The main process of our unit, which is up and has an engine."""
    if isinstance(snapshot.units, Unreadable):
        raise _NotSeen(f"the unit of {node} cannot be read: {snapshot.units.unreadable}")
    unit = next((unit for unit in snapshot.units if unit.name == UNIT), None)
    if unit is None or unit.active_state != "active":
        now = f"{unit.active_state}/{unit.sub_state}" if unit else "not there"
        raise _NotSeen(f"{UNIT} on {node} is {now}")
    if not _processes(node, snapshot):
        raise _NotSeen(f"{UNIT} on {node} is active, and no engine process is of it")
    return unit.main_pid


def _processes(node: str, snapshot: NodeSnapshot) -> list[EngineProcess]:
    processes = snapshot.engine_processes
    if isinstance(processes, Unreadable):
        raise _NotSeen(f"the processes of {node} cannot be read: {processes.unreadable}")
    return [process for process in processes if _is_ours(snapshot, process)]


def _as_written(node: str, snapshot: NodeSnapshot) -> None:
    """NotOurs when the live command line is not the launch script's. A title that hides the
    command line, and a script that is not in our form, tell nothing.
    """
    if isinstance(snapshot.files, Unreadable):
        raise _NotSeen(f"the launch script of {node} cannot be read: {snapshot.files.unreadable}")
    script = next((f.content for f in snapshot.files if f.path == SCRIPT_PATH), None)
    wanted = _flags(argv_in(script or ""))
    live = next((f for p in _processes(node, snapshot) if (f := _flags(p.argv))), None)
    if wanted is None or live is None:
        return
    for want, have in zip_longest(wanted, live, fillvalue=""):
        if want != have and not have.endswith(_MASK) and not any(x in want for x in _EXPANDED):
            raise NotOurs(
                f"the engine on {node} was not started as {SCRIPT_PATH} says: it has {have!r}, "
                f"the script {want!r}; start it anew: pyinfra INVENTORY deploys/restart.py -y"
            )


def _experts_as_written(looks: Looks) -> None:
    """NotOurs when the experts are not spread as the launch script says. A worker that shares them
    has its rank in its title, VLLM::Worker_TP0_EP0, once it is up (vllm PR#22205); without titles
    (no setproctitle, one process) nothing is told.
    """
    for node, snapshot in looks.items():
        if isinstance(snapshot, Unreadable) or isinstance(snapshot.files, Unreadable):
            continue
        script = next((f.content for f in snapshot.files if f.path == SCRIPT_PATH), None)
        wanted = "--enable-expert-parallel" in argv_in(script or "")
        for title in (p.argv[0] for p in _processes(node, snapshot) if p.argv):
            if wanted and _WORKER.match(title) and "_EP" not in title:
                raise NotOurs(
                    f"{SCRIPT_PATH} of {node} enables expert parallel, and its worker {title} runs "
                    "without it; start it anew: pyinfra INVENTORY deploys/restart.py -y"
                )


def _flags(argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """The words behind `serve`; None for a command line without it."""
    return argv[argv.index("serve") + 1 :] if "serve" in argv else None
