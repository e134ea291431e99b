"""The engine: configured, stopped, started, proven by an answer, cleaned up after."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import gevent
from pydantic import ValidationError
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts import plain
from facts.endpoint import Answer, Endpoint, ask
from facts.measure import NotMeasured, NotReached, Rate, measure
from facts.node import AskFailed, ask_node, fact_of, look_at_engine, real
from facts.plain import UnitState
from node.rules import engine, text
from node.rules.engine import RETRY
from operations.apply import Steps, unit_step
from operations.apply import folder_steps as make_folders
from operations.run import Run, StepFailed, call
from schema.cluster import HostAnswer
from schema.measure import compare_statistics
from schema.plan import CONTAINER, ENGINE_FOLDERS, UNIT, Document, EngineSpec
from schema.render_engine import SCRIPT_PATH
from schema.render_unit import argv_in
from schema.snapshot import EngineProcess, FileState, NodeSnapshot, Port, Unit, Unreadable

# A completion of OUR engine: who holds the port is looked at before it and after it.
#
# An engine of a former setup answered on the port while ours was failing, and the change was
# called
# COMMITTED. So an answer counts from a rig whose unit is up on every rank, with the flags of its
# launch script, whose processes hold the port, the same ones before the completion and after it.

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
                    _tell_own_answer(state, head, endpoint, here)
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


def _tell_own_answer(state: State, head: str, endpoint: Endpoint, here: Answer) -> None:
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
    held = engine.owner_at(snapshot.ports, number, where.hostname or "")
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
    box = engine.box_of(port, boxes)
    held = box.name if box else port.container_id and port.container_id[:12]
    by = f"container {held}" if held else f"unit {port.unit or 'none'}"
    end = engine.end_ownership(port, boxes, units)
    raise NotOurs(
        f"what answers is not this rig's engine: port {port.port} of {node} is held by pid "
        f"{port.pid} ({port.process}, {by}), not by {UNIT}; on {node}: "
        + (end.text if end else f"sudo kill -TERM {port.pid}")
    )


def _is_ours(snapshot: NodeSnapshot, held: Port | EngineProcess) -> bool:
    boxes, _ = snapshot.supervisors
    own = next((box.id for box in boxes if box.name.lstrip("/") == CONTAINER), None)
    return engine.is_ours(held, UNIT, own)


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


# Waiting for a real answer, with progress: phase, elapsed, budget, last log line.
#
# Ends early when a unit died: an engine that cannot start does not start by waiting. An answer
# counts
# when it is our engine's (operations/engine.py).

POLL_S = 2.0
PROGRESS_S = 10.0
LOG_LINES = 400
# Where no line names a root cause.
TAIL_LINES = 40
# How long the unit's own question may lag behind ours.
STARTED_S = 15.0


class EngineDied(StepFailed):
    """The unit ended while it was waited for; another start may or may not help."""


def unit_states(state: State, nodes: Collection[str]) -> dict[str, UnitState | None]:
    """The engine unit's state on each node, asked at the same time; None: no answer."""
    jobs = {
        node: gevent.spawn(fact_of, state, state.inventory.get_host(node), plain.Unit, UNIT)
        for node in nodes
    }
    gevent.joinall(list(jobs.values()))
    return {node: job.get() for node, job in jobs.items()}


def wait_for_answer(
    state: State,
    head: str,
    nodes: Collection[str],
    endpoint: Endpoint,
    budget_s: int,
    patient: bool = False,
) -> Answer:
    """The first good answer of our engine that now starts on `nodes`, whoever else may answer.

    Raises StepFailed when a unit ended, when the engine answers in a way that waiting cannot
    mend, when what answers is not ours, or when `budget_s` seconds passed; its text carries the
    last log lines of the node.
    `patient`: a unit that systemd starts again (after a boot, say) is waited for; only one that
    systemd has given up ends the wait.
    """
    state = real(state)
    started = time.monotonic()
    first = unit_states(state, nodes)
    reporter = state.inventory.get_host(head)
    told = started

    def left() -> float:
        return max(5.0, budget_s - (time.monotonic() - started))

    def attempt() -> Answer:
        nonlocal told
        # Whoever answers this gets no key.
        answer, now = ask(endpoint, left()), None
        if answer.ok or answer.alive:
            _until_started(state, head)
        else:
            now = unit_states(state, nodes)
            if not answer.final:
                _stop_if_dead(state, first, now, patient)
        if now is None or _started(now, head):
            # Somebody answers, or our unit has seen an answer on its own host; whose engine it is,
            # is looked at around another one.
            seen = ask_ours(state, head, nodes, endpoint, lambda w: ask(w, left()), left())
            if seen.ok or seen.not_from_here or answer.alive or not answer.final:
                answer = seen
        if answer.ok or answer.final:
            return answer
        if now is None:
            now = unit_states(state, nodes)
            _stop_if_dead(state, first, now, patient)
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            phase = _phase(now)
            reporter.log(f"{phase}: {told - started:.0f} s of {budget_s} s; {_last(now, head)}")
        return answer

    # Here, not above: a run that changes nothing waits for nothing.
    from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

    waiting = Retrying(
        retry=retry_if_result(lambda answer: not answer.ok and not answer.final),
        stop=stop_after_delay(budget_s),
        wait=wait_fixed(POLL_S),
        retry_error_callback=lambda done: done.outcome and done.outcome.result(),
    )
    answer = waiting(attempt)
    if not answer.ok:
        seconds = time.monotonic() - started
        raise StepFailed(
            f"no good answer after {seconds:.0f} s (budget {budget_s} s): {answer.detail}\n"
            + log_tail(state, head)
        )
    return answer


