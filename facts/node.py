"""The one way to ask a host; the snapshot, backups."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

import gevent
from gevent.lock import RLock
from pydantic import BaseModel, ValidationError
from pyinfra import logger
from pyinfra.api import FactBase, Host, State, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.connectors import util
from pyinfra.context import ContextObject, ctx_config, ctx_host, ctx_state

from facts import pack
from node.rules.text import printable
from schema.artifact import BackupPlan, Backups, Copies, PrunePlan
from schema.core import misfit
from schema.plan import UNIT, Plan
from schema.render_engine import SCRIPT_PATH
from schema.snapshot import NodeSnapshot, SnapshotRequest, Unreadable

# pyinfra's context: one host's work on behalf of another, and in greenlets of our own.

# what the operator's clock allows beyond the host's own limit: sudo, the start of Python, the wire
LATE_S = 30
# the readers of pyinfra's own limit end first: left running, they would fill this end's memory
END_S = 1.0
# more than any honest answer; behind it nothing is read, and the clock ends the command
MAX_OUT = 128 << 20


def real(state: State) -> State:
    """The State behind pyinfra's `state` proxy, which is empty in other greenlets."""
    found: State = state
    if isinstance(state, ContextObject):
        found = ctx_state.get()
    return found


def bound_output() -> None:
    """Has pyinfra's readers stop at MAX_OUT of a stream: a host that floods would fill this
    machine's memory, also without one newline.
    """
    read = util.read_buffer

    def at_most(stream: Any) -> Iterator[Any]:
        left = MAX_OUT
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            yield line

    def read_buffer(name: str, io: Any, *more: Any, **options: Any) -> None:
        read(name, at_most(io), *more, **options)

    util.read_buffer = read_buffer


@contextmanager
def own_clock(seconds: float) -> Iterator[None]:
    """Ends what stands below it after `seconds` of this machine's clock: TimeoutError.

    pyinfra's `_timeout` and paramiko's are of reading alone: a frozen host takes no input, never
    says how its command ended, or does not answer the wish for a channel.
    """
    clock = gevent.Timeout(seconds)
    try:
        with clock:
            yield
    except gevent.Timeout as ended:
        if ended is not clock:
            raise
        raise TimeoutError(f"no answer in {seconds:.0f} s") from None


def in_host(
    state: State, host: Host, function: Any, *args: Any, limit_s: int, **kwargs: Any
) -> Any:
    """Calls `function` (run_shell_command, get_fact) with pyinfra's context set to `host`, for work
    on another host's behalf. `limit_s` is the host's own limit; TimeoutError: it did not keep it.
    """
    late_s = limit_s + LATE_S
    if host.__dict__.pop("rigbook_cut", False):
        reconnect(state, host, LATE_S)
    try:
        with (
            own_clock(late_s + END_S),
            ctx_state.use(state), ctx_config.use(state.config.copy()), ctx_host.use(host),
        ):  # fmt: skip
            return function(*args, _timeout=late_s, **kwargs)
    except TimeoutError:
        # half a packet may be on the line: the next command gets a new one
        host.__dict__["rigbook_cut"] = True
        raise


def reconnect(state: State, host: Host, limit_s: float) -> None:
    """Ends the host's connection and makes a new one; `host.connected` says whether it came."""
    with own_clock(limit_s), ctx_state.use(state), ctx_host.use(host):
        host.disconnect()
        host.connect(show_errors=False)


def as_root(host: Host) -> dict[str, Any]:
    """pyinfra's arguments for a command of root's: by sudo, which a login that is root does without
    (deploys/plans/cli.py sets `_sudo` for it).
    """
    return {"_sudo": host.data.get("_sudo") is not False, "_shell_executable": "sh"}


def no_sudo(state: State, host: Host, error: Exception | None = None) -> str | None:
    """Why a command of root's could not run on the host, in sudo's own words; None: not sudo's
    doing. Asked after a failure: a sudo that refuses leaves the program on its stdin unread, and
    the broken pipe hides what it said.
    """
    if not as_root(host)["_sudo"] or not isinstance(error, BrokenPipeError | EOFError | None):
        return None
    # exit status 0 whatever comes: pyinfra asks a person for a password otherwise
    line = "sudo -H -n true 2>&1 || { echo refused; exit 0; }"
    try:
        _, output = in_host(
            state, host, host.run_shell_command, StringCommand(line), _sudo=False, limit_s=10,
            print_output=False, print_input=False,
        )  # fmt: skip
    except Exception:  # the host itself does not answer
        return None
    said = output.stdout_lines
    if not said or said[-1] != "refused":
        return None
    login = host.data.get("ssh_user") or "this login"
    return f"passwordless sudo is missing for {login}: {' '.join(said[:-1])[-200:]}"