def _started(now: Mapping[str, UnitState | None], head: str) -> bool:
    """Whether systemd has seen the head's unit answer on its own host (its ExecStartPost)."""
    unit = now.get(head)
    return unit is not None and unit.active == "active"


def _until_started(state: State, head: str) -> None:
    """Waits until systemd, too, has seen an answer: its own question ends a moment after ours."""
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        unit = unit_states(state, [head])[head]
        if unit is None or unit.active != "activating":
            return
        time.sleep(POLL_S / 2)


def _stop_if_dead(
    state: State,
    first: Mapping[str, UnitState | None],
    now: Mapping[str, UnitState | None],
    patient: bool,
) -> None:
    for node, unit in now.items():
        earlier = first.get(node)
        if unit is None or earlier is None or (patient and unit.active != "failed"):
            continue
        reason = unit.ended_since(earlier)
        if reason:
            raise EngineDied(f"{node}: {reason}\n{log_tail(state, node, earlier.invocation)}")


def _phase(now: Mapping[str, UnitState | None]) -> str:
    up = ("active", "activating")
    waiting = [n for n, unit in now.items() if unit is None or unit.active not in up]
    if waiting:
        return f"waiting for the unit on {', '.join(sorted(waiting))}"
    return "engine is loading"


def _last(now: Mapping[str, UnitState | None], head: str) -> str:
    unit = now.get(head)
    return f"{head}: {unit.last_line}" if unit and unit.last_line else f"{head}: no log line yet"


def log_tail(state: State, node: str, invocation: str = "") -> str:
    """The root cause in a node's engine log (of that start of it) with the file and line of vLLM's
    own trace, or, where none stands, its last lines; indented under a heading.
    """
    host = state.inventory.get_host(node)
    lines = fact_of(state, host, plain.Log, UNIT, LOG_LINES, invocation) or []
    cause = text.find_root_cause(lines)
    if cause is None:
        lines = lines[-TAIL_LINES:]
        rows = (f"    {line}" for line in lines)
        return "\n".join([f"the last {len(lines)} log lines of {node}:", *rows])
    return f"{node}: {cause.line()}\n    the whole log: journalctl -u {UNIT} -n {LOG_LINES}"


# An engine's speed against what it was: measured before it is called recovered (incident B8).
#
# Both sides are rounds by the same client, from this machine: two versions of an engine bring two
# versions of its own (docs/adr/0029).

# Measurements before a slow engine counts as slow: its first requests fill caches.
ATTEMPTS = 3


def told(rate: Rate, before: Sequence[float]) -> str:
    """A rate against the rounds before it, in plain words, by the spread of both."""
    baseline = median(before)
    word = compare_statistics(before, rate.each).word
    share = (1 - rate.tokens_per_s / baseline) * 100
    if word == "worse" or (word == "too few rounds to say" and share >= 1):
        return (
            f"{rate.tokens_per_s:.1f} tok/s, {share:.0f}% under baseline {baseline:.1f}: caches "
            "are cold, or it is not what it was; measure again once it has served a while"
        )
    said = f", {word}" if word in ("better", "within noise") else ""
    return f"{rate.tokens_per_s:.1f} tok/s, baseline {baseline:.1f}{said}"


def compared(
    endpoint: Endpoint, before: Sequence[float], published: float | None, profile: str
) -> str:
    """A part of a line for a person, also where there is nothing to compare with.

    `before`: rounds that were measured here, tokens a second. `published`: the recipe's figure,
    which is told beside ours where there are none, and is no baseline. `profile`: what runs.
    """
    if not before and published is None:
        return (
            f"; no baseline for {profile}: its speed was not compared; measure it with: "
            "pyinfra INVENTORY deploys/bench.py -y"
        )
    try:
        rate = measure(endpoint)
    except NotMeasured as error:
        known = f"baseline {median(before):.1f} tok/s, and " if before else ""
        return f"; {known}no measurement: {error}"
    if published is None or before:
        return f"; {told(rate, before)}"
    return f"; {rate}; published {published:.1f}, which nobody measured here"


def fast_enough(
    endpoint: Endpoint, before: Sequence[float], tolerance: float, say: Callable[[str], None]
) -> str:
    """A line about the speed; StepFailed when it stays below (1 - tolerance) x what was measured
    before, and more than the spread of the rounds explains. Where this machine has no way to the
    port, the speed is not known, and the engine is not taken back for that.
    """
    try:
        if not before:
            return f"{measure(endpoint)}, with no baseline to compare"
        baseline = median(before)
        floor = (1 - tolerance) * baseline
        best: Rate | None = None
        for _ in range(ATTEMPTS):
            rate = measure(endpoint)
            best = rate if best is None or rate.tokens_per_s > best.tokens_per_s else best
            noise = compare_statistics(before, best.each).word == "within noise"
            if best.tokens_per_s >= floor or noise:
                return told(best, before)
            say(f"{rate}: below {floor:.1f}; measured again")
    except NotReached as error:
        return f"its speed was not measured, this machine cannot reach it: {error}"
    except NotMeasured as error:
        raise StepFailed(f"its speed could not be measured: {error}") from None
    raise StepFailed(
        f"too slow: {best} after {ATTEMPTS} measurements, baseline {baseline:.1f}, allowed "
        f"{floor:.1f} (tolerance {tolerance:.0%})"
    )


# What makes a cold start cold: no orphan process, no stale segment, memory where it is needed.
#
# Each is one verb of node, journalled as a step of the run's change. `found` is what node's dry
# run
# saw, so that `--dry` shows what would end and what would be spared, and why.

# TERM, wait, KILL, then memory that has to drain.
REAP_TIMEOUT_S = 180
# said of each before it is done
_FOR_GOOD = "cannot be undone"


@operation()
def reap(
    run: Run,
    request: Mapping[str, Any],
    found: Mapping[str, Any],
    members: Collection[str],
) -> Generator[FunctionCommand, None, None]:
    """
    End engine processes that no live supervisor owns, and prove that they are gone.

    + run: the change
    + request: what node's `reap` takes
    + found: what node's dry `reap` answered
    + members: the nodes on which something is to be ended
    """
    for spared in found.get("spared", []):
        run.show_once(host, f"spare {spared}", partial(_tell_cleanup, host, "spare", spared))
    if host.name not in members:
        host.noop("no orphan of the engine")
        return
    for orphan in found.get("ended", []):
        run.show_once(host, f"end {orphan}", partial(_tell_cleanup, host, "end", orphan))
    node = host.name
    yield run.step("reap", members, lambda: _reap(run, node, request))


def _tell_cleanup(host: Host, verb: str, process: Mapping[str, Any]) -> None:
    line = f"{verb} pid {process.get('pid')} {process.get('argv0', '')}: {process.get('why')}"
    host.log(f"{line} ({_FOR_GOOD})" if verb == "end" else line)


def _reap(run: Run, node: str, request: Mapping[str, Any]) -> None:
    run.touch(node)
    wanted = {**request, "change": run.change(), "dry": False}
    answer = call(run.state, run.host(node), "reap", wanted, REAP_TIMEOUT_S)
    if answer["verdict"] not in ("clean", "nothing"):
        raise StepFailed(f"{node}: {answer['verdict']}: {answer['evidence']}")


@operation()
def clear_shm(
    run: Run, members: Collection[str], names: Mapping[str, Collection[str]]
) -> Generator[FunctionCommand, None, None]:
    """
    Remove the engine's shared-memory segments that no process maps or opens.

    + run: the change
    + members: the nodes that have such segments
    + names: the segments by node, for the plan
    """
    if host.name not in members:
        host.noop("no stale segment in /dev/shm")
        return
    listed = ", ".join(sorted(names[host.name])) or "what the engine leaves there"
    run.show_once(
        host,
        "shm",
        lambda: host.log(f"remove from /dev/shm, unless it is mapped: {listed} ({_FOR_GOOD})"),
    )
    node = host.name
    yield run.step("shm", members, lambda: _verb(run, node, "shm", {}))