def fact_of(state: State, host: Host, fact: type, *args: Any) -> Any:
    """A fact of any host, or None when it could not be read; never fails the host."""
    limit_s = getattr(fact, "timeout_s", 60)
    try:
        return in_host(
            state, host, host.get_fact, fact, *args, _ignore_errors=True, limit_s=limit_s
        )
    except TimeoutError as error:
        logger.error(f"    [{host.name}] {fact.__name__}: {error}")
        return None


# Asks one of node's reading verbs on a host: nothing is written there.


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


# A reading verb of node as a fact: one bounded command, one typed answer; read-only.

T = TypeVar("T")


class NodeFact(FactBase[T], Generic[T]):
    """What `verb` answers, as `kind` (a model, or dict for the plain document).

    The program travels with the command and writes nothing on the host (facts/pack.py).
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


# Several facts of a host by one remote command: one Python there, each fact its own answer.

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


# What a host is: one remote command, one typed document.
#
# `pyinfra inventory/lab.py fact facts.node.Snapshot` prints it.

# With `deep` the weights are hashed: 149 GB at 100 MB/s are 25 minutes.
DEEP_TIMEOUT_S = 3600


class Snapshot(NodeFact[NodeSnapshot]):
    """The host's NodeSnapshot. `request` is a SnapshotRequest as JSON text; none: the basics.

    A hung driver or docker is reported by its section; the limit bounds the whole command.
    """

    verb = "snapshot"
    kind = NodeSnapshot

    def seconds(self, request: Mapping[str, object]) -> int:
        """More for a request that is `deep`."""
        return DEEP_TIMEOUT_S if request.get("deep") else self.timeout_s


# All nodes of a rig at one moment: one snapshot a host, taken at the same time, asked once a run.
#
# pyinfra has no fact cache and runs a deploy file once a host; the memo makes every host's run see
# the same observation.

_LOCK = RLock()
Looks = Mapping[str, NodeSnapshot | Unreadable]


def forget_look(state: State) -> None:
    """Has every later observation ask again, because what was seen has changed."""
    real(state).__dict__.pop("rigbook_observed", None)


def observe(state: State, plan: Plan, fresh: bool = False, asked: Together | None = None) -> Looks:
    """Each node's snapshot by name; an `Unreadable` says why a node could not be asked.

    `fresh` asks again, for a look after a change. `asked`: other facts of the same nodes, which
    are asked in the same command.
    """
    state = real(state)
    with _LOCK:
        # with the plan, which is kept: the id of one that is gone is the next one's
        memo: dict[int, tuple[Plan, Looks]] = state.__dict__.setdefault("rigbook_observed", {})
        key = id(plan)
        if fresh or key not in memo:
            requests = {name: one.model_dump_json() for name, one in plan.requests.items()}
            if asked is None:
                found = ask_each(state, plan, Snapshot(), requests)
            else:
                found = asked.add(Snapshot(), requests)()
            memo[key] = plan, found
        return memo[key][1]


# The engine of some nodes at this moment: ports, processes, unit, container, launch script.

# No weights, no images, no venvs: it is asked around each completion that is to prove something.
REQUEST = SnapshotRequest(files=(SCRIPT_PATH,), units=(UNIT,)).model_dump_json()


def look_at_engine(state: State, nodes: Collection[str]) -> Looks:
    """Each node's snapshot by name, asked at the same time; an `Unreadable` says why a node could
    not be asked.
    """
    return ask_some(state, Snapshot(), dict.fromkeys(nodes, REQUEST))


# The backups on a host, and what another one would store; read-only.


class TreeBackups(NodeFact[Backups]):
    """node's `tree list`."""

    verb = "tree list"
    kind = Backups


class TreeCopies(NodeFact[Copies]):
    """node's `tree copies`."""

    verb = "tree copies"
    kind = Copies


class TreeBackupPlan(NodeFact[BackupPlan]):
    """node's `tree backup` with `dry`, of its request without documents."""

    verb = "tree backup"
    kind = BackupPlan
    always: ClassVar = {"dry": True}
    # A walk over a venv of 100,000 files on a cold disk.
    timeout_s = 300


class TreePrunePlan(NodeFact[PrunePlan]):
    """node's `tree prune` with `dry`."""

    verb = "tree prune"
    kind = PrunePlan
    always: ClassVar = {"dry": True}