@operation()
def drop_caches(
    run: Run, members: Collection[str], needs: Mapping[str, Mapping[str, Any]]
) -> Generator[FunctionCommand, None, None]:
    """
    Write back and drop the page cache once, before the launch, where the memory need asks for it.

    + run: the change
    + members: the nodes whose memory is short of the need
    + needs: what node's `caches` takes, by node
    """
    if host.name not in members:
        host.noop("memory is enough as it is")
        return
    need = needs[host.name]["need_available_bytes"] / 2**30
    line = (
        f"sync and drop the page cache once, if less than {need:.1f} GiB are available by then "
        f"({_FOR_GOOD}; it fills again by itself)"
    )
    run.show_once(host, "caches", lambda: host.log(line))
    node = host.name
    yield run.step("caches", members, lambda: _verb(run, node, "caches", needs[node]))


def _verb(run: Run, node: str, verb: str, request: Mapping[str, Any]) -> None:
    run.touch(node)
    call(run.state, run.host(node), verb, {**request, "change": run.change()}, REAP_TIMEOUT_S)


# The parser of an engine that has come beside, asked before the former one stops.


@operation()
def ask_preflight(
    run: Run, nodes: Collection[str], check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Ask the engine that is to come about the command line that it is to get.

    + run: the change
    + nodes: the nodes to which an engine comes
    + check: asks, and says what came of it, or raises StepFailed
    """
    if host.name not in nodes:
        host.noop("no other engine comes: nothing to ask")
        return
    reporter = host
    run.show_once(host, "preflight", lambda: host.log("ask its own parser about the command line"))
    yield run.step("preflight", nodes, lambda: reporter.log_styled(check(), fg="green"))


# The engine of a rig: its files and unit, its stop and start in order, its proof.
#
# Each operation takes what to do as explicit arguments, shows it once, and yields nothing where
# nothing is to do. The steps themselves are node's: journalled, and undone together.

# `systemctl stop` returns after TERM (30 s), KILL and docker rm.
UNIT_TIMEOUT_S = 180

# Why nothing is to be written.
AS_RENDERED = "files and unit are as the recipe renders them"


@dataclass(frozen=True)
class Start:
    """What starts an engine that has no unit of ours: node's steps, and the same in words."""

    steps: Steps
    words: str


def file_steps(documents: tuple[Document, ...], files: Mapping[str, FileState]) -> Steps:
    """The steps that make a node's files equal the documents; equal ones are left alone."""
    steps: Steps = []
    for document in documents:
        now = files.get(document.path)
        if now is not None and _equal(document, now):
            continue
        step: dict[str, object] = {
            "op": "file",
            "path": document.path,
            "content": document.content,
            "mode": document.mode,
            "owner": "root",
            "group": "root",
            "expect_sha256": "absent" if now is None or now.sha256 is None else now.sha256,
        }
        if document.path.endswith(".sh"):
            step["validate"] = ["bash", "-n", "{tmp}"]
        steps.append(step)
    return steps


def _equal(document: Document, now: FileState) -> bool:
    # By hash: node masks secrets in the content of files that others cannot read.
    wanted = hashlib.sha256(document.content.encode()).hexdigest()
    owner = (now.uid, now.gid)
    return (now.kind, now.sha256, now.mode, owner) == ("file", wanted, document.mode, (0, 0))


def folder_steps(spec: EngineSpec, files: Mapping[str, FileState], owner: str) -> Steps:
    """Steps that make absent folders: the engine's own, those of the compiled kernels, and bind
    mounts (docker would make them root's). The weights' folder is never made: an empty one would
    hide that they are missing.
    """
    own = make_folders((*ENGINE_FOLDERS, *spec.jit_folders), files)
    return own + make_folders(spec.cache_folders, files, owner=owner)


def unit_steps(unit: Unit | None, files_change: bool) -> Steps:
    """The step that enables the unit and reloads systemd, where one of them is needed."""
    enable = unit is None or unit.enabled != "enabled"
    if not enable and not files_change and not (unit and unit.needs_reload):
        return []
    # Again when its file changes: `enable` adds the links that a new [Install] asks for.
    return [unit_step(UNIT, enabled=True if enable or files_change else None)]


def timer_steps(name: str, timer: Unit | None, files: Collection[str]) -> Steps:
    """The step that enables a timer of ours and has it run as its file says.

    `timer` is what systemd says of it now, `files` are the paths that this run writes.
    """
    changed = any(path.endswith(f"/{name}") for path in files)
    runs = timer is not None and timer.active_state == "active"
    if timer is not None and timer.enabled == "enabled" and runs and not changed:
        return []
    return [unit_step(name, "restart" if runs and changed else "start", enabled=True)]


@operation()
def stop(run: Run, nodes: Collection[str]) -> Generator[FunctionCommand, None, None]:
    """
    Stop the engine's unit on this node, when it is one of `nodes`.

    + run: the change
    + nodes: the nodes on which the unit is to be stopped in this step
    """
    yield from _set_active(run, nodes, "stop")


@operation()
def start(
    run: Run, nodes: Collection[str], how: Start | None = None
) -> Generator[FunctionCommand, None, None]:
    """
    Start the engine on this node, when it is one of `nodes`.

    + run: the change
    + nodes: the nodes on which the engine is to be started in this step
    + how: what starts it there, where that is not its unit
    """
    yield from _set_active(run, nodes, "start", how)


def _set_active(
    run: Run, nodes: Collection[str], active: str, how: Start | None = None
) -> Generator[FunctionCommand, None, None]:
    if host.name not in nodes:
        host.noop(f"no {active} of the engine here in this step")
        return
    node = host.name
    box = " and its container" if run.plan.recipe.container else ""
    words = how.words if how else f"{active} {UNIT}{box}"
    steps = how.steps if how else [unit_step(UNIT, active, reload=False)]
    run.show_once(host, active, lambda: host.log(words))

    def work() -> None:
        run.touch(node)
        if active == "stop":
            run.announce()
            run.down.add(node)
        run.apply(node, steps, UNIT_TIMEOUT_S)
        if active == "start":
            run.down.discard(node)

    yield run.step(f"{active}:{','.join(sorted(nodes))}", nodes, work)


@operation()
def prove(
    run: Run, needed: bool, check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    End the change by a proof; without one the rig goes back to what it was.

    + run: the change
    + needed: whether anything was changed that is to be proven
    + check: proves it and says how, or raises StepFailed
    """
    if not needed and not run.resumed:
        host.noop("nothing was changed")
        return
    reporter = host

    def work() -> None:
        proof = check()
        run.new_way_in()
        run.proven = True
        run.close("COMMITTED", proof)
        reporter.log_styled(f"{proof}; change {run.id} COMMITTED", fg="green")

    run.show_once(host, "prove", lambda: host.log("wait for the proof, then bless the change"))
    yield run.step("prove", [host.name], work)


@operation()
def for_a_while(
    run: Run, words: str, work: Callable[[], None]
) -> Generator[FunctionCommand, None, None]:
    """
    Serve otherwise for a while, as one change that always ends by its undo.

    + run: the change
    + words: what is served meanwhile
    + work: makes the change's steps on all nodes, or raises StepFailed
    """
    reporter = host

    def whole() -> None:
        work()
        run.give_back(reporter)

    run.show_once(host, "for a while", lambda: host.log(f"{words}; then back to what serves now"))
    yield run.step("for a while", [host.name], whole)


# What a timer of ours starts on a node: its files and timer, its end, and the proof of both.


def install_steps(
    name: str, documents: tuple[Document, ...], files: Mapping[str, FileState], timer: Unit | None
) -> Steps:
    """The steps that write these files and have the timer `name` run; none where it is all so."""
    steps: Steps = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    return steps + timer_steps(name, timer, [str(step["path"]) for step in steps])


def remove_steps(name: str, files: Mapping[str, FileState], timer: Unit | None) -> Steps:
    """The steps that end the timer and take its files away; none where there is none."""
    steps: Steps = []
    if timer is not None and (timer.active_state == "active" or timer.enabled == "enabled"):
        steps.append(unit_step(name, "stop", enabled=False, reload=False))
    there = [path for path, state in files.items() if state.kind == "file"]
    steps += [{"op": "absent", "path": path} for path in there]
    if there:
        steps.append(unit_step(name))
    return steps


def prove_timer(state: State, node: str, name: str, runs: bool) -> str:
    """The timer's state as systemd says it; StepFailed where it runs and is not to, or the other
    way round.
    """
    seen = fact_of(state, state.inventory.get_host(node), plain.Unit, name)
    if seen is None or (seen.active == "active") is not runs:
        raise StepFailed(f"{node}: {name} is {seen.active if seen else 'unknown'}")
    return str(seen.active)
